from __future__ import annotations

import pytest

from klamm.client.consumer.lease import Lease
from klamm.client.errors import ClientMisused
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.protocol.messages.k01_fetch import AbortedTransaction
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord
from tests.client.consumer.fake_cluster import TIMESTAMP, FakeCluster, FakeConsumer

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(nodes=1)
    cluster.create("a", 2)
    return cluster


@pytest.fixture
def consumer(cluster: FakeCluster) -> FakeConsumer:
    consumer = FakeConsumer(cluster)
    consumer.assign(A0, A1)
    return consumer


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def finished(consumer: FakeConsumer, partition: TopicPartition = A0) -> int:
    committable = consumer.positions.committable().get(partition)
    return -1 if committable is None else committable.offset


def position(consumer: FakeConsumer, partition: TopicPartition = A0) -> int:
    known = consumer.positions.position(partition)
    assert known is not None
    return known.offset


def draw(lease: Lease | None, count: int) -> list[bytes | None]:
    """What a loop does with a lease."""
    assert lease is not None
    drawn = []
    for _ in range(count):
        drawn.append(next(lease.iterator).value)
    return drawn


# ---- polls


def test_records_come_in_order_however_many_are_asked_for(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    for first in range(0, 100, 10):
        cluster.logs[A0].append(numbered(first, 10))
    consumer.fetch_all()
    got = []
    for limit in (1, 3, 7, 10, 25, 500):
        records = consumer.poll(limit)
        assert len(records) <= limit
        got += [record.value for record in records]
    assert got == numbered(0, 100)


def test_partitions_take_turns(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    for partition in (A0, A1):
        for first in range(0, 100, 10):
            cluster.logs[partition].append(numbered(first, 10))
    consumer.fetch_all()
    assert [consumer.poll(5)[0].partition for _ in range(4)] in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_what_is_handed_out_is_finished_by_the_next_poll(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    cluster.logs[A0].append(numbered(0, 10))
    consumer.fetch_all()
    assert finished(consumer) == 0, "where it starts, so that the group knows that place"
    consumer.poll(4)
    assert (finished(consumer), position(consumer)) == (0, 4)
    consumer.poll(4)
    assert (finished(consumer), position(consumer)) == (4, 8)
    consumer.records.begin_poll()
    assert finished(consumer) == 8


def test_a_position_is_behind_gaps_and_markers(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    log = cluster.logs[A0]
    log.append(numbered(0, 3))
    log.append(numbered(3, 2), gap=10)
    log.append_control(gap=5)
    consumer.fetch_all()
    assert [record.offset for record in consumer.poll()] == [0, 1, 2, 13, 14]
    assert position(consumer) == 21, "the marker is behind us as well, though nobody was handed it"


def test_a_fetch_of_markers_only_moves_the_position(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append_control()
    consumer.fetch_all()
    assert consumer.records.has_news()
    assert consumer.poll() == []
    assert (position(consumer), consumer.records.has_news()) == (1, False)
    consumer.records.begin_poll()
    assert finished(consumer) == 1


def test_a_seek_into_a_batch_skips_its_beginning(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append(numbered(0, 10))
    consumer.positions.seek(A0, 7)
    consumer.fetch_all()
    assert [record.offset for record in consumer.poll()] == [7, 8, 9]


def test_aborted_transactions_are_not_handed_out(cluster: FakeCluster) -> None:
    consumer = FakeConsumer(cluster, is_read_committed=True)
    consumer.assign(A0)
    log = cluster.logs[A0]
    for producer_id, values in ((7, [b"no"]), (8, [b"yes"])):
        base = log.end
        records = [StoredRecord(base, TIMESTAMP, None, value) for value in values]
        data = build_batch(
            records,
            base_offset=base,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        log.batches.append((base, base, bytes(data)))
        log.end += 1
    log.aborted = [AbortedTransaction(producer_id=7, first_offset=0)]
    consumer.fetch_all()
    assert [record.value for record in consumer.poll()] == [b"yes"]
    assert position(consumer) == 2


# ---- iteration


def test_an_iteration_finishes_record_by_record(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append(numbered(0, 5))
    consumer.fetch_all()
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(500)
    assert (position(consumer), finished(consumer)) == (0, 0)
    assert draw(lease, 3) == numbered(0, 3)
    assert (position(consumer), finished(consumer)) == (3, 2), "the third is being worked on"
    assert lease is not None
    consumer.records.leave(lease)
    assert (position(consumer), finished(consumer)) == (3, 2)
    assert [record.value for record in consumer.poll()] == numbered(3, 2), "nothing is lost"
    assert finished(consumer) == 3


def test_an_iteration_that_came_to_the_end_stands_behind_gaps(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    cluster.logs[A0].append(numbered(0, 2))
    cluster.logs[A0].append_control(gap=3)
    consumer.fetch_all()
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(500)
    draw(lease, 2)
    assert (position(consumer), finished(consumer)) == (6, 1)
    consumer.records.begin_poll()
    assert finished(consumer) == 6


@pytest.mark.parametrize("what", ["pause", "seek", "unassign", "rebalance"])
def test_an_iteration_is_interrupted(cluster: FakeCluster, consumer: FakeConsumer, what: str) -> None:
    cluster.logs[A0].append(numbered(0, 5))
    consumer.fetch_all()
    consumer.records.begin_poll()
    lease = consumer.records.lease_next(500)
    draw(lease, 2)
    assert lease is not None and not lease.is_interrupted
    match what:
        case "pause":
            consumer.positions.pause([A0])
        case "seek":
            consumer.positions.seek(A0, 1)
        case "unassign":
            consumer.positions.assign([A1])
        case "rebalance":
            consumer.positions.interrupt()
    assert lease.is_interrupted
    consumer.records.leave(lease)
    rest = {"pause": [], "seek": [], "unassign": [], "rebalance": numbered(2, 3)}[what]
    assert [record.value for record in consumer.poll()] == rest
    if what == "pause":
        consumer.positions.resume([A0])
        assert [record.value for record in consumer.poll()] == numbered(2, 3)
    if what == "seek":
        consumer.fetch_all()
        assert [record.value for record in consumer.poll()] == numbered(1, 4)


def test_several_partitions_are_iterated_over_at_once(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    for partition in (A0, A1):
        cluster.logs[partition].append(numbered(0, 4))
    consumer.fetch_all()
    first, second = consumer.records.lease_from(A0, 500), consumer.records.lease_from(A1, 500)
    assert draw(first, 2) == draw(second, 2) == numbered(0, 2)
    assert first is not None and second is not None
    consumer.records.put_back(first)
    assert (position(consumer, A0), finished(consumer, A0)) == (1, 1), "only one was finished"
    assert (position(consumer, A1), finished(consumer, A1)) == (2, 1)
    consumer.records.finish(second)
    assert (position(consumer, A1), finished(consumer, A1)) == (2, 2)
    assert consumer.records.has_news_of(A0) and consumer.records.has_news_of(A1)
    again = consumer.records.lease_from(A0, 500)
    assert again is not None and [record.offset for record in again.records] == [1, 2, 3]


# ---- pausing


def test_what_is_buffered_of_a_paused_partition_stays(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append(numbered(0, 5))
    consumer.fetch_all()
    consumer.poll(2)
    consumer.positions.pause([A0])
    assert consumer.poll() == [] and not consumer.records.has_news()
    assert consumer.positions.paused() == {A0}
    requests = len(cluster.requests)
    consumer.positions.resume([A0])
    assert [record.value for record in consumer.poll()] == numbered(2, 3)
    assert len(cluster.requests) == requests, "it was not fetched again"


# ---- columns


def test_columns_and_records_go_on_from_one_another(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    for first in range(0, 30, 10):
        cluster.logs[A0].append(numbered(first, 10))
    consumer.fetch_all()
    assert len(consumer.poll(3)) == 3
    consumer.records.begin_poll()
    (lease,) = consumer.records.lease_bytes(1)
    assert [fetched.from_offset for fetched in lease.fetched] == [3]
    assert position(consumer) == 3, "it is not handed out before it is made into columns"
    consumer.records.columns_made([lease], {A0: 12})
    assert (position(consumer), finished(consumer)) == (12, 3)
    assert [record.offset for record in consumer.poll(4)] == [12, 13, 14, 15]
    consumer.records.begin_poll()
    leases = consumer.records.lease_bytes(1 << 20)
    consumer.records.columns_made(leases, {A0: 30})
    assert consumer.positions.buffered_bytes == 0
    assert consumer.records.lease_bytes(1 << 20) == []


def test_columns_of_a_partition_that_moved_meanwhile_move_nothing(
    cluster: FakeCluster, consumer: FakeConsumer
) -> None:
    cluster.logs[A0].append(numbered(0, 10))
    consumer.fetch_all()
    leases = consumer.records.lease_bytes(1)
    consumer.positions.seek(A0, 2)
    consumer.records.columns_made(leases, {A0: 10})
    assert position(consumer) == 2


# ---- commits


def test_what_is_committed_is_not_committed_again(cluster: FakeCluster, consumer: FakeConsumer) -> None:
    cluster.logs[A0].append(numbered(0, 3))
    consumer.fetch_all()
    consumer.poll()
    consumer.records.begin_poll()
    committable = consumer.positions.committable()
    assert committable[A0] == CommittedOffset(3, leader_epoch=0)
    consumer.positions.was_committed(committable)
    assert consumer.positions.committable() == {}


def test_a_partition_of_somebody_else(consumer: FakeConsumer) -> None:
    with pytest.raises(ClientMisused, match="b-7 is not assigned"):
        consumer.positions.seek(TopicPartition("b", 7), 0)
