"""Times to wait and numbers of records that are none: a typed error at once, and the client goes on."""

from __future__ import annotations

from typing import Any

import pytest

import klamm
from tests.client.faces import Face
from tests.client.reading import fill, values
from tests.client.topics import make_topic, unique

NO_TIMES = ["2", -1, -0.5, float("nan"), float("inf"), True, b"1", [1]]
NO_COUNTS = [0, -1, "x", 1.5, True]


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    return make_topic(bootstrap)


@pytest.mark.parametrize("timeout", NO_TIMES, ids=repr)
def test_times_of_a_consumer(face: Face, bootstrap: str, topic: str, timeout: Any) -> None:
    with face.consumer(bootstrap, group="times", topics=[topic]) as consumer:
        for call in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(klamm.ClientMisused, match=r"^timeout=.* is not a time to wait. Give seconds"):
                call(timeout=timeout)
        with pytest.raises(klamm.ClientMisused, match=r"^drain_timeout=.* is not a time to wait"):
            consumer.sessions(drain_timeout=timeout)


@pytest.mark.parametrize("count", NO_COUNTS, ids=repr)
def test_counts_of_a_consumer(face: Face, bootstrap: str, topic: str, count: Any) -> None:
    with face.consumer(bootstrap, topics=[topic]) as consumer:
        for call in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(klamm.ClientMisused, match=r"^max_records=.* is not a number of records"):
                call(timeout=0, max_records=count)


def test_a_consumer_goes_on_after_a_wrong_call(face: Face, bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    sent = fill(face, bootstrap, topic, 3)
    with face.consumer(bootstrap, topics=[topic], start="earliest") as consumer:
        with pytest.raises(klamm.ClientMisused):
            consumer.poll("2")
        assert values(consumer.poll(timeout=20)) == sent


@pytest.mark.parametrize("timeout", NO_TIMES, ids=repr)
def test_times_of_a_producer(face: Face, bootstrap: str, topic: str, timeout: Any) -> None:
    with face.producer(bootstrap) as producer:
        for call in (producer.flush, producer.close, lambda seconds: producer.partitions_for(topic, seconds)):
            with pytest.raises(klamm.ClientMisused, match=r"^timeout=.* is not a time to wait"):
                call(timeout)
        assert producer.send(topic, b"it was not closed").result().partition == 0


@pytest.mark.parametrize("timeout", NO_TIMES, ids=repr)
def test_times_of_an_admin(face: Face, bootstrap: str, topic: str, timeout: Any) -> None:
    with face.admin(bootstrap) as admin:
        for call in (
            admin.list_topics,
            admin.describe_cluster,
            lambda **wait: admin.describe_topic(topic, **wait),
        ):
            with pytest.raises(klamm.ClientMisused, match=r"^timeout=.* is not a time to wait"):
                call(timeout=timeout)


def test_a_very_long_time_is_one(face: Face, bootstrap: str) -> None:
    with face.admin(bootstrap) as admin:
        assert admin.create_topic(unique("patient"), timeout=1e9).topic_id is not None
