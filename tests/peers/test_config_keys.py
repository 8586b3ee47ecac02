"""Kafka's configuration keys beside ours: the tables in its jars, and the answers of a running Kafka.

A difference that is meant stands in `DEVIATIONS`, with its reason; a reason for no difference fails too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from klamm.apis import k19_create_topics, k32_describe_configs, k44_incremental_alter_configs
from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.group_keys import GROUP_KEYS
from klamm.config.rows import ConfigRow, ConfigType
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.protocol.messages import k19_create_topics as m19
from klamm.protocol.messages import k20_delete_topics as m20
from klamm.protocol.messages import k32_describe_configs as m32
from klamm.protocol.messages import k44_incremental_alter_configs as m44
from klamm.testing.wire import WireConnection
from tests.clients.remote import java_command
from tests.cluster.handlers import scenario_with_broker
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

_CHECKED_ELSEWHERE = (
    "Kafka's table has no bounds; its code refuses these values, or nothing good comes of them"
)
_MOST_PARTITIONS = "a topic has at most 10,000 partitions"

DEVIATIONS = {
    ("broker", "node.id", "default"): "Kafka demands a number; one broker alone needs none",
    ("broker", "broker.id", "bounds"): _CHECKED_ELSEWHERE,
    ("broker", "listeners", "default"): "a broker that nobody configured serves its own machine only",
    ("broker", "log.dir", "default"): "data belongs into the working directory, not into /tmp",
    ("broker", "socket.receive.buffer.bytes", "default"): "the system adapts the buffer better than a number",
    ("broker", "num.partitions", "bounds"): _MOST_PARTITIONS,
    ("broker", "offsets.topic.num.partitions", "bounds"): _MOST_PARTITIONS,
    ("broker", "offsets.topic.segment.bytes", "bounds"): "segment.bytes of every topic is at least 1 MiB",
    **{
        (table, name, "bounds"): _CHECKED_ELSEWHERE
        for table, name in (
            ("broker", "connections.max.idle.ms"),
            ("broker", "default.replication.factor"),
            ("broker", "group.initial.rebalance.delay.ms"),
            ("broker", "group.max.session.timeout.ms"),
            ("broker", "group.min.session.timeout.ms"),
            ("broker", "log.cleaner.dedupe.buffer.size"),
            ("broker", "log.flush.interval.ms"),
            ("broker", "log.flush.scheduler.interval.ms"),
            ("broker", "log.retention.hours"),
            ("broker", "log.retention.minutes"),
            ("broker", "log.retention.ms"),
            ("broker", "log.roll.jitter.ms"),
            ("broker", "log.roll.ms"),
            ("broker", "offset.metadata.max.bytes"),
            ("broker", "replica.high.watermark.checkpoint.interval.ms"),
            ("broker", "socket.receive.buffer.bytes"),
            ("broker", "socket.send.buffer.bytes"),
            ("topic", "internal.segment.bytes"),
        )
    },
}
"""What differs from Kafka's tables, and why: (table, key, fact)."""

OF_THE_MACHINE = {"advertised.listeners", "listeners", "log.dirs"}
"""Keys whose values differ between two brokers on one machine."""

DYNAMIC_ONLY = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Broker keys that Kafka knows only at run time: they have no default until they are set."""

TABLES = {"broker": BROKER_KEYS, "topic": TOPIC_KEYS, "group": GROUP_KEYS}

Facts = dict[str, object]


@pytest.fixture(scope="module")
def kafka_tables() -> dict[str, dict[str, Facts]]:
    try:
        command = java_command("ConfigTables")
    except PeerMissing as problem:
        cannot_run(problem)
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    tables: dict[str, dict[str, Facts]] = {}
    for line in printed.splitlines():
        table, name, kind, default, bounds, importance, internal, last = line.split("\t")
        tables.setdefault(table, {})[name] = {
            "type": kind,
            "default": default,
            "bounds": _kafka_bounds(kind, bounds),
            "importance": importance,
            "internal": internal == "internal",
            "changes" if table in ("broker", "dynamic") else "synonym": last,
        }
    return tables


def _kafka_bounds(kind: str, text: str) -> tuple[object, ...]:
    """What a validator of Kafka's says, in the shape of `_our_bounds`."""
    match = re.fullmatch(r"\[(-?[\d.]+),\.\.\.(?:,(-?[\d.]+))?\](?: or (-?\d+))?", text)
    if match:
        return float(match[1]), float(match[2]) if match[2] else None, frozenset(), match[3]
    if text == "non-empty string":
        return 1.0, None, frozenset(), None
    choices = re.fullmatch(r"(?:\(case insensitive\) )?\[([\w, ]+)\]", text)
    return None, None, frozenset(choices[1].upper().split(", ") if choices else ()), None


