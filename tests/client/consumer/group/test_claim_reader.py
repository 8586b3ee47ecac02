"""What a claim hands out and what of it is finished, and how partitions come back after a rebalance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.results import CommittedOffset, Record, TopicPartition
from tests.client.consumer.fake_cluster import FakeCluster, FakeConsumer, NoLock

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def consumer_of(batches: list[int], gap: int = 0) -> FakeConsumer:
    """A consumer that has fetched batches of these sizes."""
    cluster = FakeCluster(nodes=1)
    cluster.create("a", 2)
    consumer = FakeConsumer(cluster)
    consumer.assign(A0, A1)
    first = 0
    for size in batches:
        cluster.logs[A0].append(numbered(first, size), gap=gap)
        first += size
    consumer.fetch_all()
    return consumer


def reader_of(consumer: FakeConsumer, limit: int = 4) -> ClaimReader:
    return ClaimReader(consumer.records, A0, limit)


def next_of(reader: ClaimReader) -> int | None:
    """What a worker's loop does for its next record; its offset."""
    record = reader.next_at_hand()
    if record is None and reader.read():
        record = reader.next_at_hand()
    return None if record is None else record.offset


def finished(consumer: FakeConsumer) -> int:
    found = consumer.positions.committable().get(A0)
    return -1 if found is None else found.offset


def test_a_record_is_finished_when_the_next_is_asked_for() -> None:
    consumer = consumer_of([3, 3])
    reader = reader_of(consumer)
    assert [next_of(reader) for _ in range(2)] == [0, 1]
    assert finished(consumer) == 1
    assert [next_of(reader) for _ in range(5)] == [2, 3, 4, 5, None]
    assert finished(consumer) == 6
    assert not reader.is_busy


def test_after_the_end_the_record_in_work_may_be_finished_and_nothing_more_comes() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert next_of(reader) == 0
    reader.end()
    assert reader.is_busy
    assert next_of(reader) is None
    assert not reader.is_busy
    assert finished(consumer) == 1
    assert next_of(reader_of(consumer)) == 1, "the next session goes on there"


class EndingLock(NoLock):
    """The claim of `reader` ends when the lock is taken: another thread was quicker."""

    def __init__(self, reader: ClaimReader) -> None:
        super().__init__()
        self._reader = reader

    def acquire(self) -> bool:
        self._reader.end()
        return super().acquire()


@pytest.mark.parametrize(
    "ask",
    [ClaimReader.read, lambda reader: reader.take(None), lambda reader: reader.lease_bytes(1 << 20)],
    ids=["read", "take", "lease_bytes"],
)
def test_what_is_leased_while_the_claim_ends_is_put_back(ask: Callable[[ClaimReader], object]) -> None:
    """The session sees that nothing is in work, and does not wait for the worker."""
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    consumer.positions.lock = EndingLock(reader)
    assert not ask(reader)
    assert reader.next_at_hand() is None
    assert not reader.is_busy and finished(consumer) == 0
    assert next_of(reader_of(consumer)) == 0, "the next session gets it"


@pytest.mark.parametrize("said_done", [False, True])
def test_a_record_whose_worker_does_not_come_back_is_handed_out_again(said_done: bool) -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    next_of(reader)
    record = reader.next_at_hand()
    assert record is not None
    if said_done:
        reader.done(record)
    reader.end()
    reader.put_back()
    assert finished(consumer) == (2 if said_done else 1)
    assert next_of(reader_of(consumer)) == (2 if said_done else 1)


def test_a_batch_is_finished_as_a_whole_or_as_far_as_it_is_done() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert len(reader.take(3)) == 3
    assert finished(consumer) == 0
    records = reader.take(3)
    assert finished(consumer) == 3
    reader.done(records[1])
    assert consumer.positions.committable()[A0] == CommittedOffset(5, leader_epoch=0)
    reader.put_back()
    assert finished(consumer) == 5
    assert [record.offset for record in reader_of(consumer).take(None)] == [5, 6, 7, 8]


def test_what_was_done_before_is_no_news_to_a_later_run() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer, limit=2)
    next_of(reader)
    record = reader.next_at_hand()
    assert record is not None
    reader.done(record)
    assert next_of(reader) == 2
    reader.put_back()
    assert finished(consumer) == 2


def test_a_paused_partition_hands_out_nothing_until_it_is_resumed() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert next_of(reader) == 0
    consumer.positions.pause([A0])
    assert next_of(reader) is None
    assert not reader.has_news()
    consumer.positions.resume([A0])
    assert reader.has_news()
    assert next_of(reader) == 1


def test_a_seek_takes_the_reader_along() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert next_of(reader) == 0
    consumer.positions.seek(A0, 7)
    consumer.fetch_all()
    assert next_of(reader) == 7


