"""The broker keys of a cluster: coordination, the controller, and replication."""

from __future__ import annotations

from klamm.config.rows import ConfigError, ConfigRow, ConfigType, Importance, UpdateMode

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

CLUSTER_ROWS = [
    ConfigRow(
        "klamm.coordination.url",
        ConfigType.STRING,
        None,
        "The store through which the brokers of a cluster find one another and elect a controller: "
        "zookeeper://host:port,host:port/path, or sqlite://FILE for brokers of one machine. Unset: the "
        "broker is alone, and keeps its metadata in its first log directory.",
        Importance.HIGH,
        internal=True,
    ),
    ConfigRow(
        "broker.session.timeout.ms",
        ConfigType.INT,
        9000,
        "How long a broker may be silent before the cluster takes it for dead and elects other leaders. A "
        "broker of this machine whose process has ended is noticed at once.",
    ),
    ConfigRow(
        "inter.broker.listener.name",
        ConfigType.STRING,
        None,
        "The name of the listener that other brokers connect to. Unset: a broker of a cluster opens one more "
        "listener for brokers only, named BROKERS, on the host of its first listener and on a free port.",
    ),
    ConfigRow(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether the controller moves leaders back to the first replica of their partition, now and then.",
        Importance.HIGH,
    ),
    ConfigRow(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "How often the controller looks for leaders to move back.",
        Importance.HIGH,
        minimum=1,
    ),
    ConfigRow(
        "controlled.shutdown.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether a broker that stops hands over its leaders first.",
    ),
    ConfigRow(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "unclean.leader.election.enable of topics that do not set it.",
        Importance.HIGH,
        UpdateMode.CLUSTER_WIDE,
    ),
    ConfigRow(
        "replica.lag.time.max.ms",
        ConfigType.LONG,
        30_000,
        "A follower that has not caught up with its leader for so long leaves the in-sync replicas.",
        Importance.HIGH,
    ),
    ConfigRow(
        "replica.fetch.max.bytes",
        ConfigType.INT,
        1_048_576,
        "The most bytes that a follower fetches of one partition at once; a larger batch comes whole. For a "
        "partition that is far behind the limit is at least a third of replica.fetch.response.max.bytes.",
        minimum=0,
    ),
    ConfigRow(
        "replica.fetch.response.max.bytes",
        ConfigType.INT,
        10_485_760,
        "The most bytes of records in the answer to a follower's fetch. Partitions that are far behind are "
        "fetched by three requests at a time; each of them may bring a third of it.",
        minimum=0,
    ),
    ConfigRow(
        "replica.fetch.min.bytes",
        ConfigType.INT,
        1,
        "The least bytes that a leader answers a follower's fetch with before replica.fetch.wait.max.ms.",
        Importance.HIGH,
    ),
    ConfigRow(
        "replica.fetch.wait.max.ms",
        ConfigType.INT,
        500,
        "How long a follower's fetch waits at the leader for records.",
        Importance.HIGH,
    ),
    ConfigRow(
        "replica.fetch.backoff.ms",
        ConfigType.INT,
        1000,
        "The longest that a follower waits after a failed fetch before it fetches the partition again.",
        minimum=0,
    ),
    ConfigRow(
        "replica.socket.timeout.ms",
        ConfigType.INT,
        30_000,
        "How long a follower waits for the answer of a leader before it takes the connection for dead; "
        "never less than twice `replica.fetch.wait.max.ms`.",
        Importance.HIGH,
    ),
    ConfigRow(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        f"Which replica a consumer reads from. {RACK_AWARE_SELECTOR}: one in the consumer's own rack "
        "(client.rack), if it is in sync. Unset: the leader.",
    ),
    ConfigRow(
        "request.timeout.ms",
        ConfigType.INT,
        30_000,
        "How long a broker waits for the answer of another broker.",
        Importance.HIGH,
    ),
    ConfigRow(
        "socket.connection.setup.timeout.ms",
        ConfigType.LONG,
        10_000,
        "How long a broker waits until a connection to another broker can be used.",
    ),
    ConfigRow(
        "leader.replication.throttled.rate",
        ConfigType.LONG,
        None,
        "The most bytes a second that this broker, as a leader, sends to followers of throttled replicas "
        "(leader.replication.throttled.replicas of the topic) that are not in sync. Unset: no limit.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
        internal=True,
    ),
    ConfigRow(
        "follower.replication.throttled.rate",
        ConfigType.LONG,
        None,
        "The most bytes a second that this broker, as a follower, fetches of throttled replicas "
        "(follower.replication.throttled.replicas of the topic) until they are in sync. Unset: no limit.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
        internal=True,
    ),
    ConfigRow(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ConfigType.LONG,
        None,
        "The most bytes a second that are copied when replicas move to other log directories. Unset: no "
        "limit.",
        update_mode=UpdateMode.CLUSTER_WIDE,
        minimum=0,
        internal=True,
    ),
    ConfigRow(
        "replication.quota.window.num",
        ConfigType.INT,
        11,
        "How many samples the rate of throttled replication is measured over.",
        Importance.LOW,
        minimum=1,
    ),
    ConfigRow(
        "replication.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "How long each of these samples is.",
        Importance.LOW,
        minimum=1,
    ),
    ConfigRow(
        "alter.log.dirs.replication.quota.window.num",
        ConfigType.INT,
        11,
        "How many samples the rate of moves between log directories is measured over.",
        Importance.LOW,
        minimum=1,
    ),
    ConfigRow(
        "alter.log.dirs.replication.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "How long each of these samples is.",
        Importance.LOW,
        minimum=1,
    ),
]


def check_replica_selector(name: str | None) -> None:
    """Raise ConfigError unless `name` is a class of Kafka's that has its like here."""
    if name not in (None, "", RACK_AWARE_SELECTOR):
        raise ConfigError(
            f"replica.selector.class={name!r} is refused: only {RACK_AWARE_SELECTOR} is known",
            key="replica.selector.class",
        )
