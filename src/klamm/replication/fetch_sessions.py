"""Fetch sessions (KIP-227): what a consumer fetches is remembered, so that each request names only changes.

A session also makes many idle partitions cheap for us: it watches its partitions and keeps the few that
may have something to say in `ready`, so that a fetch looks at those and not at all of them.

A session lives as long as the connection that made it. A client that comes back on another connection is
told FETCH_SESSION_ID_NOT_FOUND and makes a new one, as it does after a broker's restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.partition import Partition

FINAL_EPOCH = -1
"""In a request: no session, or the end of one."""
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1

MAX_PARTITIONS = 250_000
"""Partitions that all sessions together remember, at about a kilobyte each. Beyond it nobody gets a new
session, and who would make one grow loses it; fetching works without one. As many may be named by parked
fetches of very many partitions; beyond it such a fetch is answered at once."""

PartitionKey = tuple[str | bytes, int]
"""(topic name or topic id as the request gave it, partition)."""


class FetchPosition(NamedTuple):
    """What a request asks of one partition."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int


class FetchTarget:
    """One partition that a request or a session fetches, and what its client was told last.

    As a watcher it passes a partition's progress on to its owner (a session, or one parked request). It knows
    its owner only while it watches: else both would be a cycle, and each request left garbage to collect.
    """

    __slots__ = (
        "error",
        "high_watermark_told",
        "log_start_offset_told",
        "owner",
        "partition",
        "position",
    )

    def __init__(self, position: FetchPosition) -> None:
        self.position = position
        self.owner: TargetSet | None = None
        """Set while this is a watcher."""
        self.partition: Partition | None = None
        self.error: KafkaError | None = None
        """Why there is no partition."""
        self.high_watermark_told = -1
        self.log_start_offset_told = -1

    def point_to(self, partition: Partition | None) -> None:
        if partition is not self.partition:
            self.unwatch()
            self.partition = partition

    def watch(self, owner: TargetSet) -> None:
        if self.owner is None and self.partition is not None:
            self.owner = owner
            self.partition.watch(self)

    def unwatch(self) -> None:
        if self.owner is not None and self.partition is not None:
            self.owner = None
            self.partition.unwatch(self)

    def on_progress(self, byte_count: int) -> None:
        assert self.owner is not None
        self.owner.on_progress(self, byte_count)


class FindPartition(Protocol):
    """Finds the partition of a key; raises KafkaError when there is none here."""

    def __call__(self, key: PartitionKey) -> Partition: ...


class TargetSet:
    """The partitions of one fetcher; `ready` holds, in order of turn, those that may have an answer."""

    __slots__ = ("ready", "targets", "wake")

    is_incremental = False
    session_id = 0

    def __init__(self, positions: Iterable[FetchPosition] = ()) -> None:
        self.targets: dict[PartitionKey, FetchTarget] = {}
        self.ready: dict[FetchTarget, None] = {}
        self.wake: Callable[[int], None] | None = None
        """Set while a request of this fetcher is parked: called with the bytes that have arrived."""
        self.update(positions)

    def update(self, positions: Iterable[FetchPosition]) -> None:
        for position in positions:
            target = self.targets.get(position.key)
            if target is None:
                target = self.targets[position.key] = FetchTarget(position)
            else:
                target.position = position
            self.ready[target] = None

    def resolve(self, find_partition: FindPartition, targets: Iterable[FetchTarget]) -> None:
        """Find the partitions of `targets`: a topic may have come, gone, or been made anew."""
        for target in targets:
            try:
                target.point_to(find_partition(target.position.key))
                target.error = None
            except KafkaError as error:
                target.point_to(None)
                target.error = error.as_result()

    def watch(self) -> None:
        """Be told of the progress of every partition from now on."""
        for target in self.targets.values():
            target.watch(self)

    def on_progress(self, target: FetchTarget, byte_count: int) -> None:
        self.ready[target] = None
        if self.wake is not None:
            self.wake(byte_count)

    def on_request_done(self) -> None:
        """A parked request was answered or abandoned: without a session nobody listens any longer."""
        self.close()

    def close(self) -> None:
        for target in self.targets.values():
            target.unwatch()


