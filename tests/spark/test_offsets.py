from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.ids import TopicPartition
from pyspark_klamm.errors import OptionError
from pyspark_klamm.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    from_json,
    listed,
    parse_assignment,
    parse_bound,
    parse_offsets,
    to_json,
)

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)

names = st.text("abc.-_é", min_size=1, max_size=5)
partitions = st.builds(TopicPartition, names, st.integers(0, 20))


@given(st.dictionaries(partitions, st.integers(0, 2**62)))
def test_offsets_survive_the_way_through_json(offsets: dict[TopicPartition, int]) -> None:
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    assert parse_offsets(text, "startingOffsets") == offsets


@given(st.dictionaries(partitions, st.integers(0, 100)), st.randoms())
def test_equal_offsets_have_equal_texts(offsets: dict[TopicPartition, int], chance: object) -> None:
    items = list(offsets.items())
    chance.shuffle(items)  # type: ignore[attr-defined]
    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(offsets))


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    offsets = {TopicPartition("t", number): number for number in (10, 9, 2)}
    assert list(to_json(offsets)["t"]) == ["2", "9", "10"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        '{"t": 7}',
        '{"t": {"0": "7"}}',
        '{"t": {"0": 7.5}}',
        '{"t": {"0": true}}',
        '{"t": {"x": 7}}',
        '{"t": {"-1": 7}}',
        '{"t": {"0": -3}}',
        "{",
    ],
)
def test_malformed_offsets_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        OptionError, match=r'startingOffsets=.* is not valid: expected for example \{"orders"'
    ):
        parse_offsets(text, "startingOffsets")


def test_a_time_is_never_negative() -> None:
    with pytest.raises(OptionError):
        parse_offsets('{"t": {"0": -1}}', "startingOffsetsByTimestamp", least=0)


def test_an_assignment_is_partitions_by_topic() -> None:
    assert parse_assignment('{"b": [1, 0, 1], "a": [2]}', "assign") == [
        TopicPartition("a", 2),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    ]


@pytest.mark.parametrize("text", ["{}", '{"a": []}', '{"a": 1}', '{"a": [-1]}', '{"a": [true]}', "a:1"])
def test_a_malformed_assignment_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="assign="):
        parse_assignment(text, "assign")


def test_words_and_offsets_are_bounds() -> None:
    assert parse_bound(" Earliest ", "startingOffsets").everywhere == EARLIEST
    assert parse_bound("latest", "endingOffsets").everywhere == LATEST
    assert parse_bound('{"orders": {"0": -2}}', "startingOffsets").offsets == {ORDERS_0: EARLIEST}
    with pytest.raises(OptionError, match="earliest, latest, or offsets as JSON"):
        parse_bound("beginning", "startingOffsets")


def test_only_what_is_not_given_is_asked_for() -> None:
    bound = Bound("startingOffsets", offsets={ORDERS_0: 5, ORDERS_1: LATEST})
    assert bound.questions([ORDERS_0, ORDERS_1]) == {ORDERS_1: LATEST}
    assert Bound("o", everywhere=EARLIEST).questions([ORDERS_0]) == {ORDERS_0: EARLIEST}
    assert Bound("o", time_ms=77).questions([ORDERS_0, ORDERS_1]) == {ORDERS_0: 77, ORDERS_1: 77}
    assert Bound("o", times_ms={ORDERS_0: 1, ORDERS_1: 2}).questions([ORDERS_1]) == {ORDERS_1: 2}


def test_offsets_must_name_all_partitions_and_no_other() -> None:
    bound = Bound("startingOffsets", offsets={ORDERS_0: 5})
    bound.check_named([ORDERS_0])
    with pytest.raises(OptionError, match=r"lacks orders-1.*-2 stands for earliest"):
        bound.check_named([ORDERS_0, ORDERS_1])
    with pytest.raises(OptionError, match="names orders-0, which the query does not read"):
        bound.check_named([])
    Bound("startingOffsets", everywhere=LATEST).check_named([ORDERS_1])


def test_many_partitions_are_named_by_the_first_few() -> None:
    assert listed([TopicPartition("t", number) for number in range(13)]).endswith("t-9 and 3 more")
