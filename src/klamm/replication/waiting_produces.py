"""Requests that wait until other replicas have followed: produces with acks=all, and deletions of records.

A produce waits until the high watermark reaches the end of its batch, a deletion until the log start of all
living replicas, the low watermark, has reached its offset. Both wait in the same way; what follows says it of
produces.

Each partition has a queue of them. The rising high watermark drains the queue; lost leadership, a deleted or
an offline partition empties it with an error. One timer of the broker looks for produces whose `timeout_ms`
is over, and for those whose client has left. It runs only while something waits.

Invariants: a produce in a queue is told its outcome exactly once. It is acknowledged only if the high
watermark has reached its end offset. It is told of the time-out at most `SWEEP_INTERVAL_S` late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from klamm.model.errors import ErrorCode, KafkaError

SWEEP_INTERVAL_S = 0.1
"""Between two looks at all produces that wait: seldom enough to cost nothing, often enough against time-outs
of many seconds."""


class WaitingProduce(Protocol):
    """One batch that is in the log and not committed yet."""

    end_offset: int
    """The offset behind its last record."""
    deadline_s: float
    """Set by `WaitingProduces.add`."""

    @property
    def is_open(self) -> bool:
        """False when nobody waits for the outcome any longer."""

    def acknowledge(self, error: KafkaError | None) -> None:
        """The batch is committed, or its producer is told `error`."""


class ProduceQueue:
    """The produces that wait for one partition, in the order of their appends.

    A batch that its producer sends again ends at a lower offset than the batches before it in the queue, and
    is acknowledged with them.
    """

    __slots__ = ("_look", "_timed_out", "_waiting")

    def __init__(
        self,
        timed_out: str = "the batch is in the leader's log, but not enough replicas have fetched it in time",
        look: Callable[[], None] | None = None,
    ) -> None:
        """`look` drains the queue of what nobody tells of; it is called by the timer."""
        self._waiting: deque[WaitingProduce] = deque()
        self._timed_out = timed_out
        self._look = look

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, produce: WaitingProduce) -> None:
        self._waiting.append(produce)

    def drain(self, high_watermark: int) -> None:
        """Acknowledge what is committed."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= high_watermark:
            waiting.popleft().acknowledge(None)

    def refuse_all(self, error: KafkaError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for produce in waiting:
            produce.acknowledge(error)

    def sweep(self, now_s: float) -> None:
        """Refuse what has waited for too long, and forget those that nobody waits for."""
        if self._look is not None:
            self._look()
        if all(now_s < produce.deadline_s and produce.is_open for produce in self._waiting):
            return
        before = self._waiting
        self._waiting = deque(each for each in before if now_s < each.deadline_s and each.is_open)
        for produce in before:
            if produce.is_open and now_s >= produce.deadline_s:
                produce.acknowledge(KafkaError(ErrorCode.REQUEST_TIMED_OUT, self._timed_out))


class WaitsForReplicas(Protocol):
    """A partition."""

    waiting_produces: ProduceQueue | None


class WaitingProduces:
    """The queues of all partitions of a broker that are not empty, and the timer that they share."""

    def __init__(
        self, now_s: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._now_s = now_s
        self._call_later = call_later
        self._queues: set[ProduceQueue] = set()
        self._is_scheduled = False

    def add(self, partition: WaitsForReplicas, produce: WaitingProduce, timeout_ms: int) -> None:
        """Have `produce` told when `partition` has committed it, or that it has waited for `timeout_ms`."""
        queue = partition.waiting_produces
        if queue is None:
            queue = partition.waiting_produces = ProduceQueue()
        self.add_to(queue, produce, timeout_ms)

    def add_to(self, queue: ProduceQueue, waiting: WaitingProduce, timeout_ms: int) -> None:
        """Have `waiting` told when `queue` is drained up to its offset, or that it has waited too long."""
        waiting.deadline_s = self._now_s() + timeout_ms / 1000
        queue.append(waiting)
        self._queues.add(queue)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_later(SWEEP_INTERVAL_S, self._sweep)

    def _sweep(self) -> None:
        now_s = self._now_s()
        for queue in tuple(self._queues):
            queue.sweep(now_s)
            if not len(queue):
                self._queues.discard(queue)
        self._is_scheduled = bool(self._queues)
        if self._is_scheduled:
            self._call_later(SWEEP_INTERVAL_S, self._sweep)
