"""All broker keys, in `BROKER_KEYS`.

The keys of network, topics, groups and producers are written here, those of clusters in `cluster_keys`, those
of logs in `log_keys`, and those that have no effect in `kafka_keys`.
"""

from __future__ import annotations

import re

from klamm.config.cluster_keys import CLUSTER_ROWS
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
"""Keys of Kafka's StandardAuthorizer, which reads them itself: Kafka's own list of broker keys lacks them."""


_NETWORK_ROWS = [
    ConfigRow(
        "node.id",
        ConfigType.INT,
        1,
        "The id of this broker, unique in its cluster.",
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
        "The roles of the process, as in Kafka's files. It must contain broker. The role controller changes "
        "nothing, because the broker keeps the metadata itself.",
        Importance.HIGH,
        choices=("broker", "controller"),
    ),
    ConfigRow(
        "controller.listener.names",
        ConfigType.LIST,
        None,
        "The names of the listeners for controllers in Kafka's files. The broker does not open these "
        "listeners, because there are no separate controllers.",
        Importance.HIGH,
    ),
    ConfigRow(
        "broker.rack",
        ConfigType.STRING,
        None,
        "The rack of this broker. Replicas of a partition are spread over racks.",
    ),
    ConfigRow(
        "listeners",
        ConfigType.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "The addresses to listen on, as NAME://host:port. Port 0 picks a free port. An empty host, 0.0.0.0 "
        "and [::] listen on every interface; then advertised.listeners must be set too. Kafka listens "
        "on every interface if this is unset. A listener that is added at run time is advertised with its "
        "own address; one that is taken away is closed with its connections.",
        Importance.HIGH,
        UpdateMode.PER_BROKER,
    ),
    ConfigRow(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "The addresses that the broker tells clients to connect to, each with the name of its listener. "
        "Unset: the addresses in listeners.",
        Importance.HIGH,
    ),
    ConfigRow(
        "klamm.http.listener",
        ConfigType.STRING,
        None,
        "The address, host:port, on which the broker serves /metrics for Prometheus, and /livez and /readyz, "
        "to everybody who can reach it. Port 0 picks a free port. Unset: the broker serves none of them.",
        internal=True,
    ),
    ConfigRow(
        "listener.security.protocol.map",
        ConfigType.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener name, as NAME:PROTOCOL,NAME:PROTOCOL. Only PLAINTEXT is "
        "served so far.",
        Importance.LOW,
        UpdateMode.PER_BROKER,
    ),
    ConfigRow(
        "socket.request.max.bytes",
        ConfigType.INT,
        104_857_600,
        "The largest request. The broker closes a connection on which a larger request arrives.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "socket.send.buffer.bytes",
        ConfigType.INT,
        102_400,
        "SO_SNDBUF of connections; -1 lets the operating system choose and adapt it. A small buffer is fast "
        "in a local network, because its data stays in the processor's cache. Raise it for connections with "
        "high latency. Those of followers may grow beyond it.",
        Importance.HIGH,
        minimum=1,
        also_allowed=(-1,),
    ),
    ConfigRow(
        "socket.receive.buffer.bytes",
        ConfigType.INT,
        -1,
        "SO_RCVBUF of connections; -1 lets the operating system choose and adapt it. Kafka's default is "
        "102400.",
        Importance.HIGH,
        minimum=1,
        also_allowed=(-1,),
    ),
    ConfigRow(
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "How long a connection may be idle before the broker closes it; -1 keeps idle connections open.",
        minimum=-1,
    ),
    ConfigRow(
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        "The most client connections at the same time. The broker closes further ones at once.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
    ),
    ConfigRow(
        "max.connections.per.ip",
        ConfigType.INT,
        INT_MAX,
        "The most client connections from one IP address.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
    ),
    ConfigRow(
        "fetch.max.bytes",
        ConfigType.INT,
        57_671_680,
        "The most bytes of records in one fetch response, even if the client asks for more.",
        minimum=1024,
    ),
    ConfigRow(
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        1000,
        "The most incremental fetch sessions that the broker keeps. Clients without a session send full "
        "requests.",
        minimum=0,
    ),
    ConfigRow(
        "max.request.partition.size.limit",
        ConfigType.INT,
        2000,
        "The most partitions in one DescribeTopicPartitions response.",
        minimum=1,
    ),
]

