"""The batches that wait for one partition, and the partitions of one topic. A core.

Batches leave a queue in order; the last one may still be open. A batch that must be sent again is put back
before all later batches.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from klamm.client.producer.batches import Batch
from klamm.client.producer.partitioners import StickyPartition
from klamm.client.producer.sequences import PartitionSequences
from klamm.client.producer.template import ProduceTemplate
from klamm.records.decoding import Headers


class PartitionQueue:
    """The batches that wait for one partition, and the number that is under way."""

    __slots__ = (
        "index",
        "next_order",
        "on_wire",
        "open_batch",
        "sequences",
        "template",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, index: int, sequences: PartitionSequences | None) -> None:
        self.topic = topic
        self.index = index
        self.waiting: deque[Batch] = deque()
        self.open_batch: Batch | None = None
        """The last of `waiting`, while it takes records."""
        self.on_wire = 0
        self.next_order = 0
        self.sequences = sequences
        """None without idempotence."""
        self.template: ProduceTemplate | None = None
        """Makes the requests that carry one small batch; None before the first such request."""

    def add(self, batch: Batch) -> None:
        """Add a new batch, open or closed, after all others."""
        self.next_order += 1
        self.waiting.append(batch)
        self.open_batch = batch if batch.is_open else None

    def close_open(self) -> Batch | None:
        """Close the open batch and return it; None if there is none."""
        batch, self.open_batch = self.open_batch, None
        if batch is not None:
            batch.close()
        return batch

    def take(self) -> Batch:
        """Take the first batch out, to be sent."""
        batch = self.waiting.popleft()
        if batch is self.open_batch:
            self.close_open()
        return batch

    def put_back(self, batch: Batch) -> None:
        """Put back a batch that is to be sent again, before all later batches."""
        place = 0
        for other in self.waiting:
            if other.order > batch.order:
                break
            place += 1
        self.waiting.insert(place, batch)

    def remove(self, batch: Batch) -> None:
        if batch is self.open_batch:
            self.close_open()
        self.waiting.remove(batch)


UnplacedRecord: TypeAlias = tuple[bytes | None, bytes | None, int, Headers | None, int | None]
"""Key, value, timestamp, headers, and the partition that the user named."""


class UnplacedBatch(Batch):
    """Records whose partition cannot be chosen yet; `wanted` has the partitions that the user named, or
    None."""

    __slots__ = ("wanted",)

    def __init__(self, topic: str, number: int, created: float, deadline: float) -> None:
        super().__init__(topic, -1, (), number, created, deadline)
        self.wanted: list[int | None] = []

    def records(self) -> list[UnplacedRecord]:
        count = len(self.values)
        keys = self.keys or [None] * count
        headers: list[Headers] | list[None] = self.headers or [None] * count
        return list(zip(keys, self.values, self.timestamps, headers, self.wanted, strict=True))


class TopicBuffer:
    """The queues of one topic, by partition; none until metadata say how many partitions there are."""

    __slots__ = ("batches_seen", "has_leader", "name", "queues", "sticky", "unplaced", "used_at")

    def __init__(self, name: str, switch_bytes: int) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.has_leader: list[bool] = []
        self.unplaced: deque[UnplacedBatch] = deque()
        self.sticky = StickyPartition(switch_bytes, 0)
        self.batches_seen = -1
        """How many batches had been begun at the latest call of `is_unused`."""
        self.used_at = 0.0

    def is_unused(self, now: float, idle_seconds: float) -> bool:
        """True if nothing waits or is under way, and no batch was begun for `idle_seconds`, as far as earlier
        calls could see."""
        batches = sum(queue.next_order for queue in self.queues)
        is_busy = bool(self.unplaced) or any(queue.waiting or queue.on_wire for queue in self.queues)
        if is_busy or batches != self.batches_seen:
            self.batches_seen = batches
            self.used_at = now
        return not is_busy and now - self.used_at >= idle_seconds

    def rotation(self) -> list[int]:
        """The partitions that records without a key go to in turn, beginning with the sticky one."""
        count = len(self.queues)
        around = [(self.sticky.current + step) % count for step in range(count)]
        return [index for index in around if self.has_leader[index]] or around

    def switch_sticky(self) -> None:
        self.sticky.switch(self.has_leader, [len(queue.waiting) for queue in self.queues])
