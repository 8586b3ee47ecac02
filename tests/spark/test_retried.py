"""Retry topics: read as soon as they exist, and their rows look like the original records."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import klamm
from pyspark_klamm.errors import OptionError
from pyspark_klamm.options import parse_read_options
from tests.client.topics import make_topic, unique
from tests.spark.driving import Stream
from tests.waiting import wait_until

TIME_MS = 1_700_000_000_000
LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders", "retryTopic": "orders.retry"}


def address(topic: str, offset: int) -> dict[str, bytes]:
    told = {"topic": topic, "partition": "1", "offset": str(offset), "timestamp": str(TIME_MS)}
    return {f"klamm.{name}": text.encode() for name, text in told.items()}


def stream(bootstrap: str, topic: str, **more: object) -> Stream:
    given = {"subscribe": topic, "includeHeaders": "true", "startingOffsets": "earliest"}
    return Stream(bootstrap, **{**given, "retryTopic": f"{topic}.retry", **more})


def retry(bootstrap: str, topic: str) -> None:
    """A note of a redrive, a retried record, and one that came through the topic before."""
    with klamm.Producer(bootstrap) as producer:
        producer.send(f"{topic}.retry", b"{}", headers={"klamm.note": b"opening"}, partition=0)
        producer.send(f"{topic}.retry", b"a", key=b"k", headers=address(topic, 7), partition=0)
        again = {**address(topic, 8), "klamm.retry": b"elsewhere-0/3", "trace": b"t"}
        producer.send(f"{topic}.retry", b"b", headers=again, partition=0)


def test_rows_have_the_coordinates_of_their_original_records(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    make_topic(klamm_bootstrap, f"{topic}.retry")
    retry(klamm_bootstrap, topic)
    first, second = stream(klamm_bootstrap, topic).trigger()
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"a", topic)
    assert (first["partition"], first["offset"], second["offset"]) == (1, 7, 8)
    assert first["timestamp"] == datetime.fromtimestamp(TIME_MS / 1000, UTC)
    assert {"key": "klamm.retry", "value": f"{topic}.retry-0/1".encode()} in first["headers"]
    told = [header["value"] for header in second["headers"] if header["key"] == "klamm.retry"]
    assert told == [f"{topic}.retry-0/2".encode()]
    assert {"key": "trace", "value": b"t"} in second["headers"]


def test_a_retry_topic_is_read_from_its_beginning_once_it_is_there(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    query = stream(klamm_bootstrap, topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}')
    assert query.offset == {topic: {"0": 0}}
    assert query.trigger() == []
    make_topic(klamm_bootstrap, f"{topic}.retry")
    retry(klamm_bootstrap, topic)
    wait_until(lambda: f"{topic}.retry" in query.latest(), "the topic is seen")
    assert [row["value"] for row in query.trigger()] == [b"a", b"b"]
    assert query.offset == {topic: {"0": 0}, f"{topic}.retry": {"0": 3}}

    # A query that goes on, and one that begins anew in the middle or without naming the topic.
    assert Stream.trigger(_going_on(query, klamm_bootstrap, topic)) == []
    named = f'{{"{topic}": {{"0": 0}}, "{topic}.retry": {{"0": 2}}}}'
    assert [row["value"] for row in stream(klamm_bootstrap, topic, startingOffsets=named).trigger()] == [b"b"]
    unnamed = stream(klamm_bootstrap, topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}')
    assert len(unnamed.trigger()) == 2
    assert len(stream(klamm_bootstrap, topic, startingOffsets="latest").trigger()) == 2


def _going_on(query: Stream, bootstrap: str, topic: str) -> Stream:
    options = {"subscribe": topic, "includeHeaders": "true", "retryTopic": f"{topic}.retry"}
    return Stream(bootstrap, start=query.offset, **options)


def test_the_topics_themselves_must_be_there(klamm_bootstrap: str) -> None:
    with pytest.raises(Exception, match="does not exist"):
        stream(klamm_bootstrap, unique("missing"))


@pytest.mark.parametrize(
    ("options", "is_stream", "reason"),
    [
        ({"includeHeaders": "false"}, True, "with includeHeaders=true"),
        ({"includeHeaders": "true"}, False, "for streaming queries"),
        ({"includeHeaders": "true", "retryTopic": "orders"}, True, "one of the topics of subscribe"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, str], is_stream: bool, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_read_options({**LEAST, **options}, is_stream=is_stream)


def test_a_pattern_has_no_retry_topic() -> None:
    options = {**LEAST, "subscribePattern": "o.*", "includeHeaders": "true"}
    del options["subscribe"]
    with pytest.raises(OptionError, match="use subscribe"):
        parse_read_options(options, is_stream=True)
