"""Request bytes for the raw-socket load, made beforehand, so that making them is not measured.

Only the few versions the load sends are here. They are written with `struct` alone, apart from the CRC: the
bench must not share a codec with the broker it measures. Every response the load reads has a fixed layout for
a given topic name, so a reader checks a frame by looking at fixed positions.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

CLIENT_ID = b"bench"
CORRELATION_OFFSET = 8  # behind the frame's size, the API key and the version
PRODUCE_VERSION = 10  # what librdkafka sends
METADATA_VERSION = 1
FETCH_VERSION = 11  # the last one without compact fields; topics by name
NO_ERROR = 0
TIMEOUT_MS = 30_000


class ProduceExchange(NamedTuple):
    """One produce request and where to look in its answer."""

    request: bytes
    partition_offset: int
    response_size: int
    error_offset: int
    record_count: int
    batch_size: int
    echoes_id: bool = True  # the machine's bare server repeats one answer and cannot


class PartitionState(NamedTuple):
    """What a broker says of a partition."""

    index: int
    leader: int
    isr: tuple[int, ...]


class FetchLayout(NamedTuple):
    """Where the fields of a one-partition fetch answer lie, counted from the start of the frame."""

    error_offset: int
    records_size_offset: int
    header_size: int


def build_batch(record_count: int, value_size: int, total_size: int | None = None) -> bytes:
    """An uncompressed batch of random values; the last one stretches so that `total_size` is met exactly."""
    now_ms = int(time.time() * 1000)
    records = b"".join(_record(index, os.urandom(value_size)) for index in range(record_count - 1))
    last_size = value_size
    if total_size is not None:
        last_size = (
            total_size - 61 - len(records) - (len(_record(record_count - 1, bytes(value_size))) - value_size)
        )
    records += _record(record_count - 1, os.urandom(last_size))
    checked = struct.pack(
        ">hiqqqhii", 0, record_count - 1, now_ms, now_ms, -1, -1, -1, record_count
    ) + records  # fmt: skip
    batch = struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked
    assert total_size is None or len(batch) == total_size, (len(batch), total_size)
    return batch


def produce_exchange(topic: str, batch: bytes, record_count: int, acks: int = 1) -> ProduceExchange:
    name = _compact_bytes(topic.encode())
    before = struct.pack(">hhi", 0, PRODUCE_VERSION, 0) + _string(CLIENT_ID) + b"\x00"
    before += b"\x00" + struct.pack(">hi", acks, TIMEOUT_MS) + b"\x02" + name + b"\x02"
    body = before + struct.pack(">i", 0) + _compact_bytes(batch) + b"\x00\x00\x00"
    # Behind the frame's size: correlation id, header tags, one topic, its name, one partition, its index.
    error_offset = 4 + 4 + 1 + 1 + len(name) + 1 + 4
    # Error, three int64, no record errors, no message, tags twice, throttle time, tags.
    response_size = error_offset + 2 + 24 + 1 + 1 + 1 + 1 + 4 + 1
    return ProduceExchange(
        _framed(body), 4 + len(before), response_size, error_offset, record_count, len(batch)
    )  # fmt: skip


def fetch_request(
    topic: str, offset: int, max_bytes: int, partition: int = 0, max_wait_ms: int = 5_000
) -> bytes:
    body = struct.pack(">hhi", 1, FETCH_VERSION, 0) + _string(CLIENT_ID)
    body += struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes, 0, 0, -1)
    body += struct.pack(">i", 1) + _string(topic.encode()) + struct.pack(">i", 1)
    body += struct.pack(">iiqqi", partition, -1, offset, -1, max_bytes)
    return _framed(body + struct.pack(">i", 0) + _string(b""))


def fetch_offset_position(request_size: int) -> int:
    """Where the fetch offset lies in a request of `fetch_request`: the tail behind it has a fixed size."""
    return request_size - (8 + 8 + 4 + 4 + 2)


def fetch_layout(topic: str) -> FetchLayout:
    # Size, correlation id, throttle, error, session, topic count, name, partition count, partition index.
    error_offset = 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    records_size_offset = error_offset + 2 + 24 + 4 + 4
    return FetchLayout(error_offset, records_size_offset, records_size_offset + 4)


def create_topic_request(
    topic: str,
    partition_count: int,
    configs: dict[str, str],
    replication_factor: int = 1,
    assignment: Sequence[Sequence[int]] = (),
) -> bytes:
    """`assignment` names the replicas of each partition; without it the broker chooses them."""
    body = struct.pack(">hhi", 19, 4, 0) + _string(CLIENT_ID) + struct.pack(">i", 1)
    counts = (-1, -1) if assignment else (partition_count, replication_factor)
    body += _string(topic.encode()) + struct.pack(">ihi", *counts, len(assignment))
    for partition, replicas in enumerate(assignment):
        body += struct.pack(f">ii{len(replicas)}i", partition, len(replicas), *replicas)
    body += struct.pack(">i", len(configs))
    for key, value in configs.items():
        body += _string(key.encode()) + _string(value.encode())
    return _framed(body + struct.pack(">ib", TIMEOUT_MS, 0))


def delete_topic_request(topic: str) -> bytes:
    body = struct.pack(">hhi", 20, 3, 0) + _string(CLIENT_ID) + struct.pack(">i", 1)
    return _framed(body + _string(topic.encode()) + struct.pack(">i", TIMEOUT_MS))


def metadata_request(topic: str) -> bytes:
    body = struct.pack(">hhi", 3, METADATA_VERSION, 0) + _string(CLIENT_ID) + struct.pack(">i", 1)
    return _framed(body + _string(topic.encode()))


def read_metadata(answer: bytes) -> list[PartitionState]:
    """The partitions of the one topic in an answer (frame without its size); none if there is an error."""
    at = 4

    def take(layout: str) -> tuple[int, ...]:
        nonlocal at
        fields = struct.unpack_from(">" + layout, answer, at)
        at += struct.calcsize(">" + layout)
        return fields

    def take_ids() -> tuple[int, ...]:
        (count,) = take("i")
        return take(f"{count}i")

    (broker_count,) = take("i")
    for _ in range(broker_count):
        _, host_size = take("ih")
        at += host_size
        _, rack_size = take("ih")
        at += max(rack_size, 0)
    _, _, error, name_size = take("iihh")
    if error != NO_ERROR:
        return []
    at += name_size
    _, partition_count = take("?i")
    states = []
    for _ in range(partition_count):
        _, index, leader = take("hii")
        take_ids()
        states.append(PartitionState(index, leader, take_ids()))
    return states


def topic_error(answer: bytes) -> int:
    """The error code of a one-topic answer to the two requests above (frame without its size)."""
    (name_size,) = struct.unpack_from(">h", answer, 12)
    (code,) = struct.unpack_from(">h", answer, 14 + name_size)
    return int(code)


def _record(offset_delta: int, value: bytes) -> bytes:
    body = b"\x00\x00" + _varint(offset_delta) + b"\x01" + _varint(len(value)) + value + b"\x00"
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    return _unsigned_varint(value << 1)  # zigzag of a value that is never negative here


def _unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact_bytes(value: bytes) -> bytes:
    return _unsigned_varint(len(value) + 1) + value


def _string(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