def test_progress_is_seen_as_another_record_in_work() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    next_of(reader)
    first = reader.in_work
    assert reader.in_work == first
    next_of(reader)
    assert reader.in_work != first


@given(
    batches=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    gap=st.integers(0, 2),
    limit=st.integers(1, 7),
    moves=st.lists(
        st.sampled_from(["next", "next", "batch", "done", "end session", "lose worker"]), max_size=40
    ),
)
def test_every_record_is_finished_once_and_in_order(
    batches: list[int], gap: int, limit: int, moves: list[str]
) -> None:
    """Whatever workers do: finished records are those from the start on without a hole, and what was in work
    when its worker was lost comes again."""
    consumer = consumer_of(batches, gap)
    offsets = sorted(consumer.cluster.logs[A0].records)
    reader = reader_of(consumer, limit)
    done: list[int] = []
    in_work: list[int] = []
    given: dict[int, Record] = {}
    for move in moves:
        if move == "next":
            done += in_work
            record = reader.next_at_hand()
            if record is None and reader.read():
                record = reader.next_at_hand()
            in_work = []
            if record is not None:
                given[record.offset] = record
                in_work = [record.offset]
        elif move == "batch":
            done += in_work
            records = reader.take(limit)
            given |= {record.offset: record for record in records}
            in_work = [record.offset for record in records]
        elif move == "done" and in_work:
            reader.done(given[in_work[0]])
            done.append(in_work.pop(0))
        elif move == "end session":
            reader.end()
            done += in_work
            in_work = []
            assert next_of(reader) is None
            reader.put_back()
            reader = reader_of(consumer, limit)
        elif move == "lose worker":
            reader.end()
            reader.put_back()
            in_work = []
            reader = reader_of(consumer, limit)
        assert done + in_work == offsets[: len(done) + len(in_work)]
    reader.end()
    reader.put_back()
    committed = consumer.positions.committable().get(A0)
    assert committed is not None
    assert [offset for offset in offsets if offset < committed.offset] == done


# ---- partitions that come back


def parked_and_back(consumer: FakeConsumer, wanted: set[TopicPartition]) -> None:
    parked = consumer.positions.park([A0, A1])
    assert consumer.positions.assignment() == set()
    consumer.positions.unpark(parked, wanted)
    consumer.positions.assign(wanted)
    consumer.look_up()


def test_a_partition_that_comes_back_has_what_was_fetched() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert [next_of(reader) for _ in range(4)] == [0, 1, 2, 3]
    reader.put_back()
    consumer.positions.was_committed(consumer.positions.committable())
    buffered = consumer.positions.buffered_bytes
    parked_and_back(consumer, {A0, A1})
    assert consumer.positions.buffered_bytes == buffered
    assert next_of(reader_of(consumer)) == 3


def test_a_partition_that_does_not_come_back_leaves_nothing() -> None:
    consumer = consumer_of([10])
    consumer.positions.was_committed(consumer.positions.committable())
    parked_and_back(consumer, {A1})
    assert consumer.positions.buffered_bytes == 0
    assert not consumer.records.has_news()


def test_what_is_not_committed_is_looked_up_again() -> None:
    """Eager rebalances promise to go on at the committed offset: what was read behind it comes again."""
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert [next_of(reader) for _ in range(4)] == [0, 1, 2, 3]
    reader.put_back()
    parked_and_back(consumer, {A0, A1})
    assert consumer.positions.buffered_bytes == 0
    consumer.fetch_all()
    assert next_of(reader_of(consumer)) == 0


def test_an_answer_that_comes_while_a_partition_is_parked_is_dropped() -> None:
    consumer = consumer_of([3])
    consumer.positions.was_committed(consumer.positions.committable())
    consumer.cluster.logs[A0].append(numbered(3, 3))
    consumer.planner.survey(consumer.now)
    plan = consumer.planner.plan(1, consumer.now, consumer.version)
    assert plan is not None
    answer = consumer.cluster.fetch(1, plan.request, plan.version)
    parked = consumer.positions.park([A0, A1])
    consumer.planner.answered(plan, answer, consumer.now, 0.5)
    consumer.positions.unpark(parked, {A0, A1})
    consumer.fetch_all()
    assert [next_of(reader) for reader in [reader_of(consumer, 10)] for _ in range(7)] == [*range(6), None]


def test_a_commit_by_hand_of_records_in_work_is_not_taken_back() -> None:
    consumer = consumer_of([10])
    reader = reader_of(consumer)
    assert [next_of(reader) for _ in range(3)] == [0, 1, 2]
    assert finished(consumer) == 2
    consumer.positions.was_committed({A0: CommittedOffset(3)})
    assert finished(consumer) == -1
    consumer.positions.seek(A0, 1)
    assert finished(consumer) == 1, "but whoever goes back wants to be there again"
