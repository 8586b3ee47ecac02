"""The configuration keys of clients: those that all clients share, then those of producers and of consumers.

Names and bounds are those of Kafka's own clients. Credentials and certificates have librdkafka's names, which
Python programs use: Java's names are about key stores, which Klamm does not read. The text of a key says so
if its default differs from Kafka's.
"""

from __future__ import annotations

from klamm.config.rows import INT_MAX, LONG_MAX, ConfigRow, ConfigType, Importance, table

CLIENT_KEYS = table(
    [
        ConfigRow(
            "bootstrap.servers",
            ConfigType.LIST,
            None,
            "Brokers to connect to first, as host:port. The client learns the addresses of all other "
            "brokers from them. It is also the first argument of every client.",
            Importance.HIGH,
        ),
        ConfigRow(
            "client.id",
            ConfigType.STRING,
            None,
            "The client's name in the logs of the broker and of the client. Unset: the client's kind, the "
            "process id and a number, such as klamm-producer-4711-1.",
        ),
        ConfigRow(
            "client.rack",
            ConfigType.STRING,
            "",
            "The rack of the client. A consumer reads from a replica in the same rack if there is one.",
        ),
        ConfigRow(
            "connections.max.idle.ms",
            ConfigType.LONG,
            540_000,
            "How long an unused connection stays open; -1 keeps it open for ever.",
            minimum=-1,
        ),
        ConfigRow(
            "default.api.timeout.ms",
            ConfigType.INT,
            60_000,
            "The time limit of a call, retries included, if the call is not given a timeout.",
            minimum=0,
        ),
        ConfigRow(
            "metadata.max.age.ms",
            ConfigType.LONG,
            300_000,
            "How old metadata (topics, partitions, leaders) may get before the client requests it again.",
            minimum=0,
        ),
        ConfigRow(
            "receive.buffer.bytes",
            ConfigType.INT,
            -1,
            "The size of the socket's receive buffer; -1 lets the operating system choose.",
            minimum=-1,
        ),
        ConfigRow(
            "reconnect.backoff.max.ms",
            ConfigType.LONG,
            1000,
            "The longest pause between two attempts to connect to a broker.",
            minimum=0,
        ),
        ConfigRow(
            "reconnect.backoff.ms",
            ConfigType.LONG,
            50,
            "The pause after the first failed attempt to connect to a broker; it doubles with each failure.",
            minimum=0,
        ),
        ConfigRow(
            "request.timeout.ms",
            ConfigType.INT,
            30_000,
            "How long a request waits for its response. After that the client closes the connection.",
            minimum=1,
        ),
        ConfigRow(
            "retry.backoff.max.ms",
            ConfigType.LONG,
            1000,
            "The longest pause before a failed request is retried.",
            minimum=0,
        ),
        ConfigRow(
            "retry.backoff.ms",
            ConfigType.LONG,
            100,
            "The pause before the first retry of a failed request; it doubles with each retry.",
            minimum=0,
        ),
        ConfigRow(
            "sasl.mechanism",
            ConfigType.STRING,
            None,
            "How the client logs in if security.protocol is SASL_PLAINTEXT or SASL_SSL. OAUTHBEARER takes "
            "tokens from the argument `sasl_oauth_token_provider`; the other mechanisms take sasl.username "
            "and sasl.password.",
            choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        ),
        ConfigRow(
            "sasl.password",
            ConfigType.PASSWORD,
            None,
            "The password of sasl.username.",
        ),
        ConfigRow("sasl.username", ConfigType.STRING, None, "The user name for PLAIN and SCRAM."),
        ConfigRow(
            "security.protocol",
            ConfigType.STRING,
            "PLAINTEXT",
            "How connections are secured: SSL encrypts them, SASL logs in.",
            Importance.HIGH,
            choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        ),
        ConfigRow(
            "send.buffer.bytes",
            ConfigType.INT,
            -1,
            "The size of the socket's send buffer; -1 lets the operating system choose.",
            minimum=-1,
        ),
        ConfigRow(
            "socket.connection.setup.timeout.ms",
            ConfigType.LONG,
            10_000,
            "How long connecting may take, TLS handshake and login included.",
            minimum=1,
        ),
        ConfigRow(
            "ssl.ca.location",
            ConfigType.STRING,
            None,
            "A PEM file with the certificate authorities that may sign brokers' certificates. Unset: those "
            "of the operating system.",
        ),
        ConfigRow(
            "ssl.certificate.location",
            ConfigType.STRING,
            None,
            "A PEM file with the client's certificate, for brokers that require one.",
        ),
        ConfigRow(
            "ssl.endpoint.identification.algorithm",
            ConfigType.STRING,
            "https",
            "https: a broker's certificate must name the host that the client connects to. none, or an "
            "empty value: the host name is not checked.",
            choices=("https", "none", ""),
        ),
        ConfigRow(
            "ssl.key.location", ConfigType.STRING, None, "A PEM file with the private key of the certificate."
        ),
        ConfigRow(
            "ssl.key.password",
            ConfigType.PASSWORD,
            None,
            "The password of the key in ssl.key.location.",
        ),
    ]
)

