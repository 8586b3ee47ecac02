"""A real HDFS for tests: a name node and a data node, whose jars Maven copies into the cache of the clone.

    with Hdfs(folder) as hdfs:
        print(hdfs.uri)

Both nodes are processes of their own, on free loopback ports, with their data in `folder`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers.apache_kafka import QUICK_START, PeerFailed, free_ports
from tests.peers.kafka_jars import CACHE, PeerMissing, find_java
from tests.waiting import wait_until

VERSION = "3.4.1"
JARS = CACHE / f"hadoop-{VERSION}"
POM = Path(__file__).parent / "java/hadoop/pom.xml"
COPY_S = 600.0
START_S = 120.0
STOP_S = 30.0

_SERVERS = "org.apache.hadoop.hdfs.server"
_LOGGING = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""


def find_hadoop_jars() -> Path:
    """The folder with the jars; has Maven copy them if the cache does not have them."""
    if any(JARS.glob(f"hadoop-hdfs-{VERSION}.jar")):
        return JARS
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerMissing("Maven is missing, which copies Hadoop for the tests: install maven (Debian)")
    unfinished = JARS.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    copied = subprocess.run(
        [
            *(maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={unfinished}"),
        ],
        capture_output=True,
        text=True,
        timeout=COPY_S,
    )
    if copied.returncode:
        raise PeerMissing(f"Hadoop {VERSION} cannot be copied: {copied.stdout[-500:]}")
    unfinished.rename(JARS)
    return JARS


class Hdfs:
    def __init__(self, folder: Path) -> None:
        self._java = find_java()
        self._jars = find_hadoop_jars()
        self._folder = folder
        (port,) = free_ports(1)
        self.uri = f"hdfs://127.0.0.1:{port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._write_settings()
        done = subprocess.run(
            self._command("namenode.NameNode", "-format", "-force"), capture_output=True, text=True
        )
        if done.returncode:
            raise PeerFailed(f"HDFS was not formatted: {done.stdout[-2000:]}")
        try:
            self._start("namenode.NameNode", "IPC Server listener on")
            self._start("datanode.DataNode", "successfully registered with NN")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start(self, server: str, ready: str) -> None:
        """Start one of the nodes and wait until its log says that it is ready."""
        log = self._folder / f"{server}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(server), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._processes[server] = process

        def is_ready() -> bool:
            if process.poll() is not None:
                raise PeerFailed(f"{server} of HDFS ended: {log.read_text()[-2000:]}")
            return ready in log.read_text()

        wait_until(is_ready, lambda: f"{server} of HDFS is ready: {log.read_text()[-2000:]}", START_S)

    def _command(self, server: str, *arguments: str) -> list[str]:
        class_path = f"{self._folder / 'settings'}:{self._jars}/*"
        return [
            *(self._java, "-Xmx256m", *QUICK_START, "-cp", class_path, f"{_SERVERS}.{server}"),
            *arguments,
        ]

    def _write_settings(self) -> None:
        values = {
            "fs.defaultFS": self.uri,
            "dfs.namenode.name.dir": f"file://{self._folder}/name",
            "dfs.datanode.data.dir": f"file://{self._folder}/data",
            "dfs.namenode.http-address": "127.0.0.1:0",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.http.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
        }
        settings = self._folder / "settings"
        # The pages of the nodes' web servers are not in Maven's jars, and the nodes look for their folders.
        for pages in ("hdfs", "datanode", "static"):
            (settings / "webapps" / pages).mkdir(parents=True)
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>\n"
            for name, value in values.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (settings / name).write_text(f"<configuration>\n{properties}</configuration>\n")
        (settings / "log4j.properties").write_text(_LOGGING)
