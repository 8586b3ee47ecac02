"""Fetch sessions (KIP-227): what a client fetches is remembered, so that each request names only changes.

Every fetch request has a session. A request that asks for none gets one that ends with it. Consumers and
followers (a replica id of a broker) differ in what they read, and in what they wait for: the high
watermark, or the log end.

A session makes many idle partitions cheap: a partition of a session is `ready`, which means that the next
look reads it, or it waits to be told of progress by its `Partition`. It is told once, becomes ready, and
waits again when a look has found nothing more to read. So a look reads the few that are ready and not all
of them, and an append to a partition costs something only for those who wait for it.

A session lives as long as the connection that made it. A client that comes back on another connection is
told FETCH_SESSION_ID_NOT_FOUND and makes a new one, as it does after a broker's restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.newest_batches import NewestBatches
from klamm.replication.partition import Partition

FINAL_EPOCH = -1
"""In a request: no session, or the end of one."""
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1

CONSUMER = -1
"""The replica id of a client that is not a replica."""

HIGH_WATERMARK_NOT_GIVEN = 2**63 - 1

MAX_PARTITIONS = 250_000
"""Partitions that all sessions together remember, at about a kilobyte each. Beyond it nobody gets a new
session, and who would make one grow loses it; fetching works without one. As many may be named by parked
fetches of very many partitions; beyond it such a fetch is answered at once."""

MAX_READ = 1_000
"""Ready partitions of a session that one answer reads. The others keep their place in line."""

PartitionKey = tuple[str | bytes, int]
"""(topic name or topic id as the request gave it, partition)."""


class FetchPosition(NamedTuple):
    """What a request asks of one partition, in the order of the wire."""

    key: PartitionKey
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    """A follower's; -1 from a consumer."""
    max_bytes: int
    high_watermark: int = HIGH_WATERMARK_NOT_GIVEN
    """What a follower takes for the high watermark (version 18)."""


class FetchedPartition:
    """One partition of a session: where its client reads, and what the client was told last.

    It knows its session only while it waits: else both would be a cycle, and each request left garbage to
    collect.
    """

    __slots__ = (
        "error",
        "has_changed",
        "high_watermark_told",
        "log_start_offset_told",
        "partition",
        "position",
        "session",
    )

    def __init__(self, position: FetchPosition) -> None:
        self.position = position
        self.has_changed = False
        """The partition was deleted, went offline or has another leader since it was found."""
        self.session: FetchSession | None = None
        """Set while this waits for progress of its partition."""
        self.partition: Partition | None = None
        self.error: KafkaError | None = None
        """Why there is no partition."""
        self.high_watermark_told = -1
        self.log_start_offset_told = -1

    def find(self, find_partition: FindPartition) -> None:
        """Find the partition again: a topic may have come, gone, or been made anew, a leader have moved."""
        self.has_changed = False
        try:
            partition: Partition | None = find_partition(self.position.key)
            self.error = None
        except KafkaError as error:
            partition = None
            self.error = error.as_result()
        if partition is not self.partition:
            self.stop_waiting()
            self.partition = partition

    def refuse(self, error: KafkaError) -> None:
        """The partition is here, but not for this client: answer `error`."""
        self.stop_waiting()
        self.partition = None
        self.error = error.as_result()

    def wait(self, session: FetchSession) -> None:
        """Be told of the next progress of the partition."""
        if self.session is None and self.partition is not None and not session.is_over:
            self.session = session
            self.partition.watch(self, to_log_end=session.is_follower)

    def stop_waiting(self) -> None:
        if self.session is not None and self.partition is not None:
            self.session = None
            self.partition.unwatch(self)

    def on_high_watermark(self) -> None:
        """The follower is told of it with the next answer of its session, whenever that is: without more
        records it would not hear of it otherwise."""
        assert self.session is not None
        self.session.ready[self] = None

    def on_progress(self, byte_count: int) -> None:
        session = self.session
        assert session is not None
        self.session = None
        session.ready[self] = None
        if not byte_count:
            self.has_changed = True
        parked = session.parked
        if parked is not None and not parked.wake(byte_count):
            self.wait(session)


class FindPartition(Protocol):
    """Finds the partition of a key; raises KafkaError when it cannot be read here."""

    def __call__(self, key: PartitionKey) -> Partition: ...


class ParkedRequest(Protocol):
    """A fetch request that waits for records."""

    def wake(self, byte_count: int) -> bool:
        """More bytes have come, or a partition itself has changed (0). False if that is too little."""

    def look(self) -> None:
        """Read again what is ready."""

    def answer_now(self) -> None:
        """Wait no longer: answer with what is there."""


