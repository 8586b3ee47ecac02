"""Leaders that move, logs that are cut and replicas that are nearer, with fake brokers on real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import klamm
from klamm.client.results import TopicPartition
from tests.client.consumer.fake_brokers import FakeBrokers
from tests.client.consumer.fake_cluster import FakeCluster
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_leaks
from tests.client.reading import PATIENCE_S, collect, values
from tests.waiting import wait_until

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
QUICK = {"retry_backoff_ms": 10, "retry_backoff_max_ms": 50, "reconnect_backoff_ms": 10}


@pytest.fixture
def brokers() -> Iterator[FakeBrokers]:
    cluster = FakeCluster(nodes=2)
    cluster.create("a", 2)
    with FakeBrokers(cluster) as brokers:
        yield brokers


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, brokers: FakeBrokers) -> Iterator[Face]:
    face = FACES[request.param]()
    with nothing_leaks(face.loop):
        yield face
        face.close_clients()
    face.close()


@pytest.mark.parametrize("newest_fetch", [4, 6, 11, 12, 13, 18])
def test_brokers_of_all_ages(face: Face, brokers: FakeBrokers, newest_fetch: int) -> None:
    brokers.newest_fetch = newest_fetch
    with face.consumer(brokers.bootstrap, start="earliest", **QUICK) as consumer:
        consumer.assign([A0, A1])
        for turn in range(3):
            with brokers.changing():
                for partition in (A0, A1):
                    brokers.cluster.logs[partition].append([b"%d" % turn])
            assert values(collect(consumer, 2)) == [b"%d" % turn] * 2


def test_a_leader_that_moves(face: Face, brokers: FakeBrokers) -> None:
    log = brokers.cluster.logs[A0]
    log.append([b"before"])
    with face.consumer(brokers.bootstrap, start="earliest", **QUICK) as consumer:
        consumer.assign([A0])
        collect(consumer, 1)
        with brokers.changing():
            brokers.cluster.move(A0, 2)
            log.replicas = (2,)
            log.append([b"after"])
        assert values(collect(consumer, 1)) == [b"after"]
        assert brokers.epoch_questions, "the new leader was asked whether it has what was read"


def test_a_log_that_was_cut(face: Face, brokers: FakeBrokers) -> None:
    """An unclean election lost two records that were read already: what stands in their place is read."""
    log = brokers.cluster.logs[A0]
    for number in range(4):
        log.append([b"%d" % number])
    with face.consumer(brokers.bootstrap, start="latest", **QUICK) as consumer:
        consumer.assign([A0])
        consumer.seek(A0, 0)
        collect(consumer, 4)
        with brokers.changing():
            log.cut(2)
            brokers.cluster.move(A0, 2)
            log.replicas = (2,)
            for number in range(6):
                log.append([b"new-%d" % number])
        assert values(collect(consumer, 6)) == [b"new-%d" % number for number in range(6)]


def test_a_log_that_was_cut_is_told_when_guessing_is_not_allowed(face: Face, brokers: FakeBrokers) -> None:
    log = brokers.cluster.logs[A0]
    for number in range(4):
        log.append([b"%d" % number])
    with face.consumer(brokers.bootstrap, start="none", **QUICK) as consumer:
        consumer.assign([A0])
        consumer.seek(A0, 0)
        collect(consumer, 4)
        with brokers.changing():
            log.cut(2)
            brokers.cluster.move(A0, 2)
            log.replicas = (2,)
        with pytest.raises(klamm.OffsetOutOfRange, match=r"a-0 was cut to offset 2"):
            consumer.poll(timeout=PATIENCE_S)
        consumer.seek(A0, 2)
        with brokers.changing():
            log.append([b"new"])
        assert values(collect(consumer, 1)) == [b"new"]


def test_the_nearest_replica(face: Face, brokers: FakeBrokers) -> None:
    log = brokers.cluster.logs[A0]
    log.replicas = (1, 2)
    log.preferred_replica = 2
    log.append([b"near"])
    with face.consumer(brokers.bootstrap, start="earliest", client_rack="here", **QUICK) as consumer:
        consumer.assign([A0])
        assert values(collect(consumer, 1)) == [b"near"]
        assert brokers.fetched_from()[:2] == [1, 2]
        with brokers.changing():
            log.append([b"nearer"])
        assert values(collect(consumer, 1)) == [b"nearer"]
        assert set(brokers.fetched_from()[1:]) == {2}
        assert {request.rack_id for _, request in brokers.cluster.requests} == {"here"}


def test_a_replica_that_is_none_any_more(face: Face, brokers: FakeBrokers) -> None:
    log = brokers.cluster.logs[A0]
    log.replicas = (1, 2)
    log.preferred_replica = 2
    with face.consumer(brokers.bootstrap, start="earliest", client_rack="here", **QUICK) as consumer:
        consumer.assign([A0])
        assert consumer.poll(timeout=0) == []
        wait_until(lambda: brokers.fetched_from()[-1:] == [2], "the replica is asked")
        with brokers.changing():
            log.replicas = (1,)
            log.preferred_replica = -1
            log.append([b"far"])
        assert values(collect(consumer, 1)) == [b"far"]
        assert brokers.fetched_from()[-1] == 1


def test_sessions_are_incremental_on_the_wire(face: Face, brokers: FakeBrokers) -> None:
    with face.consumer(brokers.bootstrap, start="earliest", fetch_max_wait_ms=5, **QUICK) as consumer:
        consumer.assign([A0])
        assert consumer.poll(timeout=0) == []
        wait_until(lambda: len(brokers.fetched_from()) > 5, "some fetches")
    first, *others = (request for _, request in brokers.cluster.requests)
    assert first.session_epoch == 0 and first.topics
    assert [request.session_epoch for request in others] == list(range(1, len(others) + 1))
    assert not any(request.topics for request in others), "nothing changed, so nothing is said"
