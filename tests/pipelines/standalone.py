"""A standalone Spark cluster for tests: a master and two workers, in processes of their own.

The work folders of the workers are separate, and so is all that their executors unpack and write. Their
Python may be one without packages: what executors import then, the driver has sent.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from pyspark_klamm.java import find_java
from tests.waiting import wait_until

STARTED_S = 120.0
DEPLOY = "org.apache.spark.deploy"
EXECUTOR = "CoarseGrainedExecutorBackend"
STRIKING_DAEMON = Path(__file__).with_name("striking_daemon.py")


def bare_python(folder: Path) -> Path:
    """The bin folder of a Python without packages, but with the daemon that strikes."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    (Path(packages) / STRIKING_DAEMON.name).write_text(STRIKING_DAEMON.read_text())
    return folder / "bin"


def spark_environment(python: Path | None) -> dict[str, str]:
    """The environment of Spark's own processes. With a Python of their own, nothing tells of the packages of
    this one."""
    jars = Path(pyspark.__file__).parent / "jars"
    # Which Spark's own scripts would find out.
    scala = next(jars.glob("spark-core_*.jar")).name.removeprefix("spark-core_").partition("-")[0]
    environment = dict(os.environ)
    if python is not None:
        environment = {name: value for name, value in environment.items() if not name.startswith("PY")}
        environment["PATH"] = f"{python}:{environment.get('PATH', '')}"
    return environment | {
        "SPARK_HOME": str(jars.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": scala,
        "JAVA_HOME": str(find_java().home),
    }


@contextmanager
def started(
    folder: Path, ready: str, environment: dict[str, str], *arguments: str
) -> Iterator[tuple[int, str]]:
    """A process of Spark's that works in `folder`; yields its id and what `ready`, a pattern, finds in its
    log."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    jars = Path(pyspark.__file__).parent / "jars"
    command = [str(find_java().home / "bin/java"), "-Xmx256m", "-cp", f"{jars}/*", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    found: re.Match[str] | None = None

    def is_ready() -> bool:
        nonlocal found
        assert process.poll() is None, log.read_text()[-2000:]
        found = re.search(ready, log.read_text())
        return found is not None

    try:
        wait_until(is_ready, lambda: f"{arguments[0]} is ready: {log.read_text()[-2000:]}", STARTED_S)
        assert found is not None
        yield process.pid, found[0]
    finally:
        process.terminate()
        process.wait(30)


class StandaloneCluster:
    """`master` is its address. `python` is a folder that its executors' PATH begins with."""

    def __init__(self, folder: Path, python: Path | None = None) -> None:
        self._folder = folder
        self._environment = spark_environment(python)
        self._stack = ExitStack()
        self._workers: list[int] = []
        self.master = ""

    def __enter__(self) -> Self:
        with self._stack:
            start = self._stack.enter_context
            _, self.master = start(
                started(
                    self._folder / "master",
                    r"spark://127\.0\.0\.1:\d+",
                    self._environment,
                    *(f"{DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                )
            )
            for number in range(2):
                worker, _ = start(
                    started(
                        self._folder / f"worker-{number}",
                        "Successfully registered with master",
                        self._environment,
                        *(f"{DEPLOY}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"),
                        *("--cores", "1", "--memory", "700m", self.master),
                        *("--work-dir", str(self._folder / f"worker-{number}/work")),
                    )
                )
                self._workers.append(worker)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def executors(self) -> list[int]:
        """The processes of the executors."""
        return [
            process
            for worker in self._workers
            for process in _children(worker)
            if EXECUTOR in _command_line(process)
        ]

    def executor_folders(self, worker: int) -> list[Path]:
        """The folders of all executors that a worker has had."""
        return sorted((self._folder / f"worker-{worker}/work").glob("app-*/*"))

    def kill_executor(self) -> None:
        os.kill(self.executors()[0], signal.SIGKILL)


def _children(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in children for child in file.read_text().split()]


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
