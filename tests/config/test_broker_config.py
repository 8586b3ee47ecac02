"""The effective configuration: layers, synonyms, listeners, topics, alterations, descriptions."""

from __future__ import annotations

import time

import pytest

from klamm.config.alterations import Alteration, AlterOperation, alter
from klamm.config.broker_config import BrokerConfig
from klamm.config.describe import describe_broker, describe_broker_default, describe_group, describe_topic
from klamm.config.listeners import advertised_addresses
from klamm.config.rows import ConfigError
from klamm.config.topic_keys import TOPIC_KEYS, find_topic_row, topic_config, validate_topic_config

DAY_MS = 86_400_000


def test_retention_is_looked_for_in_ms_then_minutes_then_hours():
    def retention(**static):
        return BrokerConfig({name.replace("_", "."): text for name, text in static.items()})[
            "log.retention.ms"
        ]

    assert retention() == 7 * DAY_MS
    assert retention(log_retention_hours="24") == DAY_MS
    assert retention(log_retention_hours="24", log_retention_minutes="2") == 120_000
    assert retention(log_retention_hours="24", log_retention_minutes="2", log_retention_ms="5") == 5
    assert retention(log_retention_minutes="-1") == -1


def test_layers_win_in_order_and_are_replaced_as_a_whole():
    static = BrokerConfig({"log.segment.bytes": "2000000", "log.retention.hours": "1"})
    dynamic = static.with_dynamic({"log.segment.bytes": "3000000"}, {"log.segment.bytes": "4000000"})
    assert dynamic["log.segment.bytes"] == 4_000_000
    assert [each.source for each in dynamic.sourced_texts("log.segment.bytes")] == [2, 3, 4, 5]
    assert dynamic.with_dynamic({"log.retention.ms": "9"})["log.segment.bytes"] == 2_000_000
    assert dynamic.with_dynamic({"log.retention.ms": "9"})["log.retention.ms"] == 9
    assert static["log.segment.bytes"] == 2_000_000


def test_a_topic_takes_its_own_value_or_the_broker_s():
    config = BrokerConfig({"log.retention.hours": "1", "log.cleanup.policy": "compact"})
    values = topic_config(config, {"max.message.bytes": "7"})
    assert values["retention.ms"] == 3_600_000
    assert values["cleanup.policy"] == ("compact",)
    assert values["max.message.bytes"] == 7
    assert topic_config(config, {"internal.segment.bytes": "100"})["segment.bytes"] == 100
    assert set(values) == set(TOPIC_KEYS)


