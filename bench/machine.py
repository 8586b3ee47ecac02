"""What the machine can do at all, with no broker in the way.

Each limit is taken with the load that measures the brokers, on the same cores, in the same rounds: a bare
uvloop ping-pong of the same bytes, a loopback copy, a loopback copy that is appended to a file, a plain file
append, and a fetch answered by nothing but sendfile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench import load, processes, wire
from bench.peers import MACHINE
from bench.runner import Bench, Comparison, Figures, Measure

SECTION = "machine"
MIB = 1024 * 1024
COPY_BUFFER_BYTES = 256 * 1024
"""Of a copy of files: as much as stays in the cache of a core. With sendfile the copy was slower."""


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[int]:
    """A machine server on the same core as Klamm; returns its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.machine_server", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    processes.place_server(process.pid)
    assert process.stdout is not None and process.stdin is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


@contextlib.contextmanager
def ping_pong_server(exchange: wire.ProduceExchange) -> Iterator[tuple[int, wire.ProduceExchange]]:
    """A bare uvloop server for the same bytes: it counts requests and repeats an answer of the right size."""
    answer = struct.pack(">i", exchange.response_size - 4).ljust(exchange.response_size, b"\x00")
    with server("ping-pong", str(len(exchange.request)), answer.hex()) as port:
        yield port, exchange._replace(echoes_id=False)


def loopback_copy(path: Path | None, budget: load.Budget) -> float:
    """MB/s of 1 MB writes into a server that drops them or appends them to a file."""
    return _stream(_the_same_block(budget), path)


def loopback_copy_of(files: Iterable[Path], path: Path) -> float:
    """MB/s of files that are read, and sent into a server that appends them to one file."""
    return _stream(_contents(files), path)


def _the_same_block(budget: load.Budget) -> Iterator[bytes]:
    block = os.urandom(MIB)
    sent, started = 0, time.perf_counter()
    while time.perf_counter() - started < budget.seconds and sent < budget.max_bytes:
        yield block
        sent += len(block)


def _contents(files: Iterable[Path]) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(COPY_BUFFER_BYTES))
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield buffer[:count]


def _stream(blocks: Iterable[bytes | memoryview], path: Path | None) -> float:
    arguments = ("sink", str(path)) if path else ("sink",)
    with server(*arguments) as port, load.placed_connection(port) as connection:
        started = time.perf_counter()
        for block in blocks:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        (arrived,) = struct.unpack(">q", load.receive_exactly(connection, 8))
        elapsed_seconds = time.perf_counter() - started
    if path is not None:
        path.unlink()
    return float(arrived) / elapsed_seconds / 1e6


def fetch_bare(
    connection: socket.socket, request: bytes, answer_bytes: int, chunk: memoryview, seconds: float
) -> tuple[int, float]:
    """Asks a sendfile server for one answer after another; bytes and seconds."""
    fetched, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        connection.sendall(request)
        left = answer_bytes
        while left:
            received = connection.recv_into(chunk[:left])
            if received == 0:
                raise load.BadAnswer("the sendfile server closed the connection")
            left -= received
        fetched += answer_bytes
    return fetched, time.perf_counter() - started


def file_append(path: Path, write_size: int, total_bytes: int) -> float:
    block = os.urandom(write_size)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o644)
    started = time.perf_counter()
    for _ in range(total_bytes // write_size):
        os.write(descriptor, block)
    elapsed_seconds = time.perf_counter() - started
    os.close(descriptor)
    path.unlink()
    return total_bytes // write_size * write_size / elapsed_seconds / 1e6


@contextlib.contextmanager
def scratch_file(bench: Bench) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=bench.work_dir) as folder:
        yield Path(folder) / "append"


def copy_to_file(bench: Bench) -> Figures:
    with scratch_file(bench) as path:
        return {"MB/s": loopback_copy(path, bench.budget)}


def append_to_file(bench: Bench, write_size: int) -> Figures:
    with scratch_file(bench) as path, processes.on_load_core():
        return {"MB/s": file_append(path, write_size, bench.budget.max_bytes)}


def case_count(_: Bench) -> int:
    return 4


def comparisons(bench: Bench) -> Iterator[Comparison]:
    """The limits with a case of their own; the others are measured with the comparisons that they limit."""
    yield Comparison("loopback copy", {MACHINE: lambda: {"MB/s": loopback_copy(None, bench.budget)}})
    appending: dict[str, Measure] = {
        "loopback copy appended to a file": lambda: copy_to_file(bench),
        "file append, 1 MB writes": lambda: append_to_file(bench, MIB),
        "file append, 16 KB writes": lambda: append_to_file(bench, 16 * 1024),
    }
    for case, measure in appending.items():
        yield Comparison(case, {MACHINE: measure}, writes_bytes=bench.writes_bytes)
