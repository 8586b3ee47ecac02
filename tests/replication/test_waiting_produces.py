"""Produces that wait for the high watermark, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.partition import Partition
from klamm.replication.waiting_produces import SWEEP_INTERVAL_S, WaitingProduces
from tests.replication.partitions import BROKER_EPOCH, append, commit, led_by, open_partition


class Produce:
    """A produce that notes what it is told."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.deadline_s = 0.0
        self.is_open = True
        self.told: list[ErrorCode | None] = []

    def acknowledge(self, error: KafkaError | None) -> None:
        self.told.append(None if error is None else error.code)
        self.is_open = False


class Waiting:
    """Partitions with three replicas, and a clock with at most one timer."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.now_s = 1000.0
        self.timer: tuple[float, Callable[[], None]] | None = None
        self.produces = WaitingProduces(lambda: self.now_s, self._call_later)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert self.timer is None, "one timer for all"
        self.timer = (self.now_s + delay_s, callback)

    def advance(self, by_s: float) -> None:
        end_s = self.now_s + by_s
        while self.timer is not None and self.timer[0] <= end_s:
            self.now_s, callback = self.timer
            self.timer = None
            callback()
        self.now_s = end_s

    def partition(self, index: int = 0) -> Partition:
        return open_partition(self._directory, "orders", index, state=led_by(1, 1, 2, 3))

    def produce(self, partition: Partition, timeout_ms: int = 30_000) -> Produce:
        produce = Produce(append(partition, b"value").last_offset + 1)
        self.produces.add(partition, produce, timeout_ms)
        return produce


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path)


def test_the_high_watermark_acknowledges_what_it_has_reached(waiting: Waiting) -> None:
    partition = waiting.partition()
    produces = [waiting.produce(partition) for _ in range(5)]
    commit(partition, 3)
    assert [each.told for each in produces] == [[None]] * 3 + [[]] * 2
    commit(partition, 5)
    assert [each.told for each in produces] == [[None]] * 5


def test_too_few_replicas_in_sync_after_the_append(waiting: Waiting) -> None:
    """Nothing is committed by too few, so it is not acknowledged either."""
    partition = waiting.partition()
    partition.set_min_insync_replicas(2)
    first, second = waiting.produce(partition, 1000), waiting.produce(partition)
    partition.take_over(led_by(1, 1, 2, 3, isr=(1,))._replace(partition_epoch=1))
    waiting.advance(1 + SWEEP_INTERVAL_S)
    assert (first.told, second.told) == ([ErrorCode.REQUEST_TIMED_OUT], [])
    assert partition.high_watermark == 0
    partition.take_over(led_by(1, 1, 2, 3, isr=(1, 3))._replace(partition_epoch=2))
    assert second.told == []
    partition.on_follower_fetch(3, BROKER_EPOCH, 2, 0)
    assert second.told == [None]


def test_time_counts_and_one_timer_is_enough(waiting: Waiting) -> None:
    partitions = [waiting.partition(index) for index in range(3)]
    late = [waiting.produce(partition, 1000) for partition in partitions]
    later = waiting.produce(partitions[0], 5000)
    waiting.advance(0.99)
    assert [each.told for each in late] == [[], [], []]
    waiting.advance(0.01 + SWEEP_INTERVAL_S)
    assert [each.told for each in late] == [[ErrorCode.REQUEST_TIMED_OUT]] * 3
    assert later.told == []
    commit(partitions[0], 2)
    assert later.told == [None] and late[0].told == [ErrorCode.REQUEST_TIMED_OUT]
    waiting.advance(SWEEP_INTERVAL_S)
    assert waiting.timer is None, "nothing runs while nothing waits"
    again = waiting.produce(partitions[1], 0)
    waiting.advance(SWEEP_INTERVAL_S)
    assert again.told == [ErrorCode.REQUEST_TIMED_OUT]


def test_produces_of_clients_that_left_are_forgotten(waiting: Waiting) -> None:
    partition = waiting.partition()
    left, staying = waiting.produce(partition), waiting.produce(partition)
    left.is_open = False
    waiting.advance(SWEEP_INTERVAL_S)
    assert partition.waiting_produces is not None and len(partition.waiting_produces) == 1
    staying.is_open = False
    waiting.advance(SWEEP_INTERVAL_S)
    assert len(partition.waiting_produces) == 0 and waiting.timer is None
    assert left.told == staying.told == []


@pytest.mark.parametrize(
    ("lose", "code"),
    [
        (lambda partition: partition.take_offline(), ErrorCode.KAFKA_STORAGE_ERROR),
        (
            lambda partition: partition.take_over(led_by(2, 1, 2, 3, epoch=1)),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
        (
            lambda partition: partition.take_over(led_by(-1, 1, 2, 3, epoch=1)),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
        (lambda partition: partition.resign(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
    ids=["offline", "led by another broker", "led by nobody", "taken for dead"],
)
def test_a_lost_partition_refuses_all(
    waiting: Waiting, lose: Callable[[Partition], None], code: ErrorCode
) -> None:
    partition = waiting.partition()
    produces = [waiting.produce(partition) for _ in range(3)]
    commit(partition, 1)
    lose(partition)
    assert [each.told for each in produces] == [[None], [code], [code]]


def test_the_only_replica_that_is_left_commits_what_it_has(waiting: Waiting) -> None:
    partition = waiting.partition()
    produce = waiting.produce(partition)
    partition.take_over(led_by(1, 1, epoch=1))
    assert (partition.high_watermark, produce.told) == (1, [None])


def test_a_batch_that_is_sent_again_waits_too(waiting: Waiting) -> None:
    partition = waiting.partition()
    first, second = waiting.produce(partition), waiting.produce(partition)
    again = Produce(first.end_offset)
    waiting.produces.add(partition, again, 1000)
    commit(partition, 1)
    assert (first.told, again.told) == ([None], [])
    commit(partition, 2)
    assert (second.told, again.told) == ([None], [None])