class FetchSession(TargetSet):
    __slots__ = ("counted", "is_incremental", "next_epoch", "owner", "session_id", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        owner: SessionOwner,
        positions: Iterable[FetchPosition],
        uses_topic_ids: bool,
    ) -> None:
        super().__init__(positions)
        self.session_id = session_id
        self.owner = owner
        self.uses_topic_ids = uses_topic_ids
        self.next_epoch = 1
        self.counted = 0
        """How many of its partitions are counted against `MAX_PARTITIONS`."""
        self.is_incremental = False
        """False for the first answer, which names every partition; true for all later ones."""

    def continue_with(
        self, epoch: int, positions: Iterable[FetchPosition], forgotten: Iterable[PartitionKey]
    ) -> None:
        if epoch != self.next_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {self.session_id} expects epoch {self.next_epoch}, the request has {epoch}",
            )
        self.next_epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        self.is_incremental = True
        self.update(positions)
        for key in forgotten:
            target = self.targets.pop(key, None)
            if target is not None:
                target.unwatch()
                self.ready.pop(target, None)

    def resolve(self, find_partition: FindPartition, targets: Iterable[FetchTarget]) -> None:
        super().resolve(find_partition, targets)
        for target in targets:
            target.watch(self)

    def on_request_done(self) -> None:
        """A session goes on listening between requests: that is what fills `ready`."""


class SessionOwner(Protocol):
    """The connection that a session lives with."""

    def on_close(self, callback: Callable[[], None]) -> None: ...


class FetchSessions:
    """All sessions of a broker, at most `slots` of them; later clients fetch without a session."""

    def __init__(self, slots: int, new_session_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_session_id = new_session_id
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0
        self._parked_count = 0
        self._ids_of_owners: dict[SessionOwner, set[int]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def may_park(self, partition_count: int) -> bool:
        """Whether a fetch of very many partitions outside of a session may wait for records."""
        return self._parked_count + partition_count <= MAX_PARTITIONS

    def count_parked(self, partition_count: int) -> None:
        """So many more partitions are named by parked fetches; less, if negative."""
        self._parked_count += partition_count

    def create(
        self, owner: SessionOwner, positions: Iterable[FetchPosition], uses_topic_ids: bool
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots or self._partition_count >= MAX_PARTITIONS:
            return None
        session_id = self._new_session_id()
        while session_id == 0 or session_id in self._sessions:
            session_id = self._new_session_id()
        session = FetchSession(session_id, owner, positions, uses_topic_ids)
        self._sessions[session_id] = session
        self.recount(session)
        if owner not in self._ids_of_owners:
            self._ids_of_owners[owner] = set()
            owner.on_close(lambda: self._remove_all_of(owner))
        self._ids_of_owners[owner].add(session_id)
        return session

    def resume(
        self,
        session_id: int,
        epoch: int,
        positions: Iterable[FetchPosition],
        forgotten: Iterable[PartitionKey],
        uses_topic_ids: bool,
    ) -> FetchSession:
        """The session of a later request, brought up to date with what the request changes."""
        session = self.get(session_id, uses_topic_ids)
        session.continue_with(epoch, positions, forgotten)
        self.recount(session)
        return session

    def recount(self, fetch: TargetSet) -> None:
        """Partitions may have come to a session, or left it. Ends a session that may not grow."""
        if not isinstance(fetch, FetchSession) or fetch.session_id not in self._sessions:
            return
        growth = len(fetch.targets) - fetch.counted
        fetch.counted += growth
        self._partition_count += growth
        if fetch.is_incremental and growth > 0 and self._partition_count > MAX_PARTITIONS:
            self.remove(fetch.session_id)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {fetch.session_id} is ended: "
                f"sessions may hold {MAX_PARTITIONS} partitions in all",
            )

    def get(self, session_id: int, uses_topic_ids: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session_id} was made with topic "
                + ("ids" if session.uses_topic_ids else "names"),
            )
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            self._partition_count -= session.counted
            self._ids_of_owners[session.owner].discard(session_id)

    def _remove_all_of(self, owner: SessionOwner) -> None:
        for session_id in tuple(self._ids_of_owners[owner]):
            self.remove(session_id)
        del self._ids_of_owners[owner]