def _our_bounds(row: ConfigRow) -> tuple[object, ...]:
    return (
        None if row.minimum is None else float(row.minimum),
        None if row.maximum is None else float(row.maximum),
        frozenset(choice.upper() for choice in row.choices),
        str(row.also_allowed[0]) if row.also_allowed else None,
    )


def _our_facts(table: str, row: ConfigRow) -> Facts:
    facts: Facts = {
        "type": row.type.name,
        "default": row.text_of(row.default) if row.default is not None else "null",
        "bounds": _our_bounds(row),
        "importance": row.importance.name,
        "internal": row.internal,
    }
    if table == "broker":
        return {**facts, "changes": row.update_mode.value}
    return {**facts, "synonym": row.synonyms[0].name if row.synonyms else ""}


def test_every_key_of_kafka_is_known_and_no_other_but_those_with_our_name(kafka_tables):
    for table, rows in TABLES.items():
        kafkas = {name for name in rows if not name.startswith("klamm.")}
        extra = DYNAMIC_ONLY if table == "broker" else set()
        assert kafkas == set(kafka_tables[table]) | extra
    assert set(kafka_tables["dynamic"]) - set(kafka_tables["broker"]) == DYNAMIC_ONLY


def test_the_keys_of_both_tables_agree_fact_by_fact(kafka_tables):
    differences = {}
    for table, rows in TABLES.items():
        for name, theirs in kafka_tables[table].items():
            ours = _our_facts(table, rows[name])
            for fact in theirs:
                if ours[fact] != theirs[fact]:
                    differences[table, name, fact] = (ours[fact], theirs[fact])
    for name in DYNAMIC_ONLY:
        ours, theirs = _our_facts("broker", BROKER_KEYS[name]), kafka_tables["dynamic"][name]
        for fact in ("type", "bounds", "importance"):
            assert ours[fact] == theirs[fact], (name, fact)
    unexplained = {each: both for each, both in differences.items() if each not in DEVIATIONS}
    assert unexplained == {}
    assert set(DEVIATIONS) - set(differences) == set(), "reasons for differences that are gone"


# ---- the answers of a running Kafka


class Answers:
    """Asks a running Kafka and records what it answered; the shared node is left as it was found."""

    def __init__(self, connection: WireConnection) -> None:
        self._connection = connection
        self._altered: list[tuple[int, str, str]] = []
        self._topics: list[str] = []

    def describe(self, resource_type: int, name: str) -> dict[str, m32.DescribeConfigsResourceResult]:
        (result,) = self._connection.call(_describing(resource_type, name)).results
        assert result.error_code == 0, result.error_message
        return {key.name: key for key in result.configs}

    def alter(
        self,
        resource_type: int,
        name: str,
        key: str,
        operation: int,
        value: str | None,
        *,
        validate_only: bool = False,
    ) -> int:
        request = _altering(resource_type, name, key, operation, value, validate_only=validate_only)
        (response,) = self._connection.call(request).responses
        if response.error_code == 0 and not validate_only:
            self._altered.append((resource_type, name, key))
        return int(response.error_code)

    def create(self, topic: str, configs: dict[str, str], *, validate_only: bool = False) -> int:
        (result,) = self._connection.call(_creating(topic, configs, validate_only)).topics
        if result.error_code == 0 and not validate_only:
            self._topics.append(topic)
        return int(result.error_code)

    def undo(self) -> None:
        for topic in self._topics:
            self._connection.call(m20.DeleteTopicsRequest(topics=[m20.DeleteTopicState(name=topic)]))
        for resource_type, name, key in self._altered:
            self._connection.call(_altering(resource_type, name, key, 1, None))


@pytest.fixture
def kafka(apache_kafka: str) -> Iterator[Answers]:
    with WireConnection(apache_kafka) as connection:
        answers = Answers(connection)
        yield answers
        answers.undo()


def _describing(resource_type: int, name: str) -> m32.DescribeConfigsRequest:
    resource = m32.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    return m32.DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)


