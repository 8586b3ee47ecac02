"""Reading committed records, of transactions that another client writes to Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_leaks
from tests.client.reading import PATIENCE_S, collect, poll_until, values
from tests.client.topics import make_topic, unique


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, apache_kafka: str) -> Iterator[Face]:
    face = FACES[request.param]()
    with nothing_leaks(face.loop):
        yield face
        face.close_clients()
    face.close()


class Transactions:
    """One transactional producer and one topic with one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": unique("transactions"), "linger.ms": 0}
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, *values: bytes) -> None:
        self._producer.begin_transaction()
        self.write(*values)

    def write(self, *values: bytes) -> None:
        for value in values:
            self._producer.produce(self._topic, value, partition=0)
        self._producer.flush(PATIENCE_S)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)


@pytest.fixture
def topic(apache_kafka: str) -> str:
    """Two committed records, two aborted ones, two committed ones: with the markers nine offsets."""
    topic = make_topic(apache_kafka)
    transactions = Transactions(apache_kafka, topic)
    transactions.begin(b"a", b"b")
    transactions.commit()
    transactions.begin(b"no", b"never")
    transactions.abort()
    transactions.begin(b"c", b"d")
    transactions.commit()
    return topic


def test_committed_records_only(face: Face, apache_kafka: str, topic: str) -> None:
    with face.consumer(apache_kafka, start="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        assert values(collect(consumer, 4)) == [b"a", b"b", b"c", b"d"]
        poll_until(consumer, lambda: consumer.position((topic, 0)) == 9, "the last marker is behind us")
        assert consumer.lag() == {(topic, 0): 0}
        consumer.seek((topic, 0), 0)
        batch = consumer.poll_arrow(timeout=PATIENCE_S)
        assert batch.column("value").to_pylist() == [b"a", b"b", b"c", b"d"]
        assert consumer.position((topic, 0)) == 9
        consumer.seek((topic, 0), 3)
        assert values(collect(consumer, 2)) == [b"c", b"d"], "begun in the middle of what was aborted"


def test_everything_is_there_for_who_wants_it(face: Face, apache_kafka: str, topic: str) -> None:
    with face.consumer(apache_kafka, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert values(collect(consumer, 6)) == [b"a", b"b", b"no", b"never", b"c", b"d"]


def test_an_open_transaction_holds_back_what_follows(face: Face, apache_kafka: str, topic: str) -> None:
    transactions = Transactions(apache_kafka, topic)
    plain = Producer({"bootstrap.servers": apache_kafka})
    with face.consumer(apache_kafka, start="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        collect(consumer, 4)
        transactions.begin(b"open")
        plain.produce(topic, b"behind", partition=0)
        plain.flush(PATIENCE_S)
        assert consumer.poll(timeout=0.5) == []
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 9}, "as far as it is decided"
        transactions.commit()
        assert values(collect(consumer, 2)) == [b"open", b"behind"]
        transactions.begin(b"undone")
        transactions.abort()
        plain.produce(topic, b"last", partition=0)
        plain.flush(PATIENCE_S)
        assert values(collect(consumer, 1)) == [b"last"]


def test_a_group_commits_behind_the_markers(face: Face, apache_kafka: str, topic: str) -> None:
    group = unique("committed")
    given = {"group": group, "topics": topic, "start": "earliest", "isolation_level": "read_committed"}
    with face.consumer(apache_kafka, **given) as consumer:
        collect(consumer, 4)
        poll_until(consumer, lambda: consumer.position((topic, 0)) == 9, "the last marker is behind us")
        consumer.commit()
        assert consumer.committed()[topic, 0].offset == 9
