"""What a fetch asks for: the consumer's settings, the fetch session, and one planned request. A core.

A fetch session (KIP-227) belongs to one broker: a request names only what changed since the last one. The
first request is a full one and asks for a session; later ones are incremental: they name new and changed
partitions, and those to forget. After a failure (the broker lost the session, an answer did not come) or a
change from topic names to topic ids, the next request is a full one again, so that consumer and broker never
disagree for longer than one request. If a broker makes no session, it answers with session id 0, and every
request is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from klamm.client.consumer.partition_state import PartitionState
from klamm.client.network.backoff import Backoff
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

PartitionKey: TypeAlias = tuple[str | bytes, int]
"""(topic name or topic id, whichever the session uses; partition)."""

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1


class Asked(NamedTuple):
    """What a request asks of one partition."""

    fetch_offset: int
    leader_epoch: int
    max_bytes: int


class FetchSessionRequest(NamedTuple):
    """The fields of the next request that depend on the session."""

    session_id: int
    epoch: int
    changed: Mapping[PartitionKey, Asked]
    forgotten: list[PartitionKey]


class FetchSession:
    """The consumer's side of a session with one broker. One request is under way at a time."""

    __slots__ = ("_asked", "_epoch", "_uses_topic_ids", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._asked: dict[PartitionKey, Asked] = {}
        """What the broker remembers of this session."""
        self._uses_topic_ids = False

    @property
    def is_incremental(self) -> bool:
        """True if the next request may name changes only."""
        return self._epoch != INITIAL_EPOCH

    def request(self, wanted: Mapping[PartitionKey, Asked], uses_topic_ids: bool) -> FetchSessionRequest:
        """The next request, when exactly `wanted` is to be fetched."""
        if uses_topic_ids != self._uses_topic_ids:
            self._begin_again(self.session_id)
            self._uses_topic_ids = uses_topic_ids
        before = self._asked
        self._asked = dict(wanted)
        if not self.is_incremental:
            return FetchSessionRequest(self.session_id, INITIAL_EPOCH, wanted, [])
        changed = {key: asked for key, asked in wanted.items() if before.get(key) != asked}
        forgotten = [key for key in before if key not in wanted]
        return FetchSessionRequest(self.session_id, self._epoch, changed, forgotten)

    def answered(self, error_code: int, session_id: int) -> bool:
        """An answer came. Returns True if its partitions are valid."""
        if error_code != ErrorCode.NONE:
            # A broker that does not know the session has nothing to close.
            is_gone = error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_again(NO_SESSION if is_gone else self.session_id)
            return False
        if session_id == NO_SESSION or (self.is_incremental and session_id != self.session_id):
            self._begin_again(NO_SESSION)
            return True
        self.session_id = session_id
        self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True

    def failed(self) -> None:
        """No answer came, or the answer could not be decoded."""
        self._begin_again(self.session_id)

    def _begin_again(self, session_id: int) -> None:
        """The next request is a full one, in place of the session `session_id`."""
        self.session_id = session_id
        self._epoch = INITIAL_EPOCH
        self._asked = {}


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
    """True if auto.offset.reset says where to continue when an offset is out of range."""
    preferred_replica_seconds: float
    """How long the consumer reads from a replica before it asks the leader again which replica to read
    from."""
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
            preferred_replica_seconds=config.seconds("metadata.max.age.ms"),
            backoff=Backoff(config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms")),
        )


class FetchPlan(NamedTuple):
    """One request to one broker, and the partitions that its answer may have records of."""

    node_id: int
    is_express: bool
    version: int
    request: FetchRequest
    parts: dict[PartitionKey, tuple[PartitionState, int, int]]
    """State, its version and the offset that is asked for."""
    reserved_bytes: int


def fetch_request(
    settings: FetchSettings, session: FetchSessionRequest, *, max_wait_ms: int, max_bytes: int
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
