"""The keys that producers, consumers and admins share: where the brokers are, how patient to be, who we are.

Names and bounds are those of Kafka's own clients; credentials and certificates have librdkafka's names, which
Python programs know, because Java's speak of key stores. A default that differs from Kafka's says so.
"""

from __future__ import annotations

from klamm.config.rows import INT_MAX, LONG_MAX, ConfigRow, ConfigType, Importance, table

CLIENT_KEYS = table(
    [
        ConfigRow(
            "bootstrap.servers",
            ConfigType.LIST,
            None,
            "Brokers to ask first, as host:port; the others are learned from them. The first argument of "
            "every client.",
            Importance.HIGH,
        ),
        ConfigRow(
            "client.id",
            ConfigType.STRING,
            None,
            "The client's name, in the broker's logs and in ours. Unset: its kind, the id of the process and "
            "a number, such as klamm-producer-4711-1.",
        ),
        ConfigRow(
            "client.rack",
            ConfigType.STRING,
            "",
            "Where the client stands. A consumer reads from a replica in the same rack where there is one.",
        ),
        ConfigRow(
            "connections.max.idle.ms",
            ConfigType.LONG,
            540_000,
            "How long an unused connection is kept; -1 keeps it for ever.",
            minimum=-1,
        ),
        ConfigRow(
            "default.api.timeout.ms",
            ConfigType.INT,
            60_000,
            "How long a call waits, retries included, when it is not given a time-out of its own.",
            minimum=0,
        ),
        ConfigRow(
            "metadata.max.age.ms",
            ConfigType.LONG,
            300_000,
            "After how long topics, partitions and leaders are asked for again, changed or not.",
            minimum=0,
        ),
        ConfigRow(
            "receive.buffer.bytes",
            ConfigType.INT,
            -1,
            "The socket's receive buffer; -1 leaves it to the operating system.",
            minimum=-1,
        ),
        ConfigRow(
            "reconnect.backoff.max.ms",
            ConfigType.LONG,
            1000,
            "The longest pause before a broker that could not be reached is tried again.",
            minimum=0,
        ),
        ConfigRow(
            "reconnect.backoff.ms",
            ConfigType.LONG,
            50,
            "The first pause before a broker that could not be reached is tried again; it doubles.",
            minimum=0,
        ),
        ConfigRow(
            "request.timeout.ms",
            ConfigType.INT,
            30_000,
            "How long one request waits for its answer before the connection counts as dead.",
            minimum=1,
        ),
        ConfigRow(
            "retry.backoff.max.ms",
            ConfigType.LONG,
            1000,
            "The longest pause before a failed request is sent again.",
            minimum=0,
        ),
        ConfigRow(
            "retry.backoff.ms",
            ConfigType.LONG,
            100,
            "The first pause before a failed request is sent again; it doubles.",
            minimum=0,
        ),
        ConfigRow(
            "sasl.mechanism",
            ConfigType.STRING,
            None,
            "How to prove who we are, with security.protocol SASL_PLAINTEXT or SASL_SSL. OAUTHBEARER takes "
            "tokens from the argument `sasl_oauth_token_provider`, the others take sasl.username and "
            "sasl.password.",
            choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        ),
        ConfigRow(
            "sasl.password",
            ConfigType.PASSWORD,
            None,
            "The password to sasl.username.",
        ),
        ConfigRow("sasl.username", ConfigType.STRING, None, "The name for SASL PLAIN and SCRAM."),
        ConfigRow(
            "security.protocol",
            ConfigType.STRING,
            "PLAINTEXT",
            "Whether connections are encrypted and whether they start with proving who we are.",
            Importance.HIGH,
            choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        ),
        ConfigRow(
            "send.buffer.bytes",
            ConfigType.INT,
            -1,
            "The socket's send buffer; -1 leaves it to the operating system.",
            minimum=-1,
        ),
        ConfigRow(
            "socket.connection.setup.timeout.ms",
            ConfigType.LONG,
            10_000,
            "How long to wait for a connection, its TLS handshake and its login.",
            minimum=1,
        ),
        ConfigRow(
            "ssl.ca.location",
            ConfigType.STRING,
            None,
            "A PEM file with the authorities that brokers' certificates must come from. Unset: the system's.",
        ),
        ConfigRow(
            "ssl.certificate.location",
            ConfigType.STRING,
            None,
            "A PEM file with our own certificate, for brokers that ask for one.",
        ),
        ConfigRow(
            "ssl.endpoint.identification.algorithm",
            ConfigType.STRING,
            "https",
            "https: a broker's certificate must name the host we connect to. none: any host.",
            choices=("https", "none", ""),
        ),
        ConfigRow("ssl.key.location", ConfigType.STRING, None, "A PEM file with our certificate's key."),
        ConfigRow(
            "ssl.key.password",
            ConfigType.PASSWORD,
            None,
            "The password of ssl.key.location.",
        ),
    ]
)