PRODUCER_KEYS = CLIENT_KEYS | table(
    [
        ConfigRow(
            "acks",
            ConfigType.STRING,
            "all",
            "Which replicas must have written a record before it counts as sent: all in-sync replicas (all "
            "or -1), the leader (1), or none (0: the broker sends no response, so errors go unnoticed).",
            Importance.HIGH,
            choices=("all", "-1", "1", "0"),
        ),
        ConfigRow(
            "batch.size",
            ConfigType.INT,
            65_536,
            "The most bytes of records in one batch. Kafka's default is 16384; with larger batches Python "
            "spends less time per record. If it is not set, batches of Arrow columns may be as large as "
            "max.request.size allows.",
            minimum=0,
        ),
        ConfigRow(
            "buffer.memory",
            ConfigType.LONG,
            33_554_432,
            "The most bytes of records that wait to be sent or acknowledged. When the buffer is full, "
            "`send` of the blocking client waits, and `send` of the asyncio client raises an error: call "
            "`drain` first.",
            minimum=0,
        ),
        ConfigRow(
            "compression.level",
            ConfigType.INT,
            None,
            "The compression level. Unset: the default of the codec.",
        ),
        ConfigRow(
            "compression.type",
            ConfigType.STRING,
            "none",
            "The codec that batches are compressed with.",
            Importance.HIGH,
            choices=("none", "gzip", "snappy", "lz4", "zstd"),
        ),
        ConfigRow(
            "delivery.timeout.ms",
            ConfigType.INT,
            120_000,
            "The longest time from `send` until the record is acknowledged or has failed, retries included.",
            minimum=0,
        ),
        ConfigRow(
            "enable.idempotence",
            ConfigType.BOOLEAN,
            True,
            "Whether the broker recognises a batch that it has already written, so that retries neither "
            "duplicate nor reorder records. Needs acks=all, retries, and at most 5 in "
            "max.in.flight.requests.per.connection. If one of these is set otherwise, the default becomes "
            "false.",
        ),
        ConfigRow(
            "linger.ms",
            ConfigType.DOUBLE,
            0.0,
            "How long a batch waits for more records. With 0 a batch is sent as soon as the connection is "
            "free; under load records gather in the meantime. Kafka's default is 5.",
            minimum=0,
            maximum=INT_MAX,
        ),
        ConfigRow(
            "max.block.ms",
            ConfigType.LONG,
            60_000,
            "How long `send` of the blocking client waits for space in the buffer, and how long a producer "
            "waits for the metadata of a topic.",
            minimum=0,
        ),
        ConfigRow(
            "max.in.flight.requests.per.connection",
            ConfigType.INT,
            5,
            "How many batches of one partition may be sent before the first of them is acknowledged. With "
            "more than 1 and without enable.idempotence, a retried batch may be written after later ones.",
            minimum=1,
        ),
        ConfigRow(
            "max.request.size",
            ConfigType.INT,
            1_048_576,
            "The largest request in bytes. A record must fit into one request.",
            minimum=0,
        ),
        ConfigRow(
            "metadata.max.idle.ms",
            ConfigType.LONG,
            300_000,
            "How long after the last `send` to a topic its metadata is still refreshed. A later `send` "
            "requests it again.",
            minimum=5000,
        ),
        ConfigRow(
            "partitioner",
            ConfigType.STRING,
            "murmur2",
            "The hash that picks the partition of a key: murmur2 as in Java clients, or crc32 as in "
            "librdkafka by default. Records without a key change the partition only from batch to batch, "
            "with either. Pass a function as the argument `partitioner` to choose partitions yourself.",
            choices=("murmur2", "crc32"),
        ),
        ConfigRow(
            "retries",
            ConfigType.INT,
            INT_MAX,
            "How many times a batch is retried within delivery.timeout.ms.",
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
            "Whether subscribing to a topic that does not exist, or asking for its offsets, creates it. The "
            "broker must allow that too (auto.create.topics.enable).",
        ),
        ConfigRow(
            "auto.commit.interval.ms",
            ConfigType.INT,
            5000,
            "The interval between two commits if enable.auto.commit is true.",
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
            "Whether a consumer in a group commits its positions automatically: in the background, and "
            "before it gives up partitions.",
            Importance.HIGH,
        ),
        ConfigRow(
            "exclude.internal.topics",
            ConfigType.BOOLEAN,
            True,
            "Whether a subscription by pattern leaves out internal topics such as __consumer_offsets.",
        ),
        ConfigRow(
            "fetch.max.bytes",
            ConfigType.INT,
            52_428_800,
            "The most bytes in one fetch response.",
            minimum=0,
        ),
        ConfigRow(
            "fetch.max.wait.ms",
            ConfigType.INT,
            500,
            "How long a broker waits for fetch.min.bytes before it responds with less.",
            minimum=0,
        ),
        ConfigRow(
            "fetch.min.bytes",
            ConfigType.INT,
            1,
            "How many bytes a broker waits for before it responds to a fetch.",
            minimum=0,
        ),
        ConfigRow(
            "group.id",
            ConfigType.STRING,
            None,
            "The consumer group, whose members share the partitions. It is also the argument `group`.",
            Importance.HIGH,
        ),
        ConfigRow(
            "group.instance.id",
            ConfigType.STRING,
            None,
            "Makes the consumer a static member with this name. A static member that restarts within "
            "session.timeout.ms gets its partitions back without a rebalance.",
        ),
        ConfigRow(
            "heartbeat.interval.ms",
            ConfigType.INT,
            3000,
            "How often a group member sends a heartbeat to its coordinator.",
            minimum=1,
        ),
        ConfigRow(
            "isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            "read_committed leaves out records of open and aborted transactions.",
            choices=("read_uncommitted", "read_committed"),
        ),
        ConfigRow(
            "max.partition.fetch.bytes",
            ConfigType.INT,
            1_048_576,
            "The most bytes of one partition in one fetch response. If the first batch is larger, it is "
            "returned all the same.",
            minimum=0,
        ),
        ConfigRow(
            "max.poll.interval.ms",
            ConfigType.INT,
            300_000,
            "The longest time between two polls. A member that takes longer leaves the group. A rebalance "
            "waits as long for the member to rejoin.",
            minimum=1,
        ),
        ConfigRow(
            "max.poll.records",
            ConfigType.INT,
            500,
            "The most records that `poll` returns if it is called without `max_records`.",
            minimum=1,
        ),
        ConfigRow(
            "partition.assignment.strategy",
            ConfigType.LIST,
            ("range", "cooperative-sticky"),
            "The assignors that distribute a group's partitions, the preferred one first. All members must "
            "have one in common. The class names of Java's assignors are accepted too.",
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
            "The most fetched bytes that wait to be polled. Above that the consumer stops fetching.",
            minimum=1,
            maximum=LONG_MAX,
        ),
        ConfigRow(
            "session.timeout.ms",
            ConfigType.INT,
            45_000,
            "How long the coordinator waits for a heartbeat before it removes the member from the group.",
            minimum=1,
        ),
    ]
)

ADMIN_KEYS = CLIENT_KEYS
