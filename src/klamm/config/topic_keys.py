"""The keys of a topic, and the effective configuration of a topic.

If a topic does not set a key, the broker key that is its synonym counts, with its own synonyms and default.
So `retention.ms` comes from `log.retention.ms`, else from `log.retention.minutes`, else from
`log.retention.hours`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from klamm.config.broker_config import BrokerConfig
from klamm.config.rows import (
    LONG_MAX,
    ConfigError,
    ConfigRow,
    ConfigType,
    ConfigValue,
    Synonym,
    find_row,
    table,
)

_THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_THROTTLED_REPLICAS_FORM = re.compile(r"\s*(\*|\d+:\d+(\s*,\s*\d+:\d+)*)?\s*")

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_KEYS = table(
    [
        ConfigRow(
            "cleanup.policy",
            ConfigType.LIST,
            ("delete",),
            "What happens to old segments: delete removes them by age and size, compact keeps the last "
            "record of every key; both can be combined. An empty list keeps all records.",
            choices=("compact", "delete"),
            synonyms=(Synonym("log.cleanup.policy"),),
        ),
        ConfigRow(
            "compression.gzip.level",
            ConfigType.INT,
            -1,
            "The level for gzip when compression.type is gzip; -1 lets the library choose.",
            minimum=1,
            maximum=9,
            also_allowed=(-1,),
            synonyms=(Synonym("compression.gzip.level"),),
        ),
        ConfigRow(
            "compression.lz4.level",
            ConfigType.INT,
            9,
            "The level for lz4 when compression.type is lz4.",
            minimum=1,
            maximum=17,
            synonyms=(Synonym("compression.lz4.level"),),
        ),
        ConfigRow(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "The codec that batches are stored with. producer stores batches as they were sent, which "
            "costs the broker no time. With any other value the broker compresses batches again that were "
            "sent with another codec.",
            choices=COMPRESSION_TYPES,
            synonyms=(Synonym("compression.type"),),
        ),
        ConfigRow(
            "compression.zstd.level",
            ConfigType.INT,
            3,
            "The level for zstd when compression.type is zstd.",
            minimum=-131072,
            maximum=22,
            synonyms=(Synonym("compression.zstd.level"),),
        ),
        ConfigRow(
            "delete.retention.ms",
            ConfigType.LONG,
            86_400_000,
            "How long a compacted topic keeps a tombstone (a record without a value), so that slow "
            "consumers read it.",
            minimum=0,
            synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
        ),
        ConfigRow(
            "file.delete.delay.ms",
            ConfigType.LONG,
            60_000,
            "How long the files of a deleted segment stay on disk.",
            minimum=0,
            synonyms=(Synonym("log.segment.delete.delay.ms"),),
        ),
        ConfigRow(
            "flush.messages",
            ConfigType.LONG,
            LONG_MAX,
            "How many records may be written before the log is flushed to disk (fsync). With 1 every batch "
            "is flushed before it is acknowledged: then acknowledged records survive even if all replicas "
            "lose power at once.",
            minimum=1,
            synonyms=(Synonym("log.flush.interval.messages"),),
        ),
        ConfigRow(
            "flush.ms",
            ConfigType.LONG,
            LONG_MAX,
            "How long written records may wait before the log is flushed to disk (fsync).",
            minimum=0,
            synonyms=(Synonym("log.flush.interval.ms"),),
        ),
        ConfigRow(
            "follower.replication.throttled.replicas",
            ConfigType.LIST,
            (),
            "The replicas whose replication is throttled on the follower "
            "(follower.replication.throttled.rate), as partition:broker, or * for all.",
        ),
        ConfigRow(
            "index.interval.bytes",
            ConfigType.INT,
            4096,
            "The number of bytes in the log between two entries of the offset index.",
            minimum=0,
            synonyms=(Synonym("log.index.interval.bytes"),),
        ),
        ConfigRow(
            "internal.segment.bytes",
            ConfigType.INT,
            None,
            "A segment size below the bound of segment.bytes, for tests that need many small segments.",
            minimum=14,
            internal=True,
        ),
        ConfigRow(
            "leader.replication.throttled.replicas",
            ConfigType.LIST,
            (),
            "The replicas whose replication is throttled on the leader (leader.replication.throttled.rate), "
            "as partition:broker, or * for all.",
        ),
        ConfigRow(
            "local.retention.bytes",
            ConfigType.LONG,
            -2,
            "How many bytes of a log stay on local disk after they were copied to remote storage. Has no "
            "effect: tiered storage is not built.",
            minimum=-2,
            synonyms=(Synonym("log.local.retention.bytes"),),
            honoured=False,
        ),
        ConfigRow(
            "local.retention.ms",
            ConfigType.LONG,
            -2,
            "How long segments stay on local disk after they were copied to remote storage. Has no effect: "
            "tiered storage is not built.",
            minimum=-2,
            synonyms=(Synonym("log.local.retention.ms"),),
            honoured=False,
        ),
        ConfigRow(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            LONG_MAX,
            "The longest time a record may stay uncompacted. A log with an older uncompacted record is "
            "compacted even below min.cleanable.dirty.ratio.",
            minimum=1,
            synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
        ),
        ConfigRow(
            "max.message.bytes",
            ConfigType.INT,
            1_048_588,
            "The largest record batch that the broker accepts, in its compressed size.",
            minimum=0,
            synonyms=(Synonym("message.max.bytes"),),
        ),
        ConfigRow(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            3_600_000,
            "How far in the future a record's timestamp may lie if message.timestamp.type is CreateTime.",
            minimum=0,
            synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
        ),
        ConfigRow(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            LONG_MAX,
            "How far in the past a record's timestamp may lie if message.timestamp.type is CreateTime.",
            minimum=0,
            synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
        ),
        ConfigRow(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "CreateTime: a record keeps the timestamp of its producer. LogAppendTime: the broker sets the "
            "time at which it writes the record.",
            choices=("CreateTime", "LogAppendTime"),
            synonyms=(Synonym("log.message.timestamp.type"),),
        ),
        ConfigRow(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            0.5,
            "A log is compacted when at least this share of it is uncompacted.",
            minimum=0,
            maximum=1,
            synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
        ),
        ConfigRow(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            0,
            "The shortest time a record stays uncompacted.",
            minimum=0,
            synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
        ),
        ConfigRow(
            "min.insync.replicas",
            ConfigType.INT,
            1,
            "The least number of in-sync replicas for a write with acks=all. A topic with fewer replicas "
            "needs all of them.",
            minimum=1,
            synonyms=(Synonym("min.insync.replicas"),),
        ),
        ConfigRow(
            "preallocate",
            ConfigType.BOOLEAN,
            False,
            "Whether a new segment file allocates its full size on disk at once.",
            synonyms=(Synonym("log.preallocate"),),
        ),
        ConfigRow(
            "remote.log.copy.disable",
            ConfigType.BOOLEAN,
            False,
            "Whether segments are no longer copied to remote storage. Has no effect: tiered storage is not "
            "built.",
            honoured=False,
        ),
        ConfigRow(
            "remote.log.delete.on.disable",
            ConfigType.BOOLEAN,
            False,
            "Whether remote segments are deleted when remote.storage.enable is set to false. Has no "
            "effect: tiered storage is not built.",
            honoured=False,
        ),
        ConfigRow(
            "remote.storage.enable",
            ConfigType.BOOLEAN,
            False,
            "Whether segments are copied to remote storage. Only false is accepted: tiered storage is not "
            "built.",
            refused_because="tiered storage is not built; leave the key out",
            honoured=False,
        ),
        ConfigRow(
            "retention.bytes",
            ConfigType.LONG,
            -1,
            "How large the log of a partition may grow before its oldest segments are deleted, if "
            "cleanup.policy contains delete; -1 sets no limit.",
            synonyms=(Synonym("log.retention.bytes"),),
        ),
        ConfigRow(
            "retention.ms",
            ConfigType.LONG,
            604_800_000,
            "A segment is deleted when its newest record is older than this, if cleanup.policy contains "
            "delete; -1 sets no limit.",
            minimum=-1,
            synonyms=(Synonym("log.retention.ms"),),
        ),
        ConfigRow(
            "segment.bytes",
            ConfigType.INT,
            1_073_741_824,
            "The size at which a segment is closed and a new one is started.",
            minimum=1_048_576,
            synonyms=(Synonym("log.segment.bytes"),),
        ),
        ConfigRow(
            "segment.index.bytes",
            ConfigType.INT,
            10_485_760,
            "The largest size of an offset index. When the index is full, its segment is closed.",
            minimum=4,
            synonyms=(Synonym("log.index.size.max.bytes"),),
        ),
        ConfigRow(
            "segment.jitter.ms",
            ConfigType.LONG,
            0,
            "A random time up to this is subtracted from segment.ms, so that segments do not all close at "
            "once.",
            minimum=0,
            synonyms=(Synonym("log.roll.jitter.ms"),),
        ),
        ConfigRow(
            "segment.ms",
            ConfigType.LONG,
            604_800_000,
            "The age at which a segment is closed even if it is not full.",
            minimum=1,
            synonyms=(Synonym("log.roll.ms"),),
        ),
        ConfigRow(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            False,
            "Whether a replica that is not in sync may become leader if no other is left; records may be "
            "lost.",
            synonyms=(Synonym("unclean.leader.election.enable"),),
        ),
    ]
)


def topic_config(broker_config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
    """The effective value of every topic key, for a topic that sets `overrides`."""
    values: dict[str, ConfigValue] = {}
    for name, row in TOPIC_KEYS.items():
        values[name] = _value(row, broker_config, overrides)
    if values["internal.segment.bytes"] is not None:
        values["segment.bytes"] = values["internal.segment.bytes"]
    return values


def topic_value(broker_config: BrokerConfig, overrides: Mapping[str, str], name: str) -> ConfigValue:
    """The effective value of one topic key, likewise."""
    return _value(find_topic_row(name), broker_config, overrides)


def _value(row: ConfigRow, broker_config: BrokerConfig, overrides: Mapping[str, str]) -> ConfigValue:
    if row.name in overrides:
        return row.parse(overrides[row.name])
    return broker_config[row.synonyms[0].name] if row.synonyms else row.default


def find_topic_row(name: str) -> ConfigRow:
    """The row of a topic key. The ConfigError for an unknown key names the nearest known one."""
    return find_row(TOPIC_KEYS, name, "topic")


def validate_topic_config(broker_config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if a topic may not set `overrides`: for each key, each value, and all together."""
    for name, text in overrides.items():
        find_topic_row(name).parse(text)
    for name in _THROTTLED_REPLICAS:
        if not _THROTTLED_REPLICAS_FORM.fullmatch(overrides.get(name, "")):
            raise ConfigError(
                f"{name}={overrides[name]!r} is refused: it must be * or a comma-separated list of "
                "partition:broker",
                key=name,
            )
    values = topic_config(broker_config, overrides)
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(shortest, int) and isinstance(longest, int)
    if shortest > longest:
        raise ConfigError(
            f"min.compaction.lag.ms={shortest} is refused: "
            f"it must not exceed max.compaction.lag.ms={longest}",
            key="min.compaction.lag.ms",
        )
