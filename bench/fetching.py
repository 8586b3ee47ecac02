"""Reads fetch answers from raw sockets: parses a frame while keeping only one chunk of it in memory.

Topics to be fetched are filled with batches of one exact size, so the next offset follows from the number of
bytes that came, whether a broker cuts its answer at a batch (Klamm) or anywhere (Kafka).
"""

from __future__ import annotations

import os
import select
import struct
import time
from pathlib import Path

from bench import load, wire
from bench.load import BadAnswer
from bench.peers import Broker

BATCH_BYTES = 16 * 1024
RECORDS_A_BATCH = 16
CHUNK_BYTES = 256 * 1024
FILL_DEPTH = 16
PAGE_BYTES = 4096


class FetchStream:
    """One consumer's connection: sends the next fetch, receives the answer, and keeps the offset."""

    def __init__(self, port: int, topic_name: str, answer_bytes: int, end_offset: int | None = None) -> None:
        self.connection = load.connect(port)
        self._request = bytearray(wire.fetch_request(topic_name, 0, answer_bytes))
        self._offset_position = wire.fetch_offset_position(len(self._request))
        self._layout = wire.fetch_layout(topic_name)
        self._head = bytearray(self._layout.header_size)
        self._end_offset = end_offset  # where to start over; None for a tail that waits for more
        self.offset = 0
        self.fetched_bytes = 0
        self.came_with_records = False  # the last answer; one that waited in vain is empty
        self._head_filled = 0
        self._left = 0

    def send(self) -> None:
        struct.pack_into(">q", self._request, self._offset_position, self.offset)
        self.connection.sendall(self._request)
        self._head_filled = 0

    def receive(self, chunk: memoryview) -> bool:
        """Receives what has arrived; True if that completes an answer."""
        if self._head_filled < len(self._head):
            view = memoryview(self._head)[self._head_filled :]
            received = self.connection.recv_into(view)
            self._head_filled += received
            if received and self._head_filled == len(self._head):
                self._begin_records()
        else:
            received = self.connection.recv_into(chunk[: self._left])
            self._left -= received
        if received == 0:
            raise BadAnswer("the broker closed the connection")
        if self._left or self._head_filled < len(self._head):
            return False
        self._finish()
        return True

    def _begin_records(self) -> None:
        (error,) = struct.unpack_from(">h", self._head, self._layout.error_offset)
        (size,) = struct.unpack_from(">i", self._head, self._layout.records_size_offset)
        if error != wire.NO_ERROR or size < 0:
            raise BadAnswer(f"fetch at {self.offset}: error {error}, {size} bytes")
        self._left = self._size = size

    def _finish(self) -> None:
        batch_count = self._size // BATCH_BYTES
        self.came_with_records = batch_count > 0
        self.fetched_bytes += batch_count * BATCH_BYTES
        self.offset += batch_count * RECORDS_A_BATCH
        if self._end_offset is not None and self.offset >= self._end_offset:
            self.offset = 0

    def close(self) -> None:
        self.connection.close()


def fill(broker: Broker, topic_name: str, total_bytes: int) -> int:
    """Appends batches of the exact size; returns the end offset."""
    batch = wire.build_batch(RECORDS_A_BATCH, 1000, total_size=BATCH_BYTES)
    exchange = wire.produce_exchange(topic_name, batch, RECORDS_A_BATCH)
    with load.placed_connection(broker.port) as connection:
        budget = load.Budget(600.0, max_bytes=total_bytes // BATCH_BYTES * len(exchange.request))
        done = load.produce_pipelined(connection, exchange, FILL_DEPTH, budget)
    return done.requests * RECORDS_A_BATCH


def fetch_one_at_a_time(stream: FetchStream, budget: load.Budget) -> tuple[int, float]:
    """Bytes and seconds of fetches on one connection, each sent after the last answer has arrived."""
    chunk = memoryview(bytearray(CHUNK_BYTES))
    before = stream.fetched_bytes
    started = time.perf_counter()
    deadline = started + budget.seconds
    while time.perf_counter() < deadline and stream.fetched_bytes - before < budget.max_bytes:
        stream.send()
        while not stream.receive(chunk):
            pass
    return stream.fetched_bytes - before, time.perf_counter() - started


def fetch_over_connections(streams: list[FetchStream], budget: load.Budget) -> tuple[int, float]:
    """The same over many connections at once, driven by epoll; bytes of all and seconds."""
    chunk = memoryview(bytearray(CHUNK_BYTES))
    by_descriptor = {stream.connection.fileno(): stream for stream in streams}
    poller = select.epoll()
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    before = sum(stream.fetched_bytes for stream in streams)
    started = time.perf_counter()
    deadline = started + budget.seconds
    for stream in streams:
        stream.send()
    in_flight = len(streams)
    try:
        while in_flight:
            ready = poller.poll(load.ANSWER_TIMEOUT_SECONDS)
            if not ready:
                raise BadAnswer(f"no answer within {load.ANSWER_TIMEOUT_SECONDS} s")
            goes_on = time.perf_counter() < deadline
            for descriptor, _ in ready:
                stream = by_descriptor[descriptor]
                if stream.receive(chunk):
                    if goes_on:
                        stream.send()
                    else:
                        in_flight -= 1
    finally:
        poller.close()
    return sum(stream.fetched_bytes for stream in streams) - before, time.perf_counter() - started


def drop_from_page_cache(paths: list[Path]) -> float:
    """Syncs the files and drops their pages; returns the share of sampled pages that stayed."""
    sampled = stayed = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(descriptor).st_size
            for position in range(0, size, max(PAGE_BYTES, size // 64)):
                sampled += 1
                stayed += _is_cached(descriptor, position)
        finally:
            os.close(descriptor)
    return stayed / max(1, sampled)


def _is_cached(descriptor: int, position: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system that cannot be asked keeps everything in memory
