"""The raw-socket load: blocking sockets and epoll, request bytes made beforehand, nothing per record.

A request in flight is a copy of the same bytes in which only the correlation id (and the partition, where a
load spreads over several) is patched. Every answer is checked: its size, its correlation id, its error code.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench import processes, wire

ANSWER_TIMEOUT_SECONDS = 30.0
INBOX_BYTES = 64 * 1024  # small answers only; hundreds of them fit
_ID = struct.Struct(">i")
_ERROR = struct.Struct(">h")


class Budget(NamedTuple):
    """A load ends after these seconds or bytes. The bytes keep dirty pages far from writeback throttling."""

    seconds: float
    max_bytes: int


class Load(NamedTuple):
    requests: int
    seconds: float
    round_trips_us: list[float]  # one a request, only for a load that sends one at a time


class BadAnswer(RuntimeError):
    """A broker answered with an error; its figures would be worthless."""


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


@contextlib.contextmanager
def placed_connection(port: int) -> Iterator[socket.socket]:
    """One connection, on the core on which the load is placed."""
    with processes.on_load_core(), connect(port) as connection:
        yield connection


def ask(port: int, request: bytes) -> bytes:
    """One request on its own connection; the answer without its size."""
    with connect(port) as connection:
        return exchange(connection, request)


def exchange(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    (size,) = _ID.unpack(receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    filled = 0
    while filled < size:
        count = connection.recv_into(memoryview(received)[filled:])
        if not count:
            raise BadAnswer(f"the connection closed after {filled} of {size} bytes")
        filled += count
    return bytes(received)


def check_answer(
    exchange: wire.ProduceExchange, inbox: bytearray, position: int, correlation_id: int
) -> None:
    size, answered_id = struct.unpack_from(">ii", inbox, position)
    (error,) = _ERROR.unpack_from(inbox, position + exchange.error_offset)
    is_other = exchange.echoes_id and answered_id != correlation_id
    if size != exchange.response_size - 4 or is_other or error != wire.NO_ERROR:
        raise BadAnswer(
            f"produce {correlation_id}: answer of {size} bytes to request {answered_id} with error {error}"
        )


def produce_one_at_a_time(connection: socket.socket, exchange: wire.ProduceExchange, budget: Budget) -> Load:
    request, inbox = bytearray(exchange.request), bytearray(exchange.response_size)
    round_trips_us: list[float] = []
    clock, view = time.perf_counter_ns, memoryview(inbox)
    max_requests = max(1, budget.max_bytes // len(request))
    started = before = clock()
    deadline = started + int(budget.seconds * 1e9)
    while before < deadline and len(round_trips_us) < max_requests:
        correlation_id = len(round_trips_us)
        _ID.pack_into(request, wire.CORRELATION_OFFSET, correlation_id)
        connection.sendall(request)
        filled = 0
        while filled < len(inbox):
            received = connection.recv_into(view[filled:])
            if received == 0:
                raise BadAnswer("the broker closed the connection")
            filled += received
        after = clock()
        check_answer(exchange, inbox, 0, correlation_id)
        round_trips_us.append((after - before) / 1000)
        before = after
    return Load(len(round_trips_us), (before - started) / 1e9, round_trips_us)


def produce_pipelined(
    connection: socket.socket,
    exchange: wire.ProduceExchange,
    depth: int,
    budget: Budget,
    partition_count: int = 1,
) -> Load:
    """Keeps `depth` requests in flight, to the partitions in turn."""
    request_size, response_size = len(exchange.request), exchange.response_size
    block = bytearray(exchange.request * depth)
    inbox = bytearray(INBOX_BYTES)
    inbox_view, block_view = memoryview(inbox), memoryview(block)
    max_requests = max(depth, budget.max_bytes // request_size)
    sent = answered = filled = 0

    def send(count: int) -> None:
        nonlocal sent
        for slot in range(count):
            _ID.pack_into(block, slot * request_size + wire.CORRELATION_OFFSET, sent)
            if partition_count > 1:
                _ID.pack_into(block, slot * request_size + exchange.partition_offset, sent % partition_count)
            sent += 1
        connection.sendall(block_view[: count * request_size])

    started = time.perf_counter()
    deadline = started + budget.seconds
    send(depth)
    while answered < sent:
        received = connection.recv_into(inbox_view[filled:])
        if received == 0:
            raise BadAnswer("the broker closed the connection")
        filled += received
        complete, rest = divmod(filled, response_size)
        for index in range(complete):
            check_answer(exchange, inbox, index * response_size, answered + index)
        answered += complete
        if rest:
            inbox[:rest] = inbox[complete * response_size : filled]
        filled = rest
        if complete and sent < max_requests and time.perf_counter() < deadline:
            send(complete)
    return Load(answered, time.perf_counter() - started, [])


def produce_over_connections(
    connections: list[socket.socket], exchange: wire.ProduceExchange, budget: Budget
) -> Load:
    """One request at a time on each of many connections, driven by epoll."""
    poller, request = select.epoll(), bytearray(exchange.request)
    by_descriptor = {connection.fileno(): connection for connection in connections}
    inboxes = {descriptor: bytearray(exchange.response_size) for descriptor in by_descriptor}
    filled = dict.fromkeys(by_descriptor, 0)
    answered, in_flight = 0, len(connections)
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    started = time.perf_counter()
    deadline = started + budget.seconds
    for connection in connections:
        connection.sendall(request)
    try:
        while in_flight:
            ready = poller.poll(ANSWER_TIMEOUT_SECONDS)
            if not ready:
                raise BadAnswer(f"no answer within {ANSWER_TIMEOUT_SECONDS} s")
            goes_on = time.perf_counter() < deadline
            for descriptor, _ in ready:
                connection = by_descriptor[descriptor]
                inbox = inboxes[descriptor]
                received = connection.recv_into(memoryview(inbox)[filled[descriptor] :])
                filled[descriptor] += received
                if received == 0:
                    raise BadAnswer("the broker closed a connection")
                if filled[descriptor] < len(inbox):
                    continue
                check_answer(exchange, inbox, 0, 0)
                filled[descriptor] = 0
                answered += 1
                if goes_on:
                    connection.sendall(request)
                else:
                    in_flight -= 1
    finally:
        poller.close()
    return Load(answered, time.perf_counter() - started, [])
