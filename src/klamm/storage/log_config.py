"""The settings of one log, as its topic has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_FOREVER_MS = 2**63 - 1


@dataclass(frozen=True)
class LogConfig:
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    cleanup_compact: bool = False
    cleanup_delete: bool = True
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _FOREVER_MS
    min_cleanable_dirty_ratio: float = 0.5
    flush_messages: int = _FOREVER_MS
    flush_ms: int = _FOREVER_MS
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = _FOREVER_MS
    message_timestamp_after_max_ms: int = 3600 * 1000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    preallocate: bool = False

    @cached_property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def limits_old_timestamps(self) -> bool:
        """True if a record can be too old for this log."""
        return self.message_timestamp_before_max_ms < _FOREVER_MS and not self.uses_log_append_time

    @cached_property
    def flushes_by_itself(self) -> bool:
        """Does an acknowledgement ever wait for an fsync?"""
        return self.flush_messages < _FOREVER_MS or self.flush_ms < _FOREVER_MS

    @cached_property
    def compression_level(self) -> int | None:
        """The level of the codec `compression_type`; None for its default, or if it has no levels."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        level = levels.get(self.compression_type)
        return None if self.compression_type == "gzip" and level == -1 else level

    @cached_property
    def roll_ms(self) -> int:
        """How old the active segment may become; compaction may not wait longer than its greatest lag."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.cleanup_compact else self.segment_ms

    @classmethod
    def from_topic_values(cls, values: Mapping[str, Any]) -> LogConfig:
        """Made from a topic's effective settings by Kafka's names; settings that no log has are ignored."""
        fields = {
            name: values[name.replace("_", ".")]
            for name in cls.__dataclass_fields__
            if name.replace("_", ".") in values
        }
        if "cleanup.policy" in values:
            policy = values["cleanup.policy"]
            words = policy.replace(" ", "").split(",") if isinstance(policy, str) else list(policy)
            fields |= {"cleanup_compact": "compact" in words, "cleanup_delete": "delete" in words}
        if values.get("internal.segment.bytes") is not None:
            fields["segment_bytes"] = values["internal.segment.bytes"]
        return cls(**fields)
