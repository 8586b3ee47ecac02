"""Which partitions have a batch that may be sent now, and when others will. A core.

A queue is considered whenever something happened to it: a batch was begun, closed or put back, or a time
came. It is then ready, or due at a time, or waits for an answer or a producer id, after which it is
considered again. So a pass of the sender looks only at the queues that are ready, not at every partition.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from klamm.client.producer.batches import Batch
from klamm.client.producer.queues import PartitionQueue

LeaderOf: TypeAlias = Callable[[str, int], tuple[int, int] | None]
"""Topic and partition in; node id and epoch of the leader out, if one is known."""


class Schedule:
    """The queues that are ready, first come first, and the times at which others are to be looked at."""

    def __init__(self, linger: float, max_in_flight: int) -> None:
        self._linger = linger
        self._max_in_flight = max_in_flight
        self._ready: dict[PartitionQueue, None] = {}
        self._due: list[tuple[float, int, PartitionQueue]] = []
        self._entries = 0
        self.leaderless: set[str] = set()
        """Topics for which the latest `drain` found ready batches of partitions without a known leader."""
        self._without_id: set[PartitionQueue] = set()
        """Queues that wait for a producer id."""

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def lacks_id(self) -> bool:
        """True if some queue waits for a producer id."""
        return bool(self._without_id)

    def id_arrived(self, now: float) -> None:
        """There is a producer id now."""
        waiting, self._without_id = self._without_id, set()
        for queue in waiting:
            self.consider(queue, now)

    def ready_heads(self, node: int, leader_of: LeaderOf) -> list[Batch]:
        """The batches that would be sent next to a broker."""
        heads = []
        for queue in self._ready:
            leader = leader_of(queue.topic, queue.index)
            if leader is not None and leader[0] == node:
                heads.append(queue.waiting[0])
        return heads

    def next_due(self) -> float:
        """The time at which `tick` is to be called; infinite if no queue is due."""
        return self._due[0][0] if self._due else inf

    def consider(self, queue: PartitionQueue, now: float) -> None:
        """Find out whether a queue is ready or due, after something happened to it."""
        if not queue.waiting:
            self._ready.pop(queue, None)
            return
        batch = queue.waiting[0]
        at = batch.retry_at
        if batch.is_open:
            at = max(at, batch.created + self._linger)
        if at > now:
            self._ready.pop(queue, None)
            self._entries += 1
            heappush(self._due, (at, self._entries, queue))
        elif self._may_send(queue, batch):
            self._ready[queue] = None
        else:
            self._ready.pop(queue, None)  # considered again when an answer, or an id, comes

    def tick(self, now: float) -> None:
        """Consider the queues that are due by now."""
        due = self._due
        while due and due[0][0] <= now:
            self.consider(heappop(due)[2], now)

    def forget(self, queue: PartitionQueue) -> None:
        self._ready.pop(queue, None)

    def sole_ready(self) -> PartitionQueue | None:
        """The queue that is ready, if it is the only one and no other waits for a producer id."""
        if len(self._ready) != 1 or self._without_id:
            return None
        return next(iter(self._ready))

    def take_ready(self, queue: PartitionQueue, now: float) -> Batch | None:
        """The first batch of a ready queue, as `drain` takes it; None if it may not be sent after all."""
        if not self._may_send(queue, queue.waiting[0]):
            return None
        batch = self._take(queue)
        del self._ready[queue]
        if queue.waiting:
            self.consider(queue, now)
        return batch

    def drain(
        self,
        now: float,
        leader_of: LeaderOf,
        may_take: Callable[[int], bool],
        max_request_bytes: int,
    ) -> dict[int, list[Batch]]:
        """Take the batches of one request for each broker that may take one: one batch per partition.

        They get sequence numbers, and count as under way.
        """
        self.leaderless = set()
        taken: dict[int, list[Batch]] = {}
        room: dict[int, int] = {}
        for queue in list(self._ready):
            leader = leader_of(queue.topic, queue.index)
            if leader is None:
                self.leaderless.add(queue.topic)
                continue
            node = leader[0]
            if node not in room:
                room[node] = max_request_bytes if may_take(node) else 0
            batch = queue.waiting[0]
            # A batch larger than a whole request still goes, alone.
            if room[node] < batch.size and (not room[node] or node in taken):
                continue
            if not self._may_send(queue, batch):
                del self._ready[queue]
                continue
            room[node] -= min(batch.size, room[node])
            taken.setdefault(node, []).append(self._take(queue))
            # Behind the others, so that all get their turn.
            del self._ready[queue]
            self.consider(queue, now)
        return taken

    def _take(self, queue: PartitionQueue) -> Batch:
        batch = queue.take()
        if queue.sequences is not None:
            queue.sequences.number(batch)
        batch.attempts += 1
        batch.on_wire = True
        queue.on_wire += 1
        return batch

    def _may_send(self, queue: PartitionQueue, batch: Batch) -> bool:
        if queue.on_wire >= self._max_in_flight:
            return False
        sequences = queue.sequences
        if sequences is None:
            return True
        if sequences.may_send(batch, queue.on_wire):
            return True
        if sequences.lacks_id:
            self._without_id.add(queue)
        return False
