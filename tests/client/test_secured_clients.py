"""Producer, consumer and admin over TLS and with logins, in both faces, against Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import klamm
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_leaks
from tests.client.secured import BRIEF_LOGIN_MS, WAYS, SecuredKafka
from tests.client.topics import unique
from tests.long import cases

PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module", params=list(FACES))
def module_face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = FACES[request.param]()
    yield face
    face.close()


@pytest.fixture
def face(module_face: Face, secured_kafka: SecuredKafka) -> Iterator[Face]:
    with nothing_leaks(module_face.loop):
        yield module_face
        module_face.close_clients()


@pytest.mark.parametrize("way", cases(WAYS, lambda way: way in ("TLS both ways", "SCRAM-SHA-512 in TLS")))
def test_records_go_there_and_back(face: Face, secured_kafka: SecuredKafka, way: str) -> None:
    options = secured_kafka.options(way)
    topic, group = unique("secured"), unique("group")
    face.admin(**options).create_topic(topic, partitions=3)
    producer = face.producer(**options)
    # Together larger than any buffer on the way, so that TLS splits them and answers come in pieces.
    values = [b"%d " % number + bytes(20_000) for number in range(100)]
    for value in values:
        producer.send(topic, value).result()
    consumer = face.consumer(**options, group=group, topics=[topic], start="earliest")
    received: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(received) < len(values) and time.monotonic() < deadline:
        received += [record.value for record in consumer.poll(timeout=1.0)]
    assert sorted(received) == sorted(values)
    consumer.commit()
    assert group in {each.group for each in face.admin(**options).list_groups()}


@pytest.mark.usefixtures("early_renewals")
def test_a_producer_and_a_group_outlive_their_logins(face: Face, secured_kafka: SecuredKafka) -> None:
    """Logins are renewed on living connections: one where a fetch waits, one with heartbeats, one in use."""
    options = secured_kafka.options("brief logins")
    topic = unique("brief")
    face.admin(**options).create_topic(topic, partitions=1)
    producer = face.producer(**options)
    consumer = face.consumer(
        **options, group=unique("group"), topics=[topic], start="earliest", heartbeat_interval_ms=300
    )
    sent = 0
    received: list[bytes] = []
    ends = time.monotonic() + 1.5 * BRIEF_LOGIN_MS / 1000
    while time.monotonic() < ends:
        producer.send(topic, b"%d" % sent).result()
        sent += 1
        received += [record.value for record in consumer.poll(timeout=0.05)]
    while len(received) < sent and time.monotonic() < ends + PATIENCE_SECONDS:
        received += [record.value for record in consumer.poll(timeout=1.0)]
    assert received == [b"%d" % number for number in range(sent)]
    for client in (producer, consumer):
        assert client.counters()["connections_lost"] == 0
        assert client.counters()["requests_failed"] == 0


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512 in TLS"])
def test_a_wrong_password_is_heard_of_at_once(face: Face, secured_kafka: SecuredKafka, way: str) -> None:
    options = {**secured_kafka.options(way), "sasl_password": "wrong-secret"}
    started = time.monotonic()
    attempts = (
        lambda: face.admin(**options).list_topics(),
        lambda: face.producer(**options).send("t", b"").result(),
        lambda: face.consumer(**options, group="g", topics=["t"]).poll(timeout=60.0),
    )
    for attempt in attempts:
        with pytest.raises(klamm.AuthenticationFailed) as caught:
            attempt()
        assert "wrong-secret" not in str(caught.value)
    assert time.monotonic() - started < PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("what", "reading"),
    [
        ("topic", {"topics": ["forbidden"]}),
        ("group", {"topics": ["forbidden"], "group": "forbidden"}),
    ],
)
def test_whoever_may_not_read_is_told_by_every_poll(
    face: Face, secured_kafka: SecuredKafka, what: str, reading: dict[str, object]
) -> None:
    started = time.monotonic()
    consumer = face.consumer(**secured_kafka.options_of_stranger(), **reading)
    for poll in (consumer.poll, consumer.poll, consumer.poll_arrow, lambda: next(iter(consumer))):
        with pytest.raises(klamm.AuthorizationFailed) as caught:
            poll()
        assert "forbidden" in str(caught.value)
    assert time.monotonic() - started < PATIENCE_SECONDS


def test_whoever_assigns_a_topic_that_may_not_be_read_is_told(
    face: Face, secured_kafka: SecuredKafka
) -> None:
    consumer = face.consumer(**secured_kafka.options_of_stranger())
    consumer.assign([("forbidden", 0)])
    with pytest.raises(klamm.AuthorizationFailed, match="forbidden"):
        consumer.poll(timeout=PATIENCE_SECONDS)
