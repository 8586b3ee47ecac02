"""Rows: parsing, bounds, error texts, and agreement with Kafka and with the document."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.group_keys import GROUP_KEYS
from klamm.config.rows import ConfigError, ConfigType, find_row
from klamm.config.topic_keys import TOPIC_KEYS
from scripts import config_reference

ALL_ROWS = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values()]


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_every_default_is_within_its_own_bounds(row):
    text = row.text_of(row.default)
    if text is not None:
        assert row.parse(text) == row.default


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_every_row_is_documented_and_owns_up_to_having_no_effect(row):
    assert row.doc.endswith(".")
    assert row.honoured != ("no effect" in row.doc or bool(row.refused_because))


def test_every_topic_key_falls_back_to_a_broker_key_of_the_same_type_and_default():
    for row in TOPIC_KEYS.values():
        for synonym in row.synonyms:
            broker_row = BROKER_KEYS[synonym.name]
            assert broker_row.type == row.type
            chain = [broker_row.default, *(BROKER_KEYS[s.name].default for s in broker_row.synonyms)]
            factors = [1, *(s.factor for s in broker_row.synonyms)]
            first = next(
                (value * factor if factor > 1 else value, factor)
                for value, factor in zip(chain, factors, strict=True)
                if value is not None
            )
            assert first[0] == row.default, row.name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "compact, delete", ("compact", "delete")),
        ("cleanup.policy", "delete,delete", ("delete",)),
        ("cleanup.policy", "", ()),
        ("preallocate", "TRUE", True),
        ("flush.messages", " 12 ", 12),
        ("compression.gzip.level", "-1", -1),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("retention.bytes", "-5", -5),
    ],
)
def test_values_that_kafka_takes_are_taken(name, text, value):
    assert TOPIC_KEYS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "shred"),
        ("retention.ms", "-2"),
        ("segment.bytes", "14"),
        ("compression.type", "none"),
        ("compression.type", "GZIP"),
        ("preallocate", "1"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("compression.gzip.level", "0"),
        ("max.message.bytes", "abc"),
        ("max.message.bytes", "1_000"),
        ("max.message.bytes", "2147483648"),
        ("message.timestamp.type", "createtime"),
    ],
)
def test_values_that_kafka_refuses_are_refused_by_name_and_bounds(name, text):
    with pytest.raises(ConfigError) as caught:
        TOPIC_KEYS[name].parse(text)
    message = str(caught.value)
    assert name in message and repr(text) in message and TOPIC_KEYS[name].bounds_text() in message
    assert "\n" not in message


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'log\.retension\.hours'.*log\.retention\.hours"):
        find_row(BROKER_KEYS, "log.retension.hours", "broker")


INTEGER_ROWS = [
    row
    for row in ALL_ROWS
    if row.type in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT) and not row.refused_because
]


@given(st.sampled_from(INTEGER_ROWS), st.integers(-(2**70), 2**70))
def test_an_integer_is_taken_whole_or_refused(row, number):
    low, high = row._bounds()
    try:
        assert row.parse(str(number)) == number
        assert low <= number <= high or number in row.also_allowed
    except ConfigError:
        assert not low <= number <= high


@given(st.sampled_from(ALL_ROWS), st.text(max_size=20))
def test_any_text_is_parsed_or_refused_with_a_config_error(row, text):
    try:
        value = row.parse(text)
    except ConfigError:
        return
    assert row.parse(row.text_of(value)) == value


def test_the_document_is_what_the_rows_say():
    document = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"
    assert document.read_text() == config_reference.render(), (
        "run: .venv/bin/python scripts/config_reference.py > docs/CONFIGURATION.md"
    )
