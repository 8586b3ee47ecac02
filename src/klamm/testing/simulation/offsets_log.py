"""`__consumer_offsets` as the group coordinator of a simulated broker sees it (`groups/log_port.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from klamm.cluster.image import OFFSETS_TOPIC
from klamm.groups.records import KeyValue
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.testing.simulation.replica import Replica
from klamm.testing.simulation.topics import INDEXES, PLACES

_READ_AT_ONCE = 20
_READ_S = 0.005
"""How long a disk takes to read as many batches."""

PARTITION_COUNT = sum(place.topic == OFFSETS_TOPIC for place in PLACES)


def place_of(partition: int) -> int:
    """The place in `PLACES` of a partition of __consumer_offsets."""
    return INDEXES[TopicPartition(OFFSETS_TOPIC, partition)]


class SimulatedOffsetsLog:
    partition_count = PARTITION_COUNT

    def __init__(self, replicas: Sequence[Replica], on_append: Callable[[int], None]) -> None:
        """`on_append` is told the place of a partition whose log has grown."""
        self._replicas = replicas
        self._on_append = on_append

    def leader_epoch(self, partition: int) -> int | None:
        replica = self._replicas[place_of(partition)]
        return None if replica.leader is None else replica.leader_epoch

    def _led(self, partition: int, leader_epoch: int) -> Replica:
        if self.leader_epoch(partition) != leader_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{OFFSETS_TOPIC}-{partition} is not led here in leader epoch {leader_epoch}",
            )
        return self._replicas[place_of(partition)]

    def append(self, partition: int, leader_epoch: int, records: list[KeyValue]) -> Awaitable[None]:
        replica = self._led(partition, leader_epoch)
        end_offset = replica.append_group_records(tuple(records))
        self._on_append(replica.index)
        return self._until(partition, leader_epoch, end_offset)

    async def until_committed(self, partition: int, leader_epoch: int) -> None:
        replica = self._led(partition, leader_epoch)
        await self._until(partition, leader_epoch, replica.log.log_end_offset)

    async def _until(self, partition: int, leader_epoch: int, end_offset: int) -> None:
        replica = self._replicas[place_of(partition)]
        while replica.log.high_watermark < end_offset:
            await replica.changed()
            self._led(partition, leader_epoch)

    def read_all(
        self, partition: int, leader_epoch: int
    ) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        return _Reading(self._led, partition, leader_epoch)


class _Reading:
    """Not an async generator: those are closed by the garbage collector, at a time that no seed fixes."""

    def __init__(self, led: Callable[[int, int], Replica], partition: int, leader_epoch: int) -> None:
        self._led = led
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._offset = 0

    def __aiter__(self) -> _Reading:
        return self

    async def __anext__(self) -> Sequence[tuple[bytes | None, bytes | None]]:
        log = self._led(self._partition, self._leader_epoch).log
        end_offset = min(self._offset + _READ_AT_ONCE, log.high_watermark)
        if self._offset >= end_offset:
            raise StopAsyncIteration
        batches = log.records[self._offset : end_offset]
        self._offset = end_offset
        await asyncio.sleep(_READ_S)
        self._led(self._partition, self._leader_epoch)
        return [pair for batch in batches for pair in batch.group_records]
