"""A Spark session in which `.format("klamm")` and `.format("kafka")` work: Java found, this Python used.

    spark = pyspark_klamm.session("orders")

The caller's settings override those made here; our jar is added to `spark.jars`, and our Java options stand
before the caller's. If a session runs already, it is returned, as Spark does, with its Java and its jars
unchanged.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_klamm.jar import jar_path
from pyspark_klamm.java import find_java
from pyspark_klamm.spark_home import linked_home

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

LOCAL_SETTINGS: Mapping[str, str] = {
    # So that the name of this machine need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Faster checkpoints on a local disk: with Spark's defaults they take half the time of a small batch.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Arrow batches for Python that fit into caches, which 10,000 large rows (Spark's other limit) do not, and
    # into one record batch of a topic, which is at most a megabyte with Kafka's overhead.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(960 * 1024),
    # Spark's own daemon prints a stack trace for every task that is cancelled while its worker answers.
    "spark.python.daemon.module": "pyspark_klamm.daemon",
}
"""Settings that make Spark fast and quiet on a local master."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

DEEP_STACKS = "-Xss32m"
"""When a query is stopped during `foreachBatch`, Spark looks for the reason in the text of the error, by a
regular expression that needs a stack of some megabytes. With Java's one megabyte the query's thread dies of
a StackOverflowError, and prints a thousand lines of it. Stacks take no more memory than threads have used."""


def session(
    app_name: str = "klamm", master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The running Spark session, or a new one. Raises JavaMissing if there is no Java for it."""
    settings = settings_for(master, config or {})
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with interrupts_held_back(), _variables_for_the_launcher(master):
        return builder.getOrCreate()


@contextmanager
def _variables_for_the_launcher(master: str) -> Iterator[None]:
    """What Spark's launcher reads only from the environment. Left there it would decide for whatever this
    process starts later: another Spark, another Java."""
    if SparkContext._active_spark_context is not None or is_submitted():  # a JVM runs already
        yield
        return
    names = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_HOME")
    before = {name: os.environ.get(name) for name in names}
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local") and "SPARK_HOME" not in os.environ:
        home = linked_home(Path(pyspark.__file__).parent)
        if home is not None:
            os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_submitted() -> bool:
    """True in a driver that spark-submit has started."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C until Spark is up. Earlier it would leave a JVM behind: PySpark would delete the folder in
    which the JVM is to write its port, and the JVM would fail at that without ending.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # A new SparkContext has installed its own handler, which stays.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def settings_for(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session on this master, with the caller's."""
    settings: dict[str, str] = {}
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS
        # Spark's default of 200 is for clusters; on one machine each costs more to start than to run.
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        if hasattr(socket, "AF_UNIX"):
            # Over TCP, delayed acknowledgements between JVM and Python worker cost 40 ms per task.
            settings["spark.python.unix.domain.socket.enabled"] = "true"
    settings |= config
    if master.startswith("local"):
        settings[JAVA_OPTIONS] = " ".join(filter(None, [DEEP_STACKS, config.get(JAVA_OPTIONS)]))
    settings["spark.jars"] = ",".join(filter(None, [config.get("spark.jars"), str(jar_path())]))
    return settings
