"""What a fetch asks for: the consumer's settings, one planned request, and how it is written down. A core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from klamm.client.consumer.fetch_session import Asked, PartitionKey, SessionRequest
from klamm.client.consumer.partition_state import PartitionState
from klamm.client.network.backoff import Backoff
from klamm.config.client_config import ClientConfig
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic


class FetchSettings(NamedTuple):
    """The consumer's configuration, as far as it is about fetching."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    prefetch_max_bytes: int
    is_read_committed: bool
    check_crcs: bool
    rack: str
    may_guess_offsets: bool
    """Whether auto.offset.reset says where to go when an offset is out of range."""
    replica_lease_seconds: float
    """How long a replica is read from before the leader is asked again whom to ask."""
    backoff: Backoff

    @staticmethod
    def of(config: ClientConfig) -> FetchSettings:
        return FetchSettings(
            max_wait_ms=config.int_("fetch.max.wait.ms"),
            min_bytes=config.int_("fetch.min.bytes"),
            max_bytes=config.int_("fetch.max.bytes"),
            partition_max_bytes=config.int_("max.partition.fetch.bytes"),
            prefetch_max_bytes=config.int_("prefetch.max.bytes"),
            is_read_committed=config.str_("isolation.level") == "read_committed",
            check_crcs=config.bool_("check.crcs"),
            rack=config.str_("client.rack"),
            may_guess_offsets=config.str_("auto.offset.reset") != "none",
            replica_lease_seconds=config.seconds("metadata.max.age.ms"),
            backoff=Backoff(config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms")),
        )


class FetchPlan(NamedTuple):
    """One request to one broker, and what its answer may bring."""

    node_id: int
    is_express: bool
    version: int
    request: FetchRequest
    parts: dict[PartitionKey, tuple[PartitionState, int, int]]
    """State, its version and the offset that is asked for."""
    reserved_bytes: int


def fetch_request(
    settings: FetchSettings, session: SessionRequest, *, max_wait_ms: int, max_bytes: int
) -> FetchRequest:
    """The message to send."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=max_bytes,
        isolation_level=1 if settings.is_read_committed else 0,
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=_topics(session.changed.items()),
        forgotten_topics_data=_forgotten(session.forgotten),
        rack_id=settings.rack,
    )


def _topics(changed: Iterable[tuple[PartitionKey, Asked]]) -> list[FetchTopic]:
    topics: dict[str | bytes, FetchTopic] = {}
    for (name, partition), asked in changed:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = (
                FetchTopic(topic_id=name) if isinstance(name, bytes) else FetchTopic(topic=name)
            )
        topic.partitions.append(
            FetchPartition(
                partition=partition,
                current_leader_epoch=asked.leader_epoch,
                fetch_offset=asked.fetch_offset,
                partition_max_bytes=asked.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(keys: Iterable[PartitionKey]) -> list[ForgottenTopic]:
    topics: dict[str | bytes, ForgottenTopic] = {}
    for name, partition in keys:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = (
                ForgottenTopic(topic_id=name) if isinstance(name, bytes) else ForgottenTopic(topic=name)
            )
        topic.partitions.append(partition)
    return list(topics.values())
