"""A Spark session in which `.format("klamm")` and `.format("kafka")` work: Java found, this Python used.

    spark = pyspark_klamm.session("orders")

What the caller configures wins over everything that is set here, apart from `spark.jars`, which is added to.
A session that runs already is returned, as Spark does; its Java and its jars stay what they are.
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
    # A machine's name need not resolve for what runs on it alone.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Checkpoints on a disk of this machine: half the time of a small batch would go to their bookkeeping.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Batches for Python of what fits into caches; 10,000 large rows, Spark's only other limit, do not. And
    # into one batch of a topic, which has a megabyte at most, what Kafka writes beside the rows included.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(960 * 1024),
}
"""What makes Spark quick where everything runs in one process on one machine."""


def session(
    app_name: str = "klamm", master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session, made or found. Raises JavaMissing when there is no Java to run it on."""
    settings = settings_for(master, config or {})
    if SparkContext._active_spark_context is None:
        # Spark's launcher takes these from the environment, and from nowhere else.
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master.startswith("local") and "SPARK_HOME" not in os.environ:
            home = linked_home(Path(pyspark.__file__).parent)
            if home is not None:
                os.environ["SPARK_HOME"] = str(home)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with interrupts_held_back():
        return builder.getOrCreate()


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C count when Spark is up. Before that it would leave a JVM behind that nobody ends: PySpark
    takes away the folder in which the JVM is to say where it listens, and the JVM fails at that, not wholly.
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
        # A context that was made has put its own handler there, which stays.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def settings_for(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """All settings of a session on this master, with those of the caller."""
    settings: dict[str, str] = {}
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS
        # Spark's 200 are for clusters; here each costs more to start than to run.
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        if hasattr(socket, "AF_UNIX"):
            # Over TCP, JVM and Python worker wait for each other's delayed acknowledgement: 40 ms a task.
            settings["spark.python.unix.domain.socket.enabled"] = "true"
    settings |= config
    settings["spark.jars"] = ",".join(filter(None, [config.get("spark.jars"), str(jar_path())]))
    return settings
