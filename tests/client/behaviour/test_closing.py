"""A client is closed while another task or thread waits in it: whoever waits goes on, whenever it happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import klamm
from tests.client.behaviour.conftest import NewTopic
from tests.client.behaviour.session_members import SessionMember
from tests.client.faces import Face
from tests.client.topics import unique
from tests.waiting import wait_until

MOMENTS_S = [0.0, 0.002, 0.01, 0.03, 0.15]
"""From before the first step of a join to long after the last one; which is which, the machine decides."""
PATIENCE_S = 20.0


def end_of(work: Future[Any]) -> BaseException | None:
    return work.exception(PATIENCE_S)


def iterate(consumer: Any) -> None:
    for _ in consumer:
        pass


WAITS: dict[str, Callable[[Any], object]] = {
    "poll": lambda consumer: consumer.poll(),
    "iteration": iterate,
    "poll_arrow": lambda consumer: consumer.poll_arrow(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("has_group", [True, False], ids=["group", "alone"])
def test_who_waits_for_records_is_told(
    face: Face, bootstrap: str, new_topic: NewTopic, wait: Callable[[Any], object], has_group: bool
) -> None:
    topic = new_topic()
    pause = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        for number, moment_s in enumerate(MOMENTS_S):
            group = {"group": f"{topic}-{number}"} if has_group else {}
            consumer = face.consumer(bootstrap, topics=[topic], **group)
            waiting = pool.submit(wait, consumer)
            pause.wait(moment_s)
            consumer.close()
            assert isinstance(end_of(waiting), klamm.ClientClosed)


def test_sessions_end(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    pause = threading.Event()
    for number, moment_s in enumerate(MOMENTS_S[1:]):
        consumer = face.consumer(bootstrap, group=f"{topic}-{number}", topics=[topic])
        consumer.start()
        member = SessionMember(face, consumer)
        wait_until(lambda member=member: member.has_begun, "the sessions have begun")
        pause.wait(moment_s)
        member.close()


def test_records_under_way_are_sent(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with ThreadPoolExecutor(1) as pool:
        producer = face.producer(bootstrap, linger_ms=60_000)
        waiting = pool.submit(producer.send(topic, b"value").result)
        producer.close()
        assert waiting.result(PATIENCE_S).offset == 0


def test_calls_of_an_admin(face: Face, bootstrap: str) -> None:
    pause = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        for moment_s in MOMENTS_S:
            admin = face.admin(bootstrap)
            waiting = pool.submit(admin.describe_cluster)
            pause.wait(moment_s)
            admin.close()
            assert isinstance(end_of(waiting), klamm.ClientClosed | None)


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
def test_closing_takes_a_time(face: Face, bootstrap: str, new_topic: NewTopic, kind: str) -> None:
    topic = new_topic(partitions=3)
    client = getattr(face, kind)(bootstrap)
    assert client.partitions_for(topic) == client.partitions_for(topic, timeout=PATIENCE_S) == [0, 1, 2]
    with pytest.raises(klamm.ClientMisused, match="timeout=-1"):
        client.close(timeout=-1)
    client.close(timeout=PATIENCE_S)
    client.close(0)
    with pytest.raises(klamm.ClientClosed):
        client.partitions_for(topic)


@pytest.mark.parametrize("kind", ["consumer", "admin"])
def test_partitions_of_a_topic_that_is_not_there(face: Face, bootstrap: str, kind: str) -> None:
    name = unique("there-is-none")
    with getattr(face, kind)(bootstrap) as client, pytest.raises(klamm.UnknownTopic, match=name):
        client.partitions_for(name, timeout=PATIENCE_S)
    with face.admin(bootstrap) as admin:
        assert name not in admin.list_topics(), "asking created it"


def test_offsets_of_a_topic_that_is_not_there(face: Face, bootstrap: str) -> None:
    name = unique("there-is-none")
    settings = {"allow_auto_create_topics": False, "default_api_timeout_ms": 300}
    with face.consumer(bootstrap, **settings) as consumer, pytest.raises(klamm.TimedOut, match=name):
        consumer.end_offsets((name, 0))
    with face.admin(bootstrap) as admin:
        assert name not in admin.list_topics(), "asking created it"


def wait_for_refreshes(consumer: Any) -> None:
    """Wait for more than one, because a refresh may be under way that began before."""
    before = consumer.counters()["metadata_refreshes"]
    wait_until(lambda: consumer.counters()["metadata_refreshes"] > before + 3, "it refreshed metadata")


def test_a_consumer_does_not_bring_back_what_it_read_before(
    face: Face, bootstrap: str, new_topic: NewTopic
) -> None:
    first, second, other = new_topic(), new_topic(), new_topic()
    with face.consumer(bootstrap, metadata_max_age_ms=50) as consumer, face.admin(bootstrap) as admin:
        consumer.assign([(first, 0)])
        assert consumer.position((first, 0)) == 0
        consumer.assign([(second, 0)])
        assert consumer.position((second, 0)) == 0
        consumer.unsubscribe()
        consumer.assign([(other, 0)])
        wait_for_refreshes(consumer)
        admin.delete_topic(first)
        admin.delete_topic(second)
        wait_for_refreshes(consumer)
        assert not {first, second} & set(admin.list_topics())


def test_a_consumer_that_asked_for_a_topic_does_not_bring_it_back(
    face: Face, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, other = new_topic(), new_topic()
    with face.consumer(bootstrap, metadata_max_age_ms=50) as consumer, face.admin(bootstrap) as admin:
        consumer.assign([(other, 0)])
        assert consumer.partitions_for(topic) == [0]
        place = (topic, 0)
        assert consumer.beginning_offsets(place) == consumer.end_offsets(place) == {place: 0}
        assert consumer.offsets_for_times({place: 0}) == {place: None}
        wait_for_refreshes(consumer)
        admin.delete_topic(topic)
        wait_for_refreshes(consumer)
        assert topic not in admin.list_topics()
