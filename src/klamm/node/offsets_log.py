"""`__consumer_offsets` as the group coordinator sees it: append records, replay them at start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

from klamm.apis.broker import Clock
from klamm.cluster.service import ClusterService
from klamm.records.batch import parse_header
from klamm.records.builder import build_batch, number_records
from klamm.records.decoding import decode_records, open_payload
from klamm.replication.partition import Partition
from klamm.replication.partitions import Partitions
from klamm.storage.segments.scanning import iter_batches

TOPIC = "__consumer_offsets"

KeyAndValue: TypeAlias = tuple[bytes | None, bytes | None]

READ_BYTES = 4 * 1024 * 1024
"""Replayed at a time, so that a large partition does not have to fit in memory."""


class OffsetsLog:
    def __init__(self, cluster: ClusterService, partitions: Partitions, clock: Clock) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._clock = clock

    @property
    def partition_count(self) -> int:
        topic = self._cluster.image.topics.get(TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def is_leader(self, partition: int) -> bool:
        return self._partitions.find(TOPIC, partition) is not None

    async def append(self, partition: int, records: list[tuple[bytes, bytes | None]]) -> None:
        """Append as one batch; done when it is committed."""
        now_ms = self._clock.now_ms()
        batch = build_batch(number_records(records, now_ms))
        log = self._partitions.get(TOPIC, partition)
        log.append(memoryview(batch), parse_header(batch), now_ms)
        if log.log.needs_flush(now_ms):
            await self._partitions.flusher.flush(log.log)

    async def read_all(self, partition: int) -> AsyncIterator[list[KeyAndValue]]:
        """The keys and values of all records of the partition, oldest first, in pieces."""
        source = self._partitions.get(TOPIC, partition)
        offset = source.log.log_start_offset
        while offset < source.high_watermark:
            records, offset = await self._partitions.run_in_thread(_read_some, source, offset)
            yield records


def _read_some(partition: Partition, offset: int) -> tuple[list[KeyAndValue], int]:
    """Keys and values from `offset` on, and the offset behind them."""
    piece = partition.read(offset, READ_BYTES, must_return_one=True, may_block=True)
    if piece is None:
        return [], partition.high_watermark
    records: list[KeyAndValue] = []
    next_offset = offset
    for _, header, batch in iter_batches(piece.file.fd, piece.position, piece.position + piece.length):
        next_offset = header.last_offset + 1
        if not header.is_control:
            decoded = decode_records(header, open_payload(batch, header=header))
            fields = zip(decoded.offsets, decoded.keys, decoded.values, strict=True)
            records += ((key, value) for each, key, value in fields if each >= offset)
    return records, next_offset