class FetchSession:
    """The partitions that a client fetches. `ready` holds those that the next look reads, in turn."""

    __slots__ = (
        "counted",
        "is_incremental",
        "is_over",
        "next_epoch",
        "owner",
        "parked",
        "partitions",
        "ready",
        "replica_id",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self,
        positions: Iterable[FetchPosition] = (),
        *,
        session_id: int = 0,
        owner: SessionOwner | None = None,
        uses_topic_ids: bool = False,
        replica_id: int = CONSUMER,
    ) -> None:
        """Without a session id, a session that ends with its request."""
        self.session_id = session_id
        self.owner = owner
        self.uses_topic_ids = uses_topic_ids
        self.replica_id = replica_id
        self.next_epoch = 1
        self.is_incremental = False
        """False for the first answer, which names every partition; true for all later ones."""
        self.is_over = False
        """True if the session was removed, or has no id and its request was answered."""
        self.counted = 0
        """How many of its partitions are counted against `MAX_PARTITIONS`."""
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self.ready: dict[FetchedPartition, None] = {}
        self.parked: ParkedRequest | None = None
        """The request of this session that waits for records."""
        self.update(positions)

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    def update(self, positions: Iterable[FetchPosition]) -> None:
        for position in positions:
            fetched = self.partitions.get(position.key)
            if fetched is None:
                fetched = self.partitions[position.key] = FetchedPartition(position)
            else:
                fetched.position = position
            self.ready[fetched] = None

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
            fetched = self.partitions.pop(key, None)
            if fetched is not None:
                fetched.stop_waiting()
                self.ready.pop(fetched, None)

    def begin_again(self, positions: Iterable[FetchPosition]) -> bool:
        """Use a session without an id for another request.

        False if it has partitions that the request does not name: then it is of no use any more.
        """
        self.is_over = False
        self.ready.clear()
        self.update(positions)
        return len(self.ready) == len(self.partitions)

    def to_read(self) -> tuple[FetchedPartition, ...]:
        """Those that the next look reads. Only the later answers of a session may leave out some."""
        if self.is_incremental and len(self.ready) > MAX_READ:
            return tuple(islice(self.ready, MAX_READ))
        return tuple(self.ready)

    def end_request(self) -> None:
        """A request was answered or abandoned: without a session id nobody waits for progress any longer."""
        if not self.session_id:
            self.close()
            for fetched in self.partitions.values():
                fetched.partition = None  # it may be deleted before this object is used again, if ever

    def close(self) -> None:
        self.is_over = True
        for fetched in self.partitions.values():
            fetched.stop_waiting()


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
        self._woken: list[ParkedRequest] = []
        self.newest_batches = NewestBatches()

    def __len__(self) -> int:
        return len(self._sessions)

    def may_park(self, partition_count: int) -> bool:
        """Whether a fetch of very many partitions outside of a session may wait for records."""
        return self._parked_count + partition_count <= MAX_PARTITIONS

    def count_parked(self, partition_count: int) -> None:
        """So many more partitions are named by parked fetches; less, if negative."""
        self._parked_count += partition_count

    def look_soon(self, parked: ParkedRequest) -> None:
        """Have a woken request look again, with all others that are woken in this turn of the event loop."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._look)
        self._woken.append(parked)

    def _look(self) -> None:
        woken, self._woken = self._woken, []
        for parked in woken:
            parked.look()

    def create(
        self,
        owner: SessionOwner,
        positions: Iterable[FetchPosition],
        *,
        uses_topic_ids: bool,
        replica_id: int = CONSUMER,
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots or self._partition_count >= MAX_PARTITIONS:
            return None
        session_id = self._new_session_id()
        while session_id == 0 or session_id in self._sessions:
            session_id = self._new_session_id()
        session = FetchSession(
            positions,
            session_id=session_id,
            owner=owner,
            uses_topic_ids=uses_topic_ids,
            replica_id=replica_id,
        )
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
        *,
        uses_topic_ids: bool,
        replica_id: int = CONSUMER,
    ) -> FetchSession:
        """The session of a later request, brought up to date with what the request changes."""
        session = self.get(session_id, uses_topic_ids=uses_topic_ids, replica_id=replica_id)
        if session.parked is not None:
            # The client has more to ask, and answers keep the order of their requests.
            session.parked.answer_now()
        session.continue_with(epoch, positions, forgotten)
        self.recount(session)
        return session

    def recount(self, session: FetchSession) -> None:
        """Partitions may have come to a session, or left it. Ends a session that may not grow."""
        growth = len(session.partitions) - session.counted
        if not growth or session.session_id not in self._sessions:
            return
        session.counted += growth
        self._partition_count += growth
        if session.is_incremental and growth > 0 and self._partition_count > MAX_PARTITIONS:
            self.remove(session.session_id)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {session.session_id} is ended: "
                f"sessions may hold {MAX_PARTITIONS} partitions in all",
            )

    def get(self, session_id: int, *, uses_topic_ids: bool, replica_id: int = CONSUMER) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None or session.replica_id != replica_id:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {session_id} of replica {replica_id} does not exist: start a new session",
            )
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
            if session.owner is not None:
                self._ids_of_owners[session.owner].discard(session_id)

    def _remove_all_of(self, owner: SessionOwner) -> None:
        for session_id in tuple(self._ids_of_owners[owner]):
            self.remove(session_id)
        del self._ids_of_owners[owner]