def _altering(
    resource_type: int, name: str, key: str, operation: int, value: str | None, validate_only: bool = False
) -> m44.IncrementalAlterConfigsRequest:
    config = m44.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = m44.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[config])
    return m44.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def _creating(topic: str, configs: dict[str, str], validate_only: bool = False) -> m19.CreateTopicsRequest:
    wanted = m19.CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[m19.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    return m19.CreateTopicsRequest(topics=[wanted], validate_only=validate_only, timeout_ms=30_000)


def _static_settings(kafka: Answers) -> dict[str, str]:
    """What the running Kafka was started with, apart from its addresses and directories."""
    return {
        name: key.value
        for name, key in kafka.describe(4, "1").items()
        if key.config_source == 4 and name not in OF_THE_MACHINE
    }


def _comparable(keys: dict[str, m32.DescribeConfigsResourceResult]) -> dict[str, dict[str, object]]:
    """Every field of an answer but the documentation, whose sentences are our own."""
    return {
        name: {
            "value": key.value,
            "read_only": key.read_only,
            "source": key.config_source,
            "sensitive": key.is_sensitive,
            "type": ConfigType(key.config_type).name,
            "synonyms": [(each.name, each.value, each.source) for each in key.synonyms],
        }
        for name, key in keys.items()
        if name not in DEVIATING_ANSWERS
    }


DEVIATING_ANSWERS = {
    *OF_THE_MACHINE,
    # Where one of these facts differs by design, so does the answer.
    *(name for table, name, fact in DEVIATIONS if table == "broker" and fact in ("default", "changes")),
    # Kafka sets it for all brokers when a cluster is made, for the sake of eligible leader replicas.
    "min.insync.replicas",
}

CHANGES = [
    (4, "", "log.retention.ms", "86400000"),
    (4, "", "message.max.bytes", "1048589"),
    (4, "1", "num.io.threads", "9"),
    (4, "1", "log.cleaner.io.max.bytes.per.second", "20000000"),
    (4, "1", "log.roll.ms", "600000"),
    (4, "1", "leader.replication.throttled.rate", "5000000"),
    (32, "g", "consumer.session.timeout.ms", "50000"),
    (32, "g", "share.auto.offset.reset", "earliest"),
]
TOPIC_SETTINGS = {
    "cleanup.policy": "compact,delete",
    "flush.ms": "5000",
    "local.retention.ms": "5",
    "leader.replication.throttled.replicas": "0:1",
    "min.cleanable.dirty.ratio": ".25",
    "preallocate": "TRUE",
}


@pytest.mark.parametrize("changed", [False, True], ids=["fresh", "changed"])
def test_brokers_topics_and_groups_are_described_alike(kafka, tmp_path, changed):
    static = _static_settings(kafka)
    topic, settings = f"described-{tmp_path.name}", TOPIC_SETTINGS if changed else {}
    assert kafka.create(topic, settings) == 0
    if changed:
        for resource_type, name, key, value in CHANGES:
            assert kafka.alter(resource_type, name, key, 0, value) == 0, key
        for resource_type, name, key, value in CHANGES:
            wait_until(partial(_is_seen, kafka, resource_type, name, key), f"{key} is {value}")
    wait_until(lambda: _topic_is_there(kafka, topic), "the topic is there")

    async def work(broker):
        await broker.ask(k19_create_topics, _creating(topic, settings), 7)
        for resource_type, name, key, value in CHANGES if changed else ():
            request = _altering(resource_type, name, key, 0, value)
            (response,) = (await broker.ask(k44_incremental_alter_configs, request, 1)).responses
            assert response.error_code == 0, response.error_message
        for resource_type, name in ((4, "1"), (4, ""), (2, topic), (32, "g")):
            answer = await broker.ask(k32_describe_configs, _describing(resource_type, name), 4)
            assert all(key.documentation for key in answer.results[0].configs)
            ours = {key.name: key for key in answer.results[0].configs}
            theirs = kafka.describe(resource_type, name)
            assert _comparable(ours) == _comparable(theirs)

    scenario_with_broker(tmp_path, work, static)


def _is_seen(kafka: Answers, resource_type: int, name: str, key: str) -> bool:
    described = kafka.describe(resource_type, name).get(key)
    return described is not None and described.config_source in (2, 3, 8)


def _topic_is_there(kafka: Answers, topic: str) -> bool:
    (result,) = kafka._connection.call(_describing(2, topic)).results
    return result.error_code == 0


TOPIC = "altered"

ALTERATIONS = [
    (4, "1", "num.io.threads", 0, "9"),
    (4, "1", "num.io.threads", 0, "0"),
    (4, "1", "num.io.threads", 0, "x"),
    (4, "1", "num.io.threads", 2, "9"),
    (4, "2", "num.io.threads", 0, "9"),
    (4, "x", "num.io.threads", 0, "9"),
    (4, "1", "broker.rack", 0, "x"),
    (4, "", "broker.rack", 0, "x"),
    (4, "1", "broker.rack", 1, None),
    (4, "1", "no.such.key", 1, None),
    (4, "", "listeners", 0, "PLAINTEXT://127.0.0.1:1"),
    (4, "1", "listeners", 0, "x"),
    (4, "1", "listeners", 0, "UNKNOWN://127.0.0.1:1"),
    (4, "", "listener.security.protocol.map", 0, "PLAINTEXT:PLAINTEXT"),
    (4, "1", "listener.security.protocol.map", 0, "PLAINTEXT:x"),
    (4, "1", "transaction.max.timeout.ms", 0, "5"),
    (4, "", "ssl.keystore.location", 0, "/x"),
    (4, "1", "ssl.keystore.location", 0, "/x"),
    (4, "1", "principal.builder.class", 0, "x.y"),
    (4, "1", "unstable.api.versions.enable", 0, "true"),
    (4, "1", "log.retention.ms", 0, "0"),
    (4, "1", "log.retention.ms", 0, "-1"),
    (4, "1", "log.cleanup.policy", 2, "compact"),
    (4, "1", "max.connections.per.ip.overrides", 0, "127.0.0.1:500"),
    (2, TOPIC, "no.such.key", 0, "1"),
    (2, TOPIC, "retention.ms", 2, "5"),
    (2, TOPIC, "retention.ms", 0, "-5"),
    (2, TOPIC, "remote.storage.enable", 0, "true"),
    (2, TOPIC, "remote.log.copy.disable", 0, "true"),
    (2, TOPIC, "local.retention.bytes", 0, "-3"),
    (2, TOPIC, "leader.replication.throttled.replicas", 0, "*"),
    (2, TOPIC, "leader.replication.throttled.replicas", 0, "none"),
    (2, TOPIC, "follower.replication.throttled.replicas", 2, "0:1,1:2"),
    (32, "g", "no.such.key", 0, "5"),
    (32, "g", "consumer.session.timeout.ms", 0, "5"),
    (32, "g", "consumer.session.timeout.ms", 0, "60001"),
    (32, "g", "share.isolation.level", 0, "read_committed"),
    (32, "g", "share.isolation.level", 0, "x"),
    (32, "", "consumer.session.timeout.ms", 0, "50000"),
]
"""Resource type and name, key, operation and value."""


def test_alterations_are_answered_with_the_same_codes(kafka, tmp_path):
    assert kafka.create(TOPIC, {}) == 0
    wait_until(lambda: _topic_is_there(kafka, TOPIC), "the topic is there")
    theirs = [kafka.alter(*each, validate_only=True) for each in ALTERATIONS]
    ours = []

    async def work(broker):
        await broker.ask(k19_create_topics, _creating(TOPIC, {}), 7)
        for each in ALTERATIONS:
            request = _altering(*each, validate_only=True)
            answer = await broker.ask(k44_incremental_alter_configs, request, 1)
            ours.append(answer.responses[0].error_code)

    scenario_with_broker(tmp_path, work)
    assert dict(zip(ALTERATIONS, ours, strict=True)) == dict(zip(ALTERATIONS, theirs, strict=True))


def test_topics_take_and_refuse_the_same_settings(kafka, tmp_path):
    cases = [
        {"remote.storage.enable": "true"},
        {"remote.storage.enable": "false"},
        {"remote.log.copy.disable": "true"},
        {"remote.log.delete.on.disable": "true"},
        {"local.retention.ms": "5", "local.retention.bytes": "5"},
        {"local.retention.ms": "-3"},
        {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"leader.replication.throttled.replicas": "none"},
        {"follower.replication.throttled.replicas": "*"},
        {"follower.replication.throttled.replicas": ""},
        {"no.such.key": "1"},
        {"cleanup.policy": "delete,delete"},
    ]
    theirs = [kafka.create("taken", settings, validate_only=True) for settings in cases]
    ours = []

    async def work(broker):
        for settings in cases:
            answer = await broker.ask(k19_create_topics, _creating("taken", settings, True), 7)
            ours.append(answer.topics[0].error_code)

    scenario_with_broker(tmp_path, work)
    assert ours == theirs