PRODUCER_KEYS = CLIENT_KEYS | table(
    [
        ConfigRow(
            "acks",
            ConfigType.STRING,
            "all",
            "Who must have a record before it counts as sent: all in-sync replicas (all or -1), the leader "
            "(1), or nobody (0: not even errors are heard of).",
            Importance.HIGH,
            choices=("all", "-1", "1", "0"),
        ),
        ConfigRow(
            "batch.size",
            ConfigType.INT,
            65_536,
            "How many bytes of records for one partition go into one batch at most. Kafka's default is "
            "16384; a larger batch costs Python less per record. Arrow columns go in batches as large as "
            "max.request.size allows unless this is set.",
            minimum=0,
        ),
        ConfigRow(
            "buffer.memory",
            ConfigType.LONG,
            33_554_432,
            "How many bytes of records may wait to be sent and acknowledged. When they are reached, `send` "
            "waits (the plain client) or refuses (asyncio, until `drain`).",
            minimum=0,
        ),
        ConfigRow(
            "compression.level",
            ConfigType.INT,
            None,
            "The codec's own level; unset is the codec's default.",
        ),
        ConfigRow(
            "compression.type",
            ConfigType.STRING,
            "none",
            "How batches are compressed.",
            Importance.HIGH,
            choices=("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        ConfigRow(
            "delivery.timeout.ms",
            ConfigType.INT,
            120_000,
            "How long after `send` a record has succeeded or failed, retries included.",
            minimum=0,
        ),
        ConfigRow(
            "enable.idempotence",
            ConfigType.BOOLEAN,
            True,
            "Whether the broker recognises a batch that is sent again, so that retries neither duplicate nor "
            "reorder. Needs acks=all and at most five requests in flight; off by itself with other acks.",
        ),
        ConfigRow(
            "linger.ms",
            ConfigType.DOUBLE,
            0.0,
            "How long a batch waits for more records. 0 sends when the connection is free, which gathers "
            "records under load by itself. Kafka's default is 5.",
            minimum=0,
            maximum=INT_MAX,
        ),
        ConfigRow(
            "max.block.ms",
            ConfigType.LONG,
            60_000,
            "How long `send` of the plain client waits for room, and how long a topic may be unknown.",
            minimum=0,
        ),
        ConfigRow(
            "max.in.flight.requests.per.connection",
            ConfigType.INT,
            5,
            "How many batches of one partition may be under way at once. With more than 1 and without "
            "enable.idempotence a batch that is sent again may come behind later ones.",
            minimum=1,
        ),
        ConfigRow(
            "max.request.size",
            ConfigType.INT,
            1_048_576,
            "The largest request, and so the largest record.",
            minimum=0,
        ),
        ConfigRow(
            "metadata.max.idle.ms",
            ConfigType.LONG,
            300_000,
            "How long a topic that nobody sends to is still asked for when metadata is refreshed. The next "
            "send to it looks it up again.",
            minimum=5000,
        ),
        ConfigRow(
            "partitioner",
            ConfigType.STRING,
            "murmur2",
            "How a key becomes a partition: murmur2 as Java clients, crc32 as librdkafka by default. Records "
            "without a key stick to one partition per batch either way. A function of your own is given as "
            "the argument `partitioner`.",
            choices=("murmur2", "crc32"),
        ),
        ConfigRow(
            "retries",
            ConfigType.INT,
            INT_MAX,
            "How often a batch is sent again within delivery.timeout.ms.",
            minimum=0,
        ),
    ]
)

CONSUMER_KEYS = CLIENT_KEYS | table(
    [
        ConfigRow(
            "allow.auto.create.topics",
            ConfigType.BOOLEAN,
            True,
            "Whether subscribing to a topic that is not there creates it, if the broker does that at all.",
        ),
        ConfigRow(
            "auto.commit.interval.ms",
            ConfigType.INT,
            5000,
            "How often positions are committed with enable.auto.commit.",
            minimum=0,
        ),
        ConfigRow(
            "auto.offset.reset",
            ConfigType.STRING,
            "latest",
            "Where to start in a partition without a committed offset: earliest, latest, "
            "by_duration:PT1H (an hour ago), by_time:2026-01-31T12:00:00Z, or none (an error). The argument "
            "`start` takes the same words, a datetime or a timedelta.",
            Importance.HIGH,
        ),
        ConfigRow(
            "check.crcs",
            ConfigType.BOOLEAN,
            True,
            "Whether the checksum of every fetched batch is verified.",
        ),
        ConfigRow(
            "enable.auto.commit",
            ConfigType.BOOLEAN,
            True,
            "Whether the positions of a group's consumer are committed by themselves, in the background and "
            "before partitions are given up.",
            Importance.HIGH,
        ),
        ConfigRow(
            "exclude.internal.topics",
            ConfigType.BOOLEAN,
            True,
            "Whether a pattern never matches internal topics such as __consumer_offsets.",
        ),
        ConfigRow(
            "fetch.max.bytes",
            ConfigType.INT,
            52_428_800,
            "The most that one fetch brings.",
            minimum=0,
        ),
        ConfigRow(
            "fetch.max.wait.ms",
            ConfigType.INT,
            500,
            "How long a broker waits for fetch.min.bytes before it answers with less.",
            minimum=0,
        ),
        ConfigRow(
            "fetch.min.bytes",
            ConfigType.INT,
            1,
            "How much a broker gathers before it answers a fetch.",
            minimum=0,
        ),
        ConfigRow(
            "group.id",
            ConfigType.STRING,
            None,
            "The group that shares the partitions. The argument `group`.",
            Importance.HIGH,
        ),
        ConfigRow(
            "group.instance.id",
            ConfigType.STRING,
            None,
            "A name of this member that outlives its process: one that comes back within "
            "session.timeout.ms gets its partitions without a rebalance.",
        ),
        ConfigRow(
            "heartbeat.interval.ms",
            ConfigType.INT,
            3000,
            "How often a member shows the coordinator that it lives.",
            minimum=1,
        ),
        ConfigRow(
            "isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            "read_committed hides records of open and aborted transactions.",
            choices=("read_uncommitted", "read_committed"),
        ),
        ConfigRow(
            "max.partition.fetch.bytes",
            ConfigType.INT,
            1_048_576,
            "The most that one fetch brings of one partition; a larger batch comes all the same.",
            minimum=0,
        ),
        ConfigRow(
            "max.poll.interval.ms",
            ConfigType.INT,
            300_000,
            "How long a member may work between two polls before it leaves the group. Also how long a "
            "rebalance waits for it.",
            minimum=1,
        ),
        ConfigRow(
            "max.poll.records",
            ConfigType.INT,
            500,
            "How many records `poll` returns at most, when it is not told itself.",
            minimum=1,
        ),
        ConfigRow(
            "partition.assignment.strategy",
            ConfigType.LIST,
            ("range", "cooperative-sticky"),
            "How a group's partitions are shared out, the preferred first. All members must have one in "
            "common. The class names of Java's assignors are taken, too.",
            choices=("range", "roundrobin", "sticky", "cooperative-sticky"),
            aliases=(
                ("org.apache.kafka.clients.consumer.RangeAssignor", "range"),
                ("org.apache.kafka.clients.consumer.RoundRobinAssignor", "roundrobin"),
                ("org.apache.kafka.clients.consumer.StickyAssignor", "sticky"),
                ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", "cooperative-sticky"),
            ),
        ),
        ConfigRow(
            "prefetch.max.bytes",
            ConfigType.LONG,
            67_108_864,
            "How many fetched bytes may wait to be polled; fetching pauses above that.",
            minimum=1,
            maximum=LONG_MAX,
        ),
        ConfigRow(
            "session.timeout.ms",
            ConfigType.INT,
            45_000,
            "After how much silence the coordinator takes a member for dead.",
            minimum=1,
        ),
    ]
)

ADMIN_KEYS = CLIENT_KEYS
