"""Kafka's keys without effect: accepted and named once at start, or refused where they make a promise."""

from __future__ import annotations

import logging

import pytest

from klamm.config.broker_config import BrokerConfig
from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.describe import describe_broker, describe_topic
from klamm.config.loading import load_broker_config
from klamm.config.rows import ConfigError, ConfigRow, ConfigType
from klamm.config.topic_keys import TOPIC_KEYS, validate_topic_config
from klamm.testing import Broker

WITHOUT_EFFECT = [row for row in BROKER_KEYS.values() if not row.honoured]

# As in the file that Kafka 4.3 is delivered with.
KAFKA_FILE = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.max.timeout.ms=600000
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_the_file_of_kafka_starts_a_broker_without_the_listener_of_its_controller(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(KAFKA_FILE)
    config = load_broker_config(file)
    assert [str(each) for each in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.int_("transaction.max.timeout.ms") == 600_000
    assert {"num.io.threads", "transaction.max.timeout.ms"} <= set(config.without_effect())
    assert "num.partitions" not in config.without_effect()


def acceptable(row: ConfigRow) -> str:
    """Some value that the row must take."""
    default = row.text_of(row.default)
    if row.refused_because:
        assert default is not None
        return default
    if row.choices:
        return row.choices[0]
    if row.type is ConfigType.BOOLEAN:
        return "true"
    return "17" if default is None else default


@pytest.mark.parametrize(
    "row",
    # Those that have no default and are refused have no value at all that could be accepted.
    [row for row in WITHOUT_EFFECT if not row.refused_because or row.default is not None],
    ids=lambda row: row.name,
)
def test_every_key_is_accepted_from_file_environment_and_flag(row, tmp_path):
    text = acceptable(row)
    file = tmp_path / "a.properties"
    file.write_text(f"{row.name}={text}\n")
    variable = "KLAMM_" + row.name.upper().replace(".", "_")
    for config in (
        load_broker_config(file),
        load_broker_config(environment={variable: text}),
        load_broker_config(flags=[f"{row.name}={text}"]),
    ):
        assert config[row.name] == row.parse(text)
        assert config.without_effect() == [row.name]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ssl.keystore.location", "/etc/keys.p12", "TLS"),
        ("ssl.client.auth", "required", "TLS"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512", "logins"),
        (
            "authorizer.class.name",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "access control",
        ),
        ("security.inter.broker.protocol", "SSL", "TLS"),
        ("principal.builder.class", "com.example.Principals", "logins"),
        ("super.users", "User:admin", "access control"),
        ("allow.everyone.if.no.acl.found", "false", "access control"),
        ("listener.name.inside.ssl.keystore.location", "/etc/keys.p12", "TLS"),
        ("listener.name.inside.max.connections", "5", "set max.connections"),
        ("create.topic.policy.class.name", "com.example.Policy", "not be enforced"),
        ("config.providers", "file", "write the values"),
        ("remote.log.storage.system.enable", "true", "tiered storage"),
        ("cordoned.log.dirs", "/data", "out of log.dirs"),
        ("process.roles", "controller", "must contain broker"),
        ("broker.id", "7", "set one of them"),
    ],
)
def test_a_key_that_promises_what_is_not_built_stops_the_start_and_says_what_to_do(
    tmp_path, name, text, words
):
    file = tmp_path / "a.properties"
    file.write_text(f"node.id=1\n{name}={text}\n")
    with pytest.raises(ConfigError) as caught:
        load_broker_config(file)
    message = str(caught.value)
    assert "line 2" in message and name in message and words in message and "\n" not in message


def test_a_refused_password_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({"ssl.key.password": "top-secret"})
    assert "ssl.key.password" in str(caught.value) and "top-secret" not in str(caught.value)


def test_values_of_keys_without_effect_are_checked_against_kafka_s_bounds():
    for name, text in (
        ("transaction.max.timeout.ms", "0"),
        ("num.io.threads", "many"),
        ("group.share.delivery.count.limit", "11"),
        ("group.coordinator.rebalance.protocols", "modern"),
        ("remote.log.metadata.manager.impl.prefix", ""),
        ("auto.leader.rebalance.enable", "maybe"),
    ):
        with pytest.raises(ConfigError, match=r"must be"):
            BrokerConfig({name: text})


def test_keys_without_effect_are_named_in_one_line_at_start(caplog):
    settings = {"transaction.max.timeout.ms": 5, "background.threads": 10, "num.partitions": 2}
    with caplog.at_level(logging.WARNING, logger="klamm"), Broker(settings):
        pass
    lines = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].endswith(": background.threads, transaction.max.timeout.ms")


