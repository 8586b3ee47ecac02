"""Where a record goes: with a key as Java's and librdkafka's producers choose, without one in turn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import confluent_kafka
import pytest

from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face

PARTITIONS = 7
KEYS = [b"", b"a", b"42", b"customer-1", bytes(range(256)), "größe".encode(), *(b"%d" % n for n in range(60))]


def chosen_by_librdkafka(bootstrap: str, topic: str, partitioner: str) -> list[int]:
    """An independent opinion."""
    chosen: dict[int, int] = {}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": partitioner})
    for number, key in enumerate(KEYS):
        producer.produce(
            topic,
            b"value",
            key,
            on_delivery=lambda error, message, number=number: chosen.update({number: message.partition()}),
        )
    assert producer.flush(30) == 0
    return [chosen[number] for number in range(len(KEYS))]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(None, "murmur2_random"), ("murmur2", "murmur2_random"), ("crc32", "consistent")]
)
def test_keys_go_where_other_clients_send_them(
    face: Face, bootstrap: str, new_topic: NewTopic, ours: str | None, theirs: str
) -> None:
    topic = new_topic(PARTITIONS)
    # librdkafka's crc32 choice sends an empty key wherever it likes.
    options = {} if ours is None else {"config": {"partitioner": ours}}
    with face.producer(bootstrap, **options) as producer:
        deliveries = [producer.send(topic, b"value", key=key) for key in KEYS]
        partitions = [delivery.result().partition for delivery in deliveries]
    assert partitions[1:] == chosen_by_librdkafka(bootstrap, topic, theirs)[1:]
    assert len(set(partitions)) == PARTITIONS


def test_a_function_of_ones_own(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(PARTITIONS)
    asked: list[tuple[object, ...]] = []

    def by_length(*arguments: object) -> int:
        asked.append(arguments)
        key = arguments[1]
        assert isinstance(key, bytes)
        return len(key) % PARTITIONS

    with face.producer(bootstrap, partitioner=by_length) as producer:
        sent = [producer.send(topic, b"value", key=b"k" * length).result() for length in range(1, 12)]
    assert [one.partition for one in sent] == [length % PARTITIONS for length in range(1, 12)]
    assert asked[0][0] == topic


def runs(partitions: Sequence[int]) -> int:
    """How often the partition changes from one record to the next, and one more."""
    return 1 + sum(a != b for a, b in itertools.pairwise(partitions))


def test_without_a_key_a_batch_sticks_to_one_partition(
    face: Face, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    with face.producer(bootstrap, linger_ms=20, batch_size=2000) as producer:
        deliveries = [producer.send(topic, bytes(100)) for _ in range(1200)]
        producer.flush()
        partitions = [delivery.result().partition for delivery in deliveries]
    spread = Counter(partitions)
    assert set(spread) == {0, 1, 2}
    # Each record for itself would change partition hundreds of times; a batch takes about twenty.
    assert runs(partitions) <= 300
    assert min(spread.values()) >= 1200 / 3 / 3
