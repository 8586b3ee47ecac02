"""`__consumer_offsets` as the group coordinator sees it (`LogPort`), over the partitions of this broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeAlias

from klamm.apis.broker import Clock
from klamm.cluster.service import ClusterService
from klamm.model.errors import ErrorCode, KafkaError
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

    def leader_epoch(self, partition: int) -> int | None:
        led = self._partitions.find(TOPIC, partition)
        return None if led is None or led.is_offline or led.leader is None else led.leader_epoch

    def _led(self, partition: int, leader_epoch: int) -> Partition:
        led = self._partitions.led(TOPIC, partition)
        led.check_online()
        if led.leader_epoch != leader_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{TOPIC}-{partition} is not led here in leader epoch {leader_epoch}",
            )
        return led

    def append(
        self, partition: int, leader_epoch: int, records: list[tuple[bytes, bytes | None]]
    ) -> Awaitable[None]:
        """Append as one batch, with acks=all; what is returned is done when the batch is committed."""
        led = self._led(partition, leader_epoch)
        led.check_enough_replicas()
        now_ms = self._clock.now_ms()
        batch = build_batch(number_records(records, now_ms))
        end_offset = led.append(memoryview(batch), parse_header(batch), now_ms).last_offset + 1
        return self._until_committed(led, leader_epoch, end_offset, must_flush=led.log.needs_flush(now_ms))

    async def until_committed(self, partition: int, leader_epoch: int) -> None:
        """Wait until all that is in the log now is committed."""
        led = self._led(partition, leader_epoch)
        await self._until_committed(led, leader_epoch, led.log.log_end_offset, must_flush=False)

    async def _until_committed(
        self, led: Partition, leader_epoch: int, end_offset: int, *, must_flush: bool
    ) -> None:
        if must_flush:
            await self._partitions.flusher.flushed(led.log)
            self._led(led.index, leader_epoch)  # it may have been lost meanwhile
        if led.high_watermark < end_offset:
            progress = _Progress()
            try:
                while led.high_watermark < end_offset:
                    led.watch(progress)
                    await progress.next()
                    self._led(led.index, leader_epoch)
            finally:
                led.unwatch(progress)

    async def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[list[KeyAndValue]]:
        """The keys and values of all committed records of the partition, oldest first, in pieces."""
        led = self._led(partition, leader_epoch)
        offset = led.log.log_start_offset
        while offset < led.high_watermark:
            records, offset = await self._partitions.run_in_thread(_read_some, led, offset)
            self._led(partition, leader_epoch)
            yield records


class _Progress:
    """Waits until the high watermark of a partition, or the partition itself, changes."""

    def __init__(self) -> None:
        self._has_changed = asyncio.Event()

    def on_high_watermark(self) -> None:
        """That is the progress which it watches."""

    def on_progress(self, _byte_count: int) -> None:
        self._has_changed.set()

    async def next(self) -> None:
        await self._has_changed.wait()
        self._has_changed.clear()


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