def test_topic_overrides_are_checked_alone_and_together():
    config = BrokerConfig()
    validate_topic_config(config, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=6.*max\.compaction\.lag\.ms=5"):
        validate_topic_config(config, {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"'retention\.sm'.*retention\.ms"):
        validate_topic_config(config, {"retention.sm": "6"})


@pytest.mark.parametrize(
    ("static", "words"),
    [
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "set advertised.listeners"),
        ({"listeners": "PLAINTEXT://:9092"}, "set advertised.listeners"),
        ({"listeners": "PLAINTEXT://[::]:9092"}, "set advertised.listeners"),
        ({"listeners": "SASL_SSL://a:9092"}, "SASL_SSL is not served yet, only PLAINTEXT"),
        ({"listeners": "INSIDE://a:9092"}, "has no protocol for the listener name INSIDE"),
        ({"listeners": "PLAINTEXT://a"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:70000"}, "from 0 to 65535"),
        ({"listeners": ""}, "at least one"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"}, "another listener is named PLAINTEXT"),
        (
            {
                "listeners": "PLAINTEXT://a:1,OTHER://a:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            },
            "another listener has the same host and port",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "NAME:PROTOCOL"),
        ({"advertised.listeners": "OTHER://a:1"}, "no listener is named OTHER"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "clients cannot connect to a wildcard address"),
    ],
)
def test_listeners_that_cannot_be_served_are_refused_in_one_line(static, words):
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(static)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_clients_are_told_the_address_of_the_listener_they_came_by():
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://0.0.0.0:0,inside://[::1]:0",
            "advertised.listeners": "PLAINTEXT://public:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        }
    )
    told = advertised_addresses(config.listeners, config.advertised_listeners, {"PLAINTEXT": 5, "INSIDE": 6})
    assert {name: str(each) for name, each in told.items()} == {
        "PLAINTEXT": "PLAINTEXT://public:5",
        "INSIDE": "INSIDE://[::1]:6",
    }


def changed(current, *alterations, inherited=lambda name: "delete"):
    return alter(find_topic_row, current, [Alteration(*each) for each in alterations], inherited)


def test_the_four_operations():
    set_, delete, append, subtract = AlterOperation
    assert changed({}, ("retention.ms", set_, "5")) == {"retention.ms": "5"}
    assert changed({"retention.ms": "5"}, ("retention.ms", delete, None)) == {}
    assert changed({}, ("retention.ms", delete, None), ("left.by.another.version", delete, None)) == {}
    assert changed({}, ("cleanup.policy", append, "compact")) == {"cleanup.policy": "delete,compact"}
    assert changed({"cleanup.policy": "compact"}, ("cleanup.policy", append, "compact")) == {
        "cleanup.policy": "compact"
    }
    assert changed({}, ("cleanup.policy", subtract, "delete")) == {"cleanup.policy": ""}


@pytest.mark.parametrize("operation", [AlterOperation.APPEND, AlterOperation.SUBTRACT])
def test_long_lists_are_altered_in_one_pass(operation):
    name = "follower.replication.throttled.replicas"
    before = ",".join(f"{number}:1" for number in range(16_000))
    others = ",".join(f"{number}:2" for number in range(16_000))
    started_s = time.process_time()
    altered = changed({name: before}, (name, operation, others))[name]
    assert time.process_time() - started_s < 1
    assert len(altered.split(",")) == (32_000 if operation is AlterOperation.APPEND else 16_000)


@pytest.mark.parametrize(
    "alteration",
    [
        ("retention.ms", AlterOperation.SET, "-2"),
        ("retention.ms", AlterOperation.SET, None),
        ("retention.ms", AlterOperation.APPEND, "5"),
        ("cleanup.policy", AlterOperation.APPEND, "shred"),
        ("no.such.key", AlterOperation.SET, "5"),
    ],
)
def test_alterations_that_make_no_sense_are_refused(alteration):
    with pytest.raises(ConfigError):
        changed({}, alteration)


def test_a_topic_is_described_with_its_chain():
    config = BrokerConfig({"log.retention.hours": "1"}).with_dynamic({"log.segment.bytes": "2000000"})
    described = {each.row.name: each for each in describe_topic(config, {"max.message.bytes": "7"})}
    assert (described["max.message.bytes"].text, described["max.message.bytes"].source) == ("7", 1)
    assert [tuple(each) for each in described["max.message.bytes"].synonyms] == [
        ("max.message.bytes", "7", 1),
        ("message.max.bytes", "1048588", 5),
    ]
    assert (described["retention.ms"].text, described["retention.ms"].source) == ("3600000", 5)
    assert (described["segment.bytes"].text, described["segment.bytes"].source) == ("2000000", 3)
    assert (described["flush.ms"].text, described["flush.ms"].source) == (str(2**63 - 1), 5)
    assert "internal.segment.bytes" not in described


def test_a_broker_and_a_group_are_described():
    config = BrokerConfig({"broker.rack": "east"}).with_dynamic({"message.max.bytes": "9"})
    described = {each.row.name: each for each in describe_broker(config)}
    assert (described["broker.rack"].text, described["broker.rack"].source) == ("east", 4)
    assert described["broker.rack"].read_only and not described["message.max.bytes"].read_only
    assert described["message.max.bytes"].source == 3
    assert described["node.id"].text == "1"
    assert [each.row.name for each in describe_broker_default(config)] == ["message.max.bytes"]
    groups = {
        each.row.name: each for each in describe_group(config, {"consumer.session.timeout.ms": "50000"})
    }
    assert (groups["consumer.session.timeout.ms"].text, groups["consumer.session.timeout.ms"].source) == (
        "50000",
        8,
    )
