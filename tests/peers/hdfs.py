"""A real HDFS for tests: a name node and a data node, whose jars Maven copies into the cache of the clone.

    with Hdfs(folder) as hdfs:
        print(hdfs.uri)

Both nodes are processes of their own, on free loopback ports, with their data in `folder`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers.apache_kafka import QUICK_START, PeerFailed, free_ports
from tests.peers.kafka_jars import CACHE, PeerMissing, find_java
from tests.waiting import wait_until

VERSION = "3.4.1"
JARS = CACHE / f"hadoop-{VERSION}-yarn"
POM = Path(__file__).parent / "java/hadoop/pom.xml"
COPY_S = 600.0
START_S = 120.0
STOP_S = 30.0

OPENED = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)
"""What YARN's servers need of newer Javas."""

_HDFS = "hdfs.server"
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


class HadoopServers:
    """Servers of Hadoop, in processes of their own. Their settings and logs lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._java = find_java()
        self._jars = find_hadoop_jars()
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def settings(self) -> Path:
        """The folder with the settings, for clients."""
        return self._folder / "settings"

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

    def start(self, server: str, ready: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a server and wait until its log says that it is ready."""
        log = self._folder / f"{server}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(server),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        self._processes[server] = process

        def is_ready() -> bool:
            if process.poll() is not None:
                raise PeerFailed(f"{server} of Hadoop ended: {log.read_text()[-2000:]}")
            return ready in log.read_text()

        wait_until(is_ready, lambda: f"{server} of Hadoop is ready: {log.read_text()[-2000:]}", START_S)

    def command(self, server: str, *arguments: str) -> list[str]:
        class_path = f"{self.settings}:{self._jars}/*"
        main = f"org.apache.hadoop.{server}"
        return [self._java, "-Xmx256m", *QUICK_START, *OPENED, "-cp", class_path, main, *arguments]

    def write_settings(self, values: Mapping[str, str], *names: str) -> None:
        self.settings.mkdir(exist_ok=True)
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>\n"
            for name, value in values.items()
        )
        for name in names:
            (self.settings / name).write_text(f"<configuration>\n{properties}</configuration>\n")
        (self.settings / "log4j.properties").write_text(_LOGGING)


class Hdfs(HadoopServers):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (port,) = free_ports(1)
        self.uri = f"hdfs://127.0.0.1:{port}"

    def __enter__(self) -> Self:
        # The pages of the nodes' web servers are not in Maven's jars, and the nodes look for their folders.
        for pages in ("hdfs", "datanode", "static"):
            (self.settings / "webapps" / pages).mkdir(parents=True)
        self.write_settings(
            {
                "fs.defaultFS": self.uri,
                "dfs.namenode.name.dir": f"file://{self._folder}/name",
                "dfs.datanode.data.dir": f"file://{self._folder}/data",
                "dfs.namenode.http-address": "127.0.0.1:0",
                "dfs.datanode.address": "127.0.0.1:0",
                "dfs.datanode.http.address": "127.0.0.1:0",
                "dfs.datanode.ipc.address": "127.0.0.1:0",
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
            },
            *("core-site.xml", "hdfs-site.xml"),
        )
        name_node, data_node = f"{_HDFS}.namenode.NameNode", f"{_HDFS}.datanode.DataNode"
        done = subprocess.run(self.command(name_node, "-format", "-force"), capture_output=True, text=True)
        if done.returncode:
            raise PeerFailed(f"HDFS was not formatted: {done.stdout[-2000:]}")
        try:
            self.start(name_node, "IPC Server listener on")
            self.start(data_node, "successfully registered with NN")
        except BaseException:
            self.stop()
            raise
        return self
