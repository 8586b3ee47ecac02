"""A producer's memory has a bound: nothing is lost at it, and nothing is taken beyond it."""

from __future__ import annotations

import pytest

import klamm
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import AioFace, Face, PlainFace
from tests.client.reading import read_topic

BUFFER_BYTES = 50_000
VALUE = bytes(1000)
COUNT = 500


def test_a_full_buffer(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """It is sent, however long it might linger: the plain `send` waits for that, with asyncio one drains."""
    topic = new_topic()
    options = {"buffer_memory": BUFFER_BYTES, "linger_ms": 60_000, "batch_size": 1_000_000}
    with face.producer(bootstrap, **options) as producer:
        if isinstance(face, AioFace):
            taken = 0
            with pytest.raises(klamm.BufferFull) as refused:
                for _ in range(COUNT):
                    producer.send(topic, VALUE)
                    taken += 1
            assert refused.value.retriable and "drain" in refused.value.advice
            assert 0 < taken * len(VALUE) <= BUFFER_BYTES
            producer.drain()
            producer.send(topic, VALUE)
        else:
            for _ in range(COUNT):
                producer.send(topic, VALUE)


def test_a_loop_that_is_faster_than_the_broker(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """Ten times the buffer goes through it: the plain `send` waits, with asyncio one drains."""
    topic = new_topic()
    options = {"buffer_memory": BUFFER_BYTES, "batch_size": 5000}
    if isinstance(face, PlainFace):
        with face.producer(bootstrap, **options) as producer:
            for number in range(COUNT):
                producer.send(topic, b"%d" % number + VALUE)
    else:
        face.run(send_and_drain(face, bootstrap, topic, options))
    got = [record.value for record in read_topic(face, bootstrap, topic, COUNT)]
    assert got == [b"%d" % number + VALUE for number in range(COUNT)]


async def send_and_drain(face: AioFace, bootstrap: str, topic: str, options: dict[str, int]) -> None:
    async with klamm.aio.Producer(bootstrap, **options) as producer:
        drains = 0
        for number in range(COUNT):
            try:
                producer.send(topic, b"%d" % number + VALUE)
            except klamm.BufferFull:
                drains += 1
                await producer.drain()
                producer.send(topic, b"%d" % number + VALUE)
        assert drains > 0
