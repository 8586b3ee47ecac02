"""Proof that partitions are led: each takes a record with acks=all, so all its replicas have fetched it."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence

from bench import load, wire
from bench.cluster.brokers import Cluster
from bench.peers import READY_TIMEOUT_SECONDS, BrokerFailed
from bench.raw_produce import batch_of

ACKS_ALL = -1
AT_ONCE = 100  # requests in flight on one connection


def take_a_record_each(cluster: Cluster, topic: str, states: Sequence[wire.PartitionState]) -> None:
    exchange = wire.produce_exchange(topic, batch_of(1, 100), 1, ACKS_ALL)
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    for leader in sorted({state.leader for state in states}):
        left = [state.index for state in states if state.leader == leader]
        with load.connect(cluster.ports[leader]) as connection:
            while left:
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"{len(left)} partitions of {cluster.name} take no record")
                taken = set(_taken(connection, exchange, left[:AT_ONCE]))
                # Those that were refused are asked again, behind the others.
                left = left[AT_ONCE:] + [index for index in left[:AT_ONCE] if index not in taken]


def _taken(
    connection: socket.socket, exchange: wire.ProduceExchange, indexes: Sequence[int]
) -> Iterator[int]:
    """Produce a record to each of these partitions; yields those that took it."""
    requests = bytearray(exchange.request * len(indexes))
    for place, index in enumerate(indexes):
        struct.pack_into(">i", requests, place * len(exchange.request) + exchange.partition_offset, index)
    connection.sendall(requests)
    for index in indexes:
        (size,) = struct.unpack(">i", load.receive_exactly(connection, 4))
        answer = load.receive_exactly(connection, size)
        if struct.unpack_from(">h", answer, exchange.error_offset - 4) == (wire.NO_ERROR,):
            yield index
