"""One suite for our connector and for Spark's own, against Klamm and against Apache Kafka.

One file, so that one process runs it: it needs two JVMs and both brokers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import klamm
from tests.client.topics import make_topic, unique
from tests.long import cases
from tests.spark.contract import queries
from tests.spark.contract.conftest import ALIAS, HEADERS, ON_APACHE, ON_KLAMM, Place
from tests.spark.contract.connectors import Connector
from tests.spark.contract.queries import Failure, Streamed
from tests.spark.topics import records_of

VALUE = ["CAST(CAST(value AS STRING) AS INT)"]

on_klamm_alone = pytest.mark.parametrize("place", ON_KLAMM, indirect=True, scope="session")
under_all_names = pytest.mark.parametrize(
    "place", [*ON_KLAMM, *ON_APACHE, ALIAS], indirect=True, scope="session"
)


def numbers(place: Place, **options: object) -> list[int]:
    """The values that a batch query reads."""
    given = {"subscribe": place.numbers} if not options.keys() & SUBSCRIPTIONS else {}
    rows = place.connector.run(queries.read, place.options(**given, **options), VALUE)
    assert not isinstance(rows, Failure), rows.text
    return sorted(row[0] for row in rows)


SUBSCRIPTIONS = {"subscribe", "subscribePattern", "assign"}


def refused(place: Place, **options: object) -> str:
    """What a batch query says that fails."""
    failure = place.connector.run(queries.read, place.options(**options), VALUE)
    assert isinstance(failure, Failure), failure
    return failure.text


def by_partition(topic: str, first: object, second: object) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


# ---- which connector it is


@under_all_names
def test_spark_takes_the_connector_that_is_meant(place: Place) -> None:
    wanted = {
        "klamm": "klamm.DefaultSource",
        "kafka": "kafka.DefaultSource",
        "official": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    }
    assert place.connector.run(queries.provider) == wanted[place.connector.title]


def test_ours_works_beside_the_official_one(official: Connector, klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    options = {"kafka.bootstrap.servers": klamm_bootstrap, "topic": topic, "subscribe": topic}
    assert official.call(queries.write, "klamm", options, [("a",)], "value STRING") is None
    assert official.call(queries.read, "klamm", options, ["value"]) == [(b"a",)]


# ---- batch reads


@on_klamm_alone
@pytest.mark.parametrize("has_headers", [False, True])
def test_schema(place: Place, has_headers: bool) -> None:
    options = place.options(subscribe=place.numbers, includeHeaders=has_headers)
    columns = {
        field["name"]: (field["type"], field["nullable"])
        for field in place.connector.run(queries.schema, options)["fields"]
    }
    header = {
        "type": "struct",
        "fields": [
            {"name": "key", "type": "string", "nullable": True, "metadata": {}},
            {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
        ],
    }
    wanted: dict[str, object] = {
        "key": ("binary", True),
        "value": ("binary", True),
        "topic": ("string", True),
        "partition": ("integer", True),
        "offset": ("long", True),
        "timestamp": ("timestamp", True),
        "timestampType": ("integer", True),
    }
    if has_headers:
        wanted["headers"] = ({"type": "array", "elementType": header, "containsNull": True}, True)
    assert list(columns) == list(wanted)
    assert columns == wanted


@under_all_names
def test_every_column(place: Place) -> None:
    columns = ["key", "value", "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType"]
    rows = place.connector.run(queries.read, place.options(subscribe=place.numbers), columns)
    wanted = [
        (
            None if number == 3 else b"k%d" % number,
            b"%d" % number,
            place.numbers,
            number // 10,
            number % 10,
            1000 * (number % 10 + 1),
            0,
        )
        for number in range(15)
    ]
    assert rows == sorted(wanted, key=repr)


def test_headers(place: Place) -> None:
    options = place.options(
        subscribe=place.numbers, includeHeaders=True, endingOffsets=by_partition(place.numbers, 6, 0)
    )
    rows = place.connector.run(queries.read, options, ["offset", "headers"])
    assert rows == [(offset, tuple(HEADERS) if offset == 4 else None) for offset in range(6)]


def test_offsets(place: Place) -> None:
    found = numbers(
        place,
        startingOffsets=by_partition(place.numbers, 7, -2),
        endingOffsets=by_partition(place.numbers, -1, 2),
    )
    assert found == [7, 8, 9, 10, 11]
    assert numbers(place, startingOffsets="earliest", endingOffsets="latest") == list(range(15))


def test_times(place: Place) -> None:
    assert numbers(place, startingTimestamp=4_500, endingTimestamp=7_000) == [4, 5, 14]
    found = numbers(
        place,
        startingOffsetsByTimestamp=by_partition(place.numbers, 9_000, 5_000),
        endingOffsetsByTimestamp=by_partition(place.numbers, 10_000, 99_000),
    )
    assert found == [8, 14]


def test_the_more_exact_option_wins(place: Place) -> None:
    found = numbers(
        place,
        startingTimestamp=10_000,
        startingOffsets="earliest",
        endingOffsetsByTimestamp=by_partition(place.numbers, 99_000, 99_000),
        endingOffsets="latest",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert found == [9]


def test_a_time_after_all_records(place: Place) -> None:
    assert numbers(place, startingTimestamp=10**13, startingOffsetsByTimestampStrategy="latest") == []
    text = refused(place, subscribe=place.numbers, startingTimestamp=10**13)
    assert place.numbers in text


def test_ways_to_say_what_to_read(place: Place) -> None:
    other = make_topic(place.bootstrap, name=f"{place.numbers}-{unique('other')}")
    with klamm.Producer(place.bootstrap) as producer:
        producer.send(other, b"99")
    assert numbers(place, subscribe=f"{place.numbers}, {other}") == [*range(15), 99]
    assert numbers(place, subscribePattern=f"{place.numbers}-{other[-3:]}|{other[:-3]}...") == [99]
    assert numbers(place, assign=json.dumps({place.numbers: [1]})) == list(range(10, 15))


@on_klamm_alone
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "a", "assign": '{"a":[0]}'},
        {"subscribe": " "},
        {"assign": "nothing"},
        {"subscribe": "NUMBERS", "startingOffsets": "latest"},
        {"subscribe": "NUMBERS", "endingOffsets": "earliest"},
        {"subscribe": "NUMBERS", "startingOffsets": '{"NUMBERS":{"0":1}}'},
        {"subscribe": "NUMBERS", "startingOffsets": '{"NUMBERS":{"0":-1,"1":0}}'},
        {"subscribe": "NUMBERS", "startingOffsets": "someday"},
        {"subscribe": "NUMBERS", "minPartitions": "0"},
        {"subscribe": "NUMBERS", "kafka.auto.offset.reset": "earliest"},
        {"subscribe": "NUMBERS", "kafka.enable.auto.commit": "true"},
        {"subscribe": "NUMBERS", "kafka.bootstrap.servers": ""},
    ],
    ids=str,
)
def test_options_that_are_refused(place: Place, options: dict[str, str]) -> None:
    named = {name: value.replace("NUMBERS", place.numbers) for name, value in options.items()}
    assert refused(place, **named)


def test_partitions_are_split(place: Place) -> None:
    given = place.options(subscribe=place.numbers, minPartitions=7)
    assert place.connector.run(queries.partition_count, given) == 7
    assert numbers(place, minPartitions=7) == list(range(15))
    assert numbers(place, maxRecordsPerPartition=3) == list(range(15))


def test_lost_records(place: Place) -> None:
    topic = filled(place, 10)
    with klamm.Admin(place.bootstrap) as admin:
        admin.delete_records({(topic, 0): 4})
    start = json.dumps({topic: {"0": 1}})
    assert numbers(place, subscribe=topic, startingOffsets=start, failOnDataLoss="false") == list(
        range(4, 10)
    )
    assert topic in refused(place, subscribe=topic, startingOffsets=start)
    assert numbers(place, subscribe=topic) == list(range(4, 10)), "what earliest means is no loss"


def filled(place: Place, count: int, start: int = 0, topic: str | None = None) -> str:
    """A topic of one partition with the values from `start` on."""
    topic = topic or make_topic(place.bootstrap)
    with klamm.Producer(place.bootstrap) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, partition=0)
    return topic


# ---- streams


def streamed(place: Place, checkpoint: str, **options: object) -> Streamed:
    result = place.connector.run(queries.stream, place.options(**options), checkpoint)
    assert not isinstance(result, Failure), result.text
    return result


def values(result: Streamed) -> list[int]:
    return sorted(int(value) for batch in result.batches for value in batch)


@under_all_names
def test_a_stream_goes_on_where_its_checkpoint_ends(place: Place, checkpoint: str) -> None:
    topic = filled(place, 5)
    first = streamed(place, checkpoint, subscribe=topic, startingOffsets="earliest")
    assert values(first) == list(range(5))
    assert json.loads(first.offsets) == {topic: {"0": 5}}
    filled(place, 3, start=5, topic=topic)
    second = streamed(place, checkpoint, subscribe=topic, startingOffsets="earliest")
    assert values(second) == [5, 6, 7]
    assert json.loads(second.offsets) == {topic: {"0": 8}}


@pytest.mark.long
def test_a_stream_in_pieces(place: Place, checkpoint: str) -> None:
    result = streamed(
        place, checkpoint, subscribe=place.numbers, startingOffsets="earliest", maxOffsetsPerTrigger=6
    )
    assert values(result) == list(range(15))
    assert [len(batch) for batch in result.batches] == [6, 6, 3]
    assert json.loads(result.offsets) == {place.numbers: {"0": 10, "1": 5}}


def test_a_stream_from_offsets_and_times(place: Place, tmp_path: Path) -> None:
    by_offset = streamed(
        place,
        str(tmp_path / "offsets"),
        subscribe=place.numbers,
        startingOffsets=by_partition(place.numbers, 8, -1),
    )
    assert values(by_offset) == [8, 9]
    by_time = streamed(place, str(tmp_path / "times"), subscribe=place.numbers, startingTimestamp=5_000)
    assert values(by_time) == [4, 5, 6, 7, 8, 9, 14]


@pytest.mark.long
def test_a_stream_starts_at_the_end_by_itself(place: Place, checkpoint: str) -> None:
    topic = filled(place, 3)
    assert values(streamed(place, checkpoint, subscribe=topic)) == []
    filled(place, 2, start=3, topic=topic)
    assert values(streamed(place, checkpoint, subscribe=topic)) == [3, 4]


def test_a_stream_finds_new_partitions(place: Place, checkpoint: str) -> None:
    topic = filled(place, 2)
    streamed(place, checkpoint, subscribe=topic)
    with klamm.Admin(place.bootstrap) as admin:
        admin.create_partitions(topic, 2)
    with klamm.Producer(place.bootstrap) as producer:
        producer.send(topic, b"7", partition=1).result()
    assert values(streamed(place, checkpoint, subscribe=topic)) == [7], "from the beginning of what is new"


def test_a_stream_that_lost_records(place: Place, tmp_path: Path) -> None:
    topic = filled(place, 3)
    checkpoints = [str(tmp_path / name) for name in ("strict", "loose")]
    for checkpoint in checkpoints:
        streamed(place, checkpoint, subscribe=topic, startingOffsets="earliest")
    filled(place, 4, start=3, topic=topic)
    with klamm.Admin(place.bootstrap) as admin:
        admin.delete_records({(topic, 0): 5})
    failed = place.connector.run(queries.stream, place.options(subscribe=topic), checkpoints[0])
    assert isinstance(failed, Failure) and topic in failed.text, failed
    assert values(streamed(place, checkpoints[1], subscribe=topic, failOnDataLoss="false")) == [5, 6]


@on_klamm_alone
def test_streams_have_no_end(place: Place, checkpoint: str) -> None:
    options = place.options(subscribe=place.numbers, endingOffsets="latest")
    failed = place.connector.run(queries.stream, options, checkpoint)
    assert isinstance(failed, Failure) and "endingoffset" in failed.text.lower().replace(" ", ""), failed


@pytest.mark.parametrize("broker", ["klamm_bootstrap", "apache_kafka"])
@pytest.mark.parametrize("first", ["official", "ours"])
def test_a_query_moves_between_connectors(
    official: Connector,
    ours_as_kafka: Connector,
    first: str,
    broker: str,
    checkpoint: str,
    request: pytest.FixtureRequest,
) -> None:
    """Started with one connector, it goes on with the other from the same checkpoint, and back."""
    bootstrap = request.getfixturevalue(broker)
    connectors = [official, ours_as_kafka] if first == "official" else [ours_as_kafka, official]
    topic = make_topic(bootstrap)
    for step in range(4):
        here = Place(connectors[step % 2], bootstrap, topic)
        filled(here, 3, start=3 * step, topic=topic)
        result = streamed(here, checkpoint, subscribe=topic, startingOffsets="earliest")
        assert values(result) == list(range(3 * step, 3 * step + 3))


# ---- the sink


@under_all_names
def test_a_written_row(place: Place) -> None:
    topic = make_topic(place.bootstrap, partitions=3)
    columns = "key BINARY, value STRING, partition INT, topic STRING"
    columns += ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    rows = [
        (b"k", "v", 2, topic, HEADERS),
        (None, "no key", 1, topic, None),
        (b"gone", None, 0, topic, []),
    ]
    assert place.connector.run(queries.write, place.options(), rows, columns) is None
    found = [(each.key, each.value, list(each.headers)) for each in records_of(place.bootstrap, topic)]
    assert found == [(b"gone", None, []), (None, b"no key", []), (b"k", b"v", HEADERS)]


def test_the_option_topic_wins_over_the_column(place: Place) -> None:
    by_option, by_column = make_topic(place.bootstrap), make_topic(place.bootstrap)
    columns = "value BINARY, topic STRING"
    rows = [(b"x", by_column)]
    assert place.connector.run(queries.write, place.options(topic=by_option), rows, columns, "append") is None
    assert place.connector.run(queries.write, place.options(), rows, columns) is None
    assert [each.value for each in records_of(place.bootstrap, by_option)] == [b"x"]
    assert [each.value for each in records_of(place.bootstrap, by_column)] == [b"x"]


def test_keys_choose_partitions(place: Place) -> None:
    topic = make_topic(place.bootstrap, partitions=7)
    rows = [(f"key-{number}", "x") for number in range(50)]
    assert (
        place.connector.run(queries.write, place.options(topic=topic), rows, "key STRING, value STRING")
        is None
    )
    found = {each.key: each.partition for each in records_of(place.bootstrap, topic)}
    other = make_topic(place.bootstrap, partitions=7)
    with klamm.Producer(place.bootstrap) as producer:
        sent = {key: producer.send(other, b"x", key=key) for key in found}
        assert found == {key: delivery.result().partition for key, delivery in sent.items()}
    assert len(found) == 50


@on_klamm_alone
@pytest.mark.parametrize(
    ("columns", "row", "options", "words"),
    [
        ("key STRING", ("k",), {"topic": "t"}, "value"),
        ("value STRING", ("v",), {}, "topic option required"),
        ("value STRING, topic STRING", ("v", None), {}, "topic"),
        ("value INT", (1,), {"topic": "t"}, "value"),
        ("key INT, value STRING", (1, "v"), {"topic": "t"}, "key"),
        ("value STRING, topic INT", ("v", 1), {}, "topic"),
        ("value STRING, partition STRING", ("v", "1"), {"topic": "t"}, "partition"),
        ("value STRING, headers ARRAY<STRING>", ("v", ["h"]), {"topic": "t"}, "headers"),
    ],
)
def test_rows_that_are_refused(
    place: Place, columns: str, row: tuple[object, ...], options: dict[str, str], words: str
) -> None:
    failure = place.connector.run(queries.write, place.options(**options), [row], columns)
    assert isinstance(failure, Failure) and words in failure.text, failure


@on_klamm_alone
@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_records_are_only_ever_added(place: Place, mode: str) -> None:
    options = place.options(topic=place.numbers)
    failure = place.connector.run(queries.write, options, [("v",)], "value STRING", mode)
    assert isinstance(failure, Failure) and mode in failure.text.lower(), failure


@under_all_names
@pytest.mark.parametrize("mode", cases(["append", "update", "complete"], lambda mode: mode == "update"))
def test_streams_are_written(place: Place, tmp_path: Path, mode: str) -> None:
    topic = make_topic(place.bootstrap)
    assert place.connector.run(queries.stream_counts, place.options(topic=topic), str(tmp_path), mode) is None
    found = sorted((each.key, each.value) for each in records_of(place.bootstrap, topic))
    counted = [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")]
    assert found == {"append": [(b"a", b"a")] * 3 + [(b"b", b"b")]}.get(mode, counted)
