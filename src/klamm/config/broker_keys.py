"""The keys of a broker: network, topics, groups and producers here, logs in `log_keys`.

Those that have no effect are in `kafka_keys`. The table below holds all of them.
"""

from __future__ import annotations

import re

from klamm.config.kafka_keys import SECURITY_REFUSAL, rows_without_effect
from klamm.config.log_keys import LOG_ROWS
from klamm.config.rows import (
    INT_MAX,
    ConfigError,
    ConfigRow,
    ConfigType,
    Importance,
    UpdateMode,
    find_row,
    table,
)

_LISTENER_KEY = re.compile(r"listener\.name\.[^.]*\.(.+)")
_AUTHORIZER_KEYS = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
"""Kafka hands these to its authorizer: they are in no table of keys."""


_NETWORK_ROWS = [
    ConfigRow(
        "node.id",
        ConfigType.INT,
        1,
        "The number of this broker, which no other broker of the cluster may have.",
        Importance.HIGH,
        minimum=0,
    ),
    ConfigRow(
        "broker.id",
        ConfigType.INT,
        -1,
        "The older name of node.id. Set one of them, or both to the same number.",
        Importance.HIGH,
        minimum=-1,
    ),
    ConfigRow(
        "process.roles",
        ConfigType.LIST,
        None,
        "The roles of the process as Kafka's files name them. It must contain broker; controller changes "
        "nothing, because the broker keeps its metadata itself.",
        Importance.HIGH,
        choices=("broker", "controller"),
    ),
    ConfigRow(
        "controller.listener.names",
        ConfigType.LIST,
        None,
        "The listeners that Kafka keeps for its controllers. They are not opened: there is no controller "
        "apart from the broker.",
        Importance.HIGH,
    ),
    ConfigRow(
        "broker.rack",
        ConfigType.STRING,
        None,
        "Where this broker stands. Replicas of a partition are spread over racks.",
    ),
    ConfigRow(
        "listeners",
        ConfigType.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "The addresses to listen on, as NAME://host:port. Port 0 takes a free one. An empty host or "
        "0.0.0.0 or [::] takes every interface and needs advertised.listeners.",
        Importance.HIGH,
    ),
    ConfigRow(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "The addresses that clients are told to connect to, one for each listener of that name; the "
        "listeners themselves when unset.",
        Importance.HIGH,
    ),
    ConfigRow(
        "listener.security.protocol.map",
        ConfigType.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener name, as NAME:PROTOCOL with commas between. Only PLAINTEXT "
        "is served so far.",
        Importance.LOW,
    ),
    ConfigRow(
        "socket.request.max.bytes",
        ConfigType.INT,
        104_857_600,
        "The largest request that is read; a connection that announces a larger one is closed.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "socket.send.buffer.bytes",
        ConfigType.INT,
        102_400,
        "SO_SNDBUF of connections; -1 leaves it to the system, which lets it grow. Small is fast where the "
        "network is near: what is sent stays in the processor's cache. Raise it for clients far away.",
        Importance.HIGH,
        minimum=1,
        also_allowed=(-1,),
    ),
    ConfigRow(
        "socket.receive.buffer.bytes",
        ConfigType.INT,
        -1,
        "SO_RCVBUF of connections; -1, unlike Kafka's 102400, leaves it to the system, which adapts it.",
        Importance.HIGH,
        minimum=1,
        also_allowed=(-1,),
    ),
    ConfigRow(
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "How long a connection may be silent before it is closed; -1 never closes one.",
        minimum=-1,
    ),
    ConfigRow(
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        "How many client connections the broker holds at once; a further one is closed as it comes.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
    ),
    ConfigRow(
        "max.connections.per.ip",
        ConfigType.INT,
        INT_MAX,
        "How many of them one address may hold.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
    ),
    ConfigRow(
        "fetch.max.bytes",
        ConfigType.INT,
        57_671_680,
        "The most bytes of records in the answer to one fetch, whatever the client asks for.",
        minimum=1024,
    ),
    ConfigRow(
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        1000,
        "How many incremental fetch sessions are remembered; clients beyond that send full requests.",
        minimum=0,
    ),
    ConfigRow(
        "max.request.partition.size.limit",
        ConfigType.INT,
        2000,
        "The most partitions in the answer to one DescribeTopicPartitions request.",
        minimum=1,
    ),
]