_TOPIC_ROWS = [
    ConfigRow(
        "num.partitions",
        ConfigType.INT,
        1,
        "The number of partitions of a topic that is created without one.",
        minimum=1,
        maximum=10_000,
    ),
    ConfigRow(
        "default.replication.factor",
        ConfigType.INT,
        1,
        "The number of replicas of a topic that is created without one.",
        minimum=1,
        maximum=32_767,
    ),
    ConfigRow(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether a metadata request for an unknown topic creates the topic, if the client allows that too.",
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
        "How often the high watermarks of all partitions are saved to disk.",
        Importance.HIGH,
        minimum=1,
    ),
]

_GROUP_ROWS = [
    ConfigRow(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        3000,
        "How long the first rebalance of an empty group waits for further members to join.",
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
    ConfigRow("group.max.size", ConfigType.INT, INT_MAX, "The most members of a group.", minimum=1),
    ConfigRow(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        4096,
        "The longest metadata text that a client may commit with an offset.",
        Importance.HIGH,
        minimum=0,
    ),
    ConfigRow(
        "offsets.retention.minutes",
        ConfigType.INT,
        10_080,
        "How long the offsets of a group are kept after its last member has left. For a group that never had "
        "members: after its last commit.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.commit.timeout.ms",
        ConfigType.INT,
        5_000,
        "How long a request of a group waits until its record is in all in-sync replicas of "
        "__consumer_offsets. Then it fails with COORDINATOR_NOT_AVAILABLE.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "How often the broker looks for expired offsets.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        50,
        "The number of partitions of __consumer_offsets. It decides which partition holds a group, so it "
        "must not change once the topic exists.",
        Importance.HIGH,
        minimum=1,
        maximum=10_000,
    ),
    ConfigRow(
        "offsets.topic.replication.factor",
        ConfigType.SHORT,
        3,
        "The number of replicas of __consumer_offsets. A cluster serves no groups before it has had so many "
        "brokers. A broker without klamm.coordination.url has one replica.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        104_857_600,
        "segment.bytes of __consumer_offsets. Small segments are compacted sooner, so groups load faster.",
        Importance.HIGH,
        minimum=1_048_576,
    ),
]

_PRODUCER_ROWS = [
    ConfigRow(
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "How long a partition keeps the state of an idempotent producer after its last write.",
        Importance.LOW,
        UpdateMode.CLUSTER_WIDE,
        minimum=1,
    ),
    ConfigRow(
        "producer.id.expiration.check.interval.ms",
        ConfigType.INT,
        600_000,
        "How often the broker looks for the state of producers that has expired.",
        Importance.LOW,
        minimum=1,
        internal=True,
    ),
]

BROKER_KEYS = table(
    [
        *_NETWORK_ROWS,
        *CLUSTER_ROWS,
        *_TOPIC_ROWS,
        *LOG_ROWS,
        *_GROUP_ROWS,
        *_PRODUCER_ROWS,
        *rows_without_effect("broker"),
    ]
)


def find_broker_row(name: str) -> ConfigRow:
    """The row of a broker key. Raises ConfigError for an unknown or refused key and says what to write
    instead."""
    if name in _AUTHORIZER_KEYS:
        raise ConfigError(f"{name} is refused: {SECURITY_REFUSAL}", key=name)
    if match := _LISTENER_KEY.fullmatch(name):
        row = BROKER_KEYS.get(match[1])
        reason = (row and row.refused_because) or (
            f"settings for a single listener are not built; set {match[1]}, which applies to all listeners"
        )
        raise ConfigError(f"{name} is refused: {reason}", key=name)
    return find_row(BROKER_KEYS, name, "broker")
