"""The keyword arguments of a Consumer: those of every client, and one for each row of CONSUMER_KEYS."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.client.options import ClientOptions


class ConsumerOptions(ClientOptions, total=False):
    """Settings of a consumer; docs/CLIENT_CONFIGURATION.md says what they mean."""

    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    check_crcs: bool
    enable_auto_commit: bool
    exclude_internal_topics: bool
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str
    group_instance_id: str
    heartbeat_interval_ms: int
    isolation_level: str
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: str | Sequence[str]
    prefetch_max_bytes: int
    session_timeout_ms: int
