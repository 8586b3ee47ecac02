"""Leases: what is handed out is finished or put back, and only what is finished is committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from klamm.client.consumer import hand_out
from klamm.client.consumer.lease import Lease, Place
from klamm.client.consumer.partition_state import PartitionState
from klamm.client.consumer.polling import make_columns
from klamm.client.results import Record, TopicPartition
from tests.client.consumer.fake_cluster import FakeCluster, FakeConsumer

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def record(offset: int, epoch: int = 0) -> Record:
    return Record("a", 0, offset, 0, None, b"", (), "CreateTime", epoch)


def lease_of(offsets: list[int], start: int = 0) -> Lease:
    lease = Lease(PartitionState(A0, 1), Place(start, 0))
    lease.give_one_by_one([record(offset) for offset in offsets], None)
    return lease


# ---- one lease


def test_of_records_given_one_by_one_all_but_the_latest_are_finished() -> None:
    lease, end = lease_of([3, 4, 7], start=2), Place(9, 0)
    assert (lease.given_place(end), lease.finished_place(end)) == (Place(2, 0), Place(2, 0))
    next(lease.iterator)
    assert (lease.given_place(end), lease.finished_place(end)) == (Place(4, 0), Place(2, 0))
    next(lease.iterator)
    assert (lease.given_place(end), lease.finished_place(end)) == (Place(5, 0), Place(4, 0))
    next(lease.iterator)
    assert (lease.given_place(end), lease.finished_place(end)) == (end, Place(5, 0)), "behind the gap"


def test_of_what_is_given_all_at_once_nothing_is_finished_until_the_user_says_so() -> None:
    lease, end = Lease(PartitionState(A0, 1), Place(2, 0)), Place(9, 1)
    assert (lease.given_place(end), lease.finished_place(end)) == (end, Place(2, 0))
    lease.done(record(5, epoch=1))
    assert lease.finished_place(end) == Place(6, 1)
    lease.done(record(4))
    assert lease.finished_place(end) == Place(6, 1), "never back"


def test_what_the_user_says_of_other_records_finishes_no_more_than_was_given() -> None:
    lease, end = lease_of([3, 4, 5]), Place(6, 0)
    next(lease.iterator)
    lease.done(record(100))
    assert lease.finished_place(end) == Place(4, 0)


# ---- leases of a consumer


@pytest.fixture
def consumer() -> FakeConsumer:
    return filled()


def filled(*, partitions: int = 1, gap: int = 0) -> FakeConsumer:
    """A consumer that has fetched three times, thirty records of each partition."""
    cluster = FakeCluster(nodes=1)
    cluster.create("a", partitions)
    consumer = FakeConsumer(cluster, partition_max_bytes=700)
    consumer.assign(*(("a", index) for index in range(partitions)))
    for index in range(partitions):
        for first in range(0, 30, 5):
            values = [b"%d" % number for number in range(first, first + 5)]
            cluster.logs[TopicPartition("a", index)].append(values, gap=gap)
    consumer.fetch_all()
    return consumer


def finished(consumer: FakeConsumer) -> int:
    known = consumer.positions.finished(A0)
    assert known is not None
    return known.offset


def columns(consumer: FakeConsumer, limit: int | None) -> tuple[list[Lease], list[int]]:
    """What poll_arrow does; the offsets of the rows."""
    leases = consumer.records.lease_bytes(1 << 20)
    made = make_columns(leases, limit)
    consumer.records.columns_made(leases, made.next_offsets)
    assert made.batch is not None
    return leases, made.batch.column("offset").to_pylist()


def test_a_poll_that_reaches_nobody_is_put_back(consumer: FakeConsumer) -> None:
    first = consumer.poll(12)
    consumer.records.put_back_all()
    assert finished(consumer) == 0
    assert consumer.poll(12) == first
    consumer.fetch_all()
    assert [each.offset for each in consumer.poll()] == list(range(12, 30))
    assert finished(consumer) == 12


def test_columns_that_reach_nobody_are_put_back(consumer: FakeConsumer) -> None:
    consumer.poll(3)
    consumer.records.begin_poll()
    buffered = consumer.positions.buffered_bytes
    leases, offsets = columns(consumer, 7)
    assert offsets == list(range(3, 10))
    consumer.records.put_back(*leases)
    assert (finished(consumer), consumer.positions.buffered_bytes) == (3, buffered)
    assert columns(consumer, 7)[1] == offsets
    consumer.records.begin_poll()
    assert finished(consumer) == 10


def test_columns_of_bytes_that_were_put_back_meanwhile_are_not_handed_out(consumer: FakeConsumer) -> None:
    """A poll was cancelled while a thread still made columns for it."""
    consumer.records.begin_poll()
    leases = consumer.records.lease_bytes(1 << 20)
    made = make_columns(leases, None)
    consumer.records.put_back(*leases)
    consumer.records.columns_made(leases, made.next_offsets)
    consumer.records.begin_poll()
    assert finished(consumer) == 0
    assert [each.offset for each in consumer.poll(2)] == [0, 1]


def test_a_lease_ends_once(consumer: FakeConsumer) -> None:
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(5)
    assert lease is not None
    next(lease.iterator)
    consumer.records.finish(lease)
    for end in (consumer.records.put_back, consumer.records.leave, consumer.records.finish):
        end(lease)
        assert finished(consumer) == 1
    assert [each.offset for each in consumer.poll(2)] == [1, 2]


def test_a_log_that_is_cut_leaves_in_work_what_is_in_work(consumer: FakeConsumer) -> None:
    consumer.poll(10)
    state = consumer.positions.get(A0)
    consumer.positions.truncated(state, state.version, 20)
    assert finished(consumer) == 0
    consumer.records.begin_poll()
    assert finished(consumer) == 10


def test_what_is_in_work_when_a_log_is_cut_can_be_put_back(consumer: FakeConsumer) -> None:
    consumer.poll(10)
    state = consumer.positions.get(A0)
    consumer.positions.truncated(state, state.version, 20)
    consumer.records.put_back_all()
    consumer.fetch_all()
    assert [each.offset for each in consumer.poll(3)] == [0, 1, 2], "it is fetched again"


@pytest.mark.parametrize("given", [0, 1, 2, 10])
@pytest.mark.parametrize("end", ["finish", "put_back", "leave"])
def test_what_an_iteration_has_not_given_when_a_log_is_cut_is_fetched_again(
    consumer: FakeConsumer, given: int, end: str
) -> None:
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(10)
    assert lease is not None
    for _ in range(given):
        next(lease.iterator)
    state = consumer.positions.get(A0)
    consumer.positions.truncated(state, state.version, 20)
    done = max(given - 1, 0)
    assert lease.is_interrupted and finished(consumer) == done
    getattr(consumer.records, end)(lease)
    assert finished(consumer) == (given if end == "finish" else done)
    consumer.fetch_all()
    again = consumer.records.lease_from(A0, 10)
    assert again is not None and again.records[0].offset == (done if end == "put_back" else given)


# ---- while records are decoded, without the lock


def lease_next(consumer: FakeConsumer) -> list[Record]:
    """What an iteration has to give."""
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(500)
    return [] if lease is None else list(lease.records)


def take_from(consumer: FakeConsumer) -> list[Record]:
    """What a claim has to give."""
    return consumer.records.take_from(A0, 500)[0]


WAYS = [FakeConsumer.poll, lease_next, take_from]


def at_the_second_batch(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have something happen while the second batch from now on is decoded."""
    decode_batch, decoded = hand_out.decode_batch, [0]

    def decode(*args: object) -> list[Record]:
        decoded[0] += 1
        if decoded[0] == 2:
            happens()
        return decode_batch(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(hand_out, "decode_batch", decode)


@pytest.mark.parametrize("take", WAYS)
def test_what_is_being_decoded_is_neither_given_nor_finished(
    consumer: FakeConsumer, take: Callable[[FakeConsumer], list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits of the loop, and of other threads, come in between."""
    seen: list[tuple[int, int]] = []

    def look() -> None:
        consumer.records.finish_all()  # another thread leaves the block
        position = consumer.positions.position(A0)
        assert position is not None
        seen.append((finished(consumer), position.offset))

    at_the_second_batch(monkeypatch, look)
    count = len(take(consumer))
    assert count > 5, "more than one batch"
    assert seen == [(0, 0)]
    assert finished(consumer) == 0


@pytest.mark.parametrize("take", WAYS)
def test_what_ctrl_c_keeps_from_the_user_is_handed_out_again(
    consumer: FakeConsumer, take: Callable[[FakeConsumer], list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_the_second_batch(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        take(consumer)
    assert finished(consumer) == 0
    take(consumer)
    assert finished(consumer) == 0, "the interrupted poll finished nothing"
    consumer.records.put_back_all()
    consumer.fetch_all()
    assert [each.offset for each in consumer.poll()] == list(range(30))


@pytest.mark.parametrize("take", WAYS)
def test_what_is_decoded_when_the_user_seeks_is_dropped(
    consumer: FakeConsumer, take: Callable[[FakeConsumer], list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_second_batch(monkeypatch, lambda: consumer.positions.seek(A0, 20))
    assert take(consumer) == []
    assert finished(consumer) == 20
    consumer.fetch_all()
    assert [each.offset for each in consumer.poll()] == list(range(20, 30))


class LeaseMachine(RuleBasedStateMachine):
    """Whatever the user does: records come in order and without a hole, those that were put back come again,
    and what may be committed is what was finished."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer = filled(partitions=2, gap=1)
        self.in_work: dict[TopicPartition, list[int]] = {A0: [], A1: []}
        self.finished: dict[TopicPartition, list[int]] = {A0: [], A1: []}

    def offsets(self, partition: TopicPartition) -> list[int]:
        return sorted(self.consumer.cluster.logs[partition].records)

    def ask_for_more(self) -> None:
        for partition, offsets in self.in_work.items():
            self.finished[partition] += offsets
            offsets.clear()

    def given(self, partition: TopicPartition, offset: int) -> None:
        self.in_work[partition].append(offset)
        so_far = self.finished[partition] + self.in_work[partition]
        assert so_far == self.offsets(partition)[: len(so_far)], "left out, or handed out again"

    @rule(limit=st.integers(1, 12))
    def poll(self, limit: int) -> None:
        self.ask_for_more()
        for each in self.consumer.poll(limit):
            self.given(TopicPartition(each.topic, each.partition), each.offset)

    @rule(limit=st.none() | st.integers(1, 12))
    def poll_arrow(self, limit: int | None) -> None:
        self.ask_for_more()
        self.consumer.records.begin_poll()
        leases = self.consumer.records.lease_bytes(1 << 20)
        made = make_columns(leases, limit)
        self.consumer.records.columns_made(leases, made.next_offsets)
        assert made.batch is not None
        for partition, offset in zip(
            made.batch.column("partition").to_pylist(), made.batch.column("offset").to_pylist(), strict=True
        ):
            self.given(TopicPartition("a", partition), offset)

    @rule(
        limit=st.integers(1, 8), given=st.integers(0, 8), end=st.sampled_from(["leave", "finish", "put_back"])
    )
    def iterate(self, limit: int, given: int, end: str) -> None:
        self.ask_for_more()
        self.consumer.records.begin_poll()
        lease = self.consumer.records.lease_next(limit)
        if lease is None:
            return
        partition = lease.state.partition
        for _ in range(min(given, len(lease.records))):
            self.ask_for_more()
            self.given(partition, next(lease.iterator).offset)
        getattr(self.consumer.records, end)(lease)
        if end == "finish":
            self.ask_for_more()
        elif end == "put_back":
            self.in_work[partition].clear()

    @rule()
    def put_back(self) -> None:
        self.consumer.records.put_back_all()
        for offsets in self.in_work.values():
            offsets.clear()

    @rule()
    def fetch(self) -> None:
        self.consumer.fetch_all()

    @rule(partition=st.sampled_from([A0, A1]), share=st.floats(0, 1))
    def seek(self, partition: TopicPartition, share: float) -> None:
        offsets = self.offsets(partition)
        index = int(share * (len(offsets) - 1))
        self.consumer.positions.seek(partition, offsets[index])
        self.finished[partition] = offsets[:index]
        self.in_work[partition].clear()

    @invariant()
    def only_what_is_finished_may_be_committed(self) -> None:
        for partition, expected in self.finished.items():
            known = self.consumer.positions.finished(partition)
            assert known is not None
            assert [offset for offset in self.offsets(partition) if offset < known.offset] == expected


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