def test_a_broker_without_such_keys_says_nothing(caplog):
    with caplog.at_level(logging.WARNING, logger="klamm"), Broker():
        pass
    assert not [record for record in caplog.records if "no effect" in record.getMessage()]


@pytest.mark.parametrize("static", [{"broker.id": "3"}, {"node.id": "3"}, {"broker.id": "3", "node.id": "3"}])
def test_both_names_of_the_broker_s_number_hold_it(static):
    config = BrokerConfig(static)
    assert (config["node.id"], config["broker.id"]) == (3, 3)


def test_what_only_a_synonym_sets_is_described_as_null():
    config = BrokerConfig({"log.retention.hours": "1", "log.roll.hours": "2"})
    described = {each.row.name: each for each in describe_broker(config)}
    for name in ("log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"):
        assert (described[name].text, described[name].source, described[name].synonyms) == (None, 5, [])
    topic = {each.row.name: each for each in describe_topic(config, {})}
    assert (topic["retention.ms"].text, topic["retention.ms"].synonyms) == ("3600000", [])
    assert (topic["segment.ms"].text, topic["segment.ms"].synonyms) == ("7200000", [])
    dynamic = config.with_dynamic({"log.retention.ms": "5"})
    topic = {each.row.name: each for each in describe_topic(dynamic, {})}
    assert [tuple(each) for each in topic["retention.ms"].synonyms] == [
        ("log.retention.ms", "5", 3),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_internal_keys_are_described_only_while_they_are_set():
    name = "leader.replication.throttled.rate"
    assert name not in {each.row.name for each in describe_broker(BrokerConfig())}
    config = BrokerConfig().with_dynamic({}, {name: "5"})
    (described,) = (each for each in describe_broker(config) if each.row.name == name)
    assert (described.text, [tuple(each) for each in described.synonyms]) == ("5", [(name, "5", 2)])


def test_topics_take_the_keys_of_tiered_storage_and_throttling_but_do_not_turn_them_on():
    config = BrokerConfig()
    assert len([row for row in TOPIC_KEYS.values() if not row.internal]) == 33
    validate_topic_config(config, {"local.retention.ms": "5", "local.retention.bytes": "-2"})
    validate_topic_config(config, {"remote.log.copy.disable": "true", "remote.log.delete.on.disable": "true"})
    validate_topic_config(config, {"remote.storage.enable": "false"})
    validate_topic_config(config, {"leader.replication.throttled.replicas": "0:1,1:2"})
    validate_topic_config(config, {"follower.replication.throttled.replicas": "*"})
    with pytest.raises(ConfigError, match="tiered storage is not built"):
        validate_topic_config(config, {"remote.storage.enable": "true"})
    with pytest.raises(ConfigError, match="partition:broker"):
        validate_topic_config(config, {"follower.replication.throttled.replicas": "all"})


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5, "0.5"),
        (0, "0.0"),
        (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"),
        (5e-4, "5.0E-4"),
        (-1e10, "-1.0E10"),
    ],
)
def test_numbers_are_written_as_java_writes_them(number, text):
    assert BROKER_KEYS["log.cleaner.io.max.bytes.per.second"].text_of(number) == text
