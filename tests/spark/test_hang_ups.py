"""Python processes that Spark starts, and a Spark that hangs up on them: they must not print stack traces."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_klamm.session import settings_for
from pyspark_klamm.source import KlammSource
from tests.waiting import wait_until

PATIENCE_S = 120.0
READER = "pyspark.sql.streaming.python_streaming_source_runner"
TASKS = "pyspark.worker"


@pytest.fixture
def folder() -> Iterator[Path]:
    """For sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="klamm-") as made:
        yield Path(made)


def start(module: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", module, TASKS]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **environment})


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def sized(value: bytes) -> bytes:
    return number(len(value)) + value


def read_number(connection: socket.socket) -> int:
    return int(struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0])


def said_by_worker(module: str, folder: Path) -> str:
    """What a daemon and its worker print when Spark hangs up before the worker has answered."""
    environment = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    with start(module, environment) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        (length,) = struct.unpack(">i", process.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as spark:
            spark.settimeout(PATIENCE_S)
            spark.connect(process.stdout.read(length))
            worker = read_number(spark)
        wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker has ended", PATIENCE_S)
        process.stdin.close()  # this is how Spark ends its daemon
        return process.stderr.read().decode()


def said_by_reader(folder: Path) -> str:
    """What the process of a query's reader prints when Spark hangs up before the process has answered."""
    path = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(PATIENCE_S)
        with start(READER, {"PYTHON_WORKER_FACTORY_SOCK_PATH": path}) as process:
            assert process.stderr is not None
            source = KlammSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"})
            spark, _ = listener.accept()
            with spark:
                spark.settimeout(PATIENCE_S)
                assert read_number(spark) == process.pid
                spark.sendall(
                    sized(b"%d.%d" % sys.version_info[:2]) + sized(str(folder).encode()) + number(0)
                )
                spark.sendall(
                    sized(pickle.dumps(source)) + sized(source.schema().json().encode()) + number(1)
                )
                assert read_number(spark) == 0, "the reader is made"
            return process.stderr.read().decode()


def test_a_worker_says_nothing(folder: Path) -> None:
    ours = settings_for("local[2]", {})["spark.python.daemon.module"]
    assert said_by_worker(ours, folder) == ""


def test_sparks_own_daemon_would_say_something(folder: Path) -> None:
    assert "BrokenPipeError" in said_by_worker("pyspark.daemon", folder)


def test_a_reader_says_nothing(folder: Path) -> None:
    assert said_by_reader(folder) == ""
