"""A real YARN for tests: a resource manager and a node manager over a real HDFS (`hdfs.py`).

with Hdfs(folder) as hdfs, Yarn(other, hdfs.uri, {"PATH": …}) as yarn:
    environment = {"HADOOP_CONF_DIR": str(yarn.settings)}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pyspark_klamm.java import find_java
from tests.peers.apache_kafka import free_ports
from tests.peers.hdfs import HadoopServers

MEMORY_MB = 4096
_YARN = "yarn.server"
_FIFO = f"org.apache.hadoop.{_YARN}.resourcemanager.scheduler.fifo.FifoScheduler"


class Yarn(HadoopServers):
    """`variables` are added to the environment that containers get."""

    def __init__(self, folder: Path, file_system: str, variables: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._file_system = file_system
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
        self._environment = {**kept, "JAVA_HOME": str(find_java().home), **variables}

    def __enter__(self) -> Self:
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        manager = {
            f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}"
            for name, port in zip(names, free_ports(len(names)), strict=True)
        }
        (localizer,) = free_ports(1)
        self.write_settings(
            {
                "fs.defaultFS": self._file_system,
                **manager,
                "yarn.resourcemanager.webapp.address": "127.0.0.1:0",
                "yarn.resourcemanager.scheduler.class": _FIFO,
                "yarn.nodemanager.address": "127.0.0.1:0",
                "yarn.nodemanager.bind-host": "127.0.0.1",
                "yarn.nodemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.localizer.address": f"127.0.0.1:{localizer}",
                "yarn.nodemanager.webapp.address": "127.0.0.1:0",
                "yarn.nodemanager.local-dirs": str(self._folder / "local"),
                "yarn.nodemanager.log-dirs": str(self._folder / "logs"),
                "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
                "yarn.nodemanager.resource.cpu-vcores": "4",
                "yarn.nodemanager.vmem-check-enabled": "false",
                # It calls a disk bad that is nine tenths full.
                "yarn.nodemanager.disk-health-checker.enable": "false",
                "yarn.scheduler.minimum-allocation-mb": "128",
            },
            *("core-site.xml", "yarn-site.xml"),
        )
        try:
            self.start(f"{_YARN}.resourcemanager.ResourceManager", "Transitioned to active state")
            self.start(
                f"{_YARN}.nodemanager.NodeManager", "Registered with ResourceManager", self._environment
            )
        except BaseException:
            self.stop()
            raise
        return self

    def log(self) -> str:
        """The ends of what containers have written."""
        found = sorted((self._folder / "logs").glob("*/*/*"))
        return "\n".join(f"== {file}\n{file.read_text()[-3000:]}" for file in found if file.is_file())