_TOPIC_ROWS = [
    ConfigRow(
        "num.partitions",
        ConfigType.INT,
        1,
        "How many partitions a topic gets that is created without a number.",
        minimum=1,
        maximum=10_000,
    ),
    ConfigRow(
        "default.replication.factor",
        ConfigType.INT,
        1,
        "How many replicas a topic gets that is created without a number.",
        minimum=1,
        maximum=32_767,
    ),
    ConfigRow(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether asking for an unknown topic creates it, when the client allows that too.",
        Importance.HIGH,
    ),
    ConfigRow(
        "delete.topic.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether topics may be deleted.",
        Importance.HIGH,
    ),
    ConfigRow(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        "min.insync.replicas of topics that do not set it.",
        Importance.HIGH,
        UpdateMode.CLUSTER_WIDE,
        minimum=1,
    ),
    ConfigRow(
        "replica.high.watermark.checkpoint.interval.ms",
        ConfigType.LONG,
        5000,
        "How often the high watermark of each partition is written down.",
        Importance.HIGH,
        minimum=1,
    ),
]

_GROUP_ROWS = [
    ConfigRow(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        3000,
        "How long the first join of an empty group waits for others, so that one rebalance serves them all.",
        minimum=0,
    ),
    ConfigRow(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        6000,
        "The shortest session timeout that a group member may ask for.",
        minimum=0,
    ),
    ConfigRow(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        1_800_000,
        "The longest session timeout that a group member may ask for.",
        minimum=0,
    ),
    ConfigRow("group.max.size", ConfigType.INT, INT_MAX, "How many members a group may have.", minimum=1),
    ConfigRow(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        4096,
        "The longest text that may be committed with an offset.",
        Importance.HIGH,
        minimum=0,
    ),
    ConfigRow(
        "offsets.retention.minutes",
        ConfigType.INT,
        10_080,
        "How long the offsets of a group outlive its last member or, for one that never had members, its "
        "last commit.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "How often expired offsets are looked for.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        50,
        "The partitions of __consumer_offsets. It decides which partition a group belongs to, so it must "
        "not change once the topic exists.",
        Importance.HIGH,
        minimum=1,
        maximum=10_000,
    ),
    ConfigRow(
        "offsets.topic.replication.factor",
        ConfigType.SHORT,
        3,
        "The replicas of __consumer_offsets. A cluster that has fewer brokers when the topic is first "
        "needed gives it as many as it has.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        104_857_600,
        "segment.bytes of __consumer_offsets: small, so that it is compacted soon and loaded fast.",
        Importance.HIGH,
        minimum=1_048_576,
    ),
]

_PRODUCER_ROWS = [
    ConfigRow(
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "How long a partition remembers an idempotent producer that has stopped writing.",
        Importance.LOW,
        UpdateMode.CLUSTER_WIDE,
        minimum=1,
    ),
    ConfigRow(
        "producer.id.expiration.check.interval.ms",
        ConfigType.INT,
        600_000,
        "How often such producers are looked for.",
        Importance.LOW,
        minimum=1,
        internal=True,
    ),
]

BROKER_KEYS = table(
    [
        *_NETWORK_ROWS,
        *_TOPIC_ROWS,
        *LOG_ROWS,
        *_GROUP_ROWS,
        *_PRODUCER_ROWS,
        *rows_without_effect("broker"),
    ]
)


def find_broker_row(name: str) -> ConfigRow:
    """The row of a broker key, or a ConfigError that says what to write instead."""
    if name in _AUTHORIZER_KEYS:
        raise ConfigError(f"{name} is refused: {SECURITY_REFUSAL}", key=name)
    if match := _LISTENER_KEY.fullmatch(name):
        row = BROKER_KEYS.get(match[1])
        reason = (row and row.refused_because) or (
            f"settings for a single listener are not built; set {match[1]}, which holds for all of them"
        )
        raise ConfigError(f"{name} is refused: {reason}", key=name)
    return find_row(BROKER_KEYS, name, "broker")
