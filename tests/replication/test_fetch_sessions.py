from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication import fetch_sessions
from klamm.replication.fetch_sessions import FetchSession, FetchSessions, PartitionKey
from klamm.replication.fetching import PartitionAnswer, Reading, settle
from klamm.replication.partition import Partition
from tests.replication.partitions import append, open_partition, position

A: PartitionKey = ("orders", 0)
B: PartitionKey = ("orders", 1)
C: PartitionKey = ("orders", 2)


class Owner:
    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def close(self) -> None:
        for callback in self.callbacks:
            callback()


class Partitions:
    """Three partitions; a key that is not there is unknown."""

    def __init__(self, directory: Path) -> None:
        self.by_key: dict[PartitionKey, Partition] = {
            key: open_partition(directory, "orders", key[1]) for key in (A, B, C)
        }

    def __call__(self, key: PartitionKey) -> Partition:
        if key not in self.by_key:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
        return self.by_key[key]

    def answer(self, session: FetchSession, max_bytes: int = 1_000_000) -> list[PartitionAnswer]:
        """What one fetch of the session says."""
        ready = session.to_read()
        for fetched in ready:
            fetched.find(self)
        reading = Reading(replica_id=session.replica_id, max_bytes=max_bytes, max_files=100)
        reading.read_blocking(ready)
        return settle(session, reading.answers)


@pytest.fixture
def partitions(tmp_path: Path) -> Partitions:
    return Partitions(tmp_path)


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(2, itertools.count(0).__next__)


def keys_of(answers: list[PartitionAnswer]) -> list[PartitionKey]:
    return [answer.fetched.position.key for answer in answers]


def create(sessions: FetchSessions, *keys: PartitionKey, owner: Owner | None = None) -> FetchSession:
    session = sessions.create(owner or Owner(), [position(key) for key in keys], uses_topic_ids=False)
    assert session is not None
    return session


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return ErrorCode(error.value.code)


async def test_the_first_answer_names_all_and_later_ones_what_is_new(
    sessions: FetchSessions, partitions: Partitions
) -> None:
    session = create(sessions, A, B, C)
    assert keys_of(partitions.answer(session)) == [A, B, C]
    session.continue_with(1, [], [])
    assert partitions.answer(session) == []
    append(partitions.by_key[B], b"news")
    session.continue_with(2, [], [])
    assert keys_of(partitions.answer(session)) == [B]


async def test_only_ready_partitions_are_looked_at(sessions: FetchSessions, partitions: Partitions) -> None:
    session = create(sessions, A, B, C)
    partitions.answer(session)
    assert not session.ready
    append(partitions.by_key[C], b"news")
    assert [fetched.position.key for fetched in session.ready] == [C]


def test_a_partition_stays_ready_until_its_client_has_moved_on(
    sessions: FetchSessions, partitions: Partitions
) -> None:
    session = create(sessions, A)
    append(partitions.by_key[A], b"news")
    partitions.answer(session)
    session.continue_with(1, [], [])
    (again,) = partitions.answer(session)
    assert again.records is not None
    session.continue_with(2, [position(A, 1)], [])
    partitions.answer(session)
    session.continue_with(3, [], [])
    assert partitions.answer(session) == []


def test_a_full_answer_does_not_starve_the_others(sessions: FetchSessions, partitions: Partitions) -> None:
    session = create(sessions, A, B, C)
    for key in (A, B, C):
        append(partitions.by_key[key], b"x" * 1000)
    served = []
    for epoch in range(1, 4):
        (told,) = [
            answer for answer in partitions.answer(session, max_bytes=1100) if answer.records is not None
        ]
        key = told.fetched.position.key
        served.append(key)
        session.continue_with(epoch, [position(key, 1)], [])
    assert served == [A, B, C]


def test_forgotten_partitions_are_let_go(sessions: FetchSessions, partitions: Partitions) -> None:
    session = create(sessions, A, B)
    partitions.answer(session)
    session.continue_with(1, [], [A])
    append(partitions.by_key[A], b"news")
    assert partitions.answer(session) == []
    assert list(session.partitions) == [B]


def test_a_partition_that_is_made_anew_is_found(sessions: FetchSessions, partitions: Partitions) -> None:
    session = create(sessions, A)
    gone = partitions.by_key.pop(A)
    (answer,) = partitions.answer(session)
    assert answer.error is not None and answer.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partitions.by_key[A] = gone
    append(gone, b"news")
    session.continue_with(1, [], [])
    (answer,) = partitions.answer(session)
    assert answer.error is None and answer.records is not None


def test_a_change_between_reading_and_answering_is_not_lost(
    sessions: FetchSessions, partitions: Partitions
) -> None:
    """A thread reads, and meanwhile the leader moves: the next fetch must look."""
    session = create(sessions, A)
    partitions.answer(session)
    session.continue_with(1, [position(A)], [])
    ready = session.to_read()
    reading = Reading(replica_id=-1, max_bytes=1000, max_files=1)
    reading.read_blocking(ready)
    partitions.by_key.pop(A).notify_changed()
    assert settle(session, reading.answers) == []
    session.continue_with(2, [], [])
    (answer,) = partitions.answer(session)
    assert answer.error is not None


def test_a_partition_that_is_forgotten_while_a_thread_reads_stays_forgotten(
    sessions: FetchSessions, partitions: Partitions
) -> None:
    """A follower's old position would be told to the partition again, with every request of the session."""
    session = create(sessions, A, B)
    append(partitions.by_key[A], b"records")
    session.continue_with(1, [], [])
    ready = session.to_read()
    for fetched in ready:
        fetched.find(partitions)
    reading = Reading(replica_id=-1, max_bytes=1000, max_files=1)
    reading.read_blocking(ready)
    session.continue_with(2, [], [A])
    assert A not in keys_of(settle(session, reading.answers))
    assert [fetched.position.key for fetched in session.ready] == []
    assert list(session.partitions) == [B]


def test_epochs_must_follow_each_other(sessions: FetchSessions) -> None:
    session = create(sessions, A)
    for wrong in (2, 5):
        with pytest.raises(KafkaError) as raised:
            session.continue_with(wrong, [], [])
        assert code_of(raised) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.continue_with(1, [], [])
    session.continue_with(2, [], [])


def test_the_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    session = create(sessions, A)
    session.next_epoch = 2**31 - 1
    session.continue_with(2**31 - 1, [], [])
    assert session.next_epoch == 1


def test_unknown_sessions_and_mixed_names(sessions: FetchSessions) -> None:
    with pytest.raises(KafkaError) as unknown:
        sessions.get(99, uses_topic_ids=False)
    assert code_of(unknown) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = create(sessions, A)
    with pytest.raises(KafkaError) as mixed:
        sessions.get(session.session_id, uses_topic_ids=True)
    assert code_of(mixed) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert sessions.get(session.session_id, uses_topic_ids=False) is session


def test_a_session_belongs_to_one_replica(sessions: FetchSessions) -> None:
    session = sessions.create(Owner(), [], uses_topic_ids=True, replica_id=3)
    assert session is not None and session.is_follower
    for other in (-1, 4):
        with pytest.raises(KafkaError) as raised:
            sessions.get(session.session_id, uses_topic_ids=True, replica_id=other)
        assert code_of(raised) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.get(session.session_id, uses_topic_ids=True, replica_id=3) is session


def test_a_partition_that_is_ready_is_told_of_nothing(
    sessions: FetchSessions, partitions: Partitions
) -> None:
    """Many appends between two fetches must not cost more than one."""
    session = create(sessions, A)
    partitions.answer(session)
    assert partitions.by_key[A]._watchers
    append(partitions.by_key[A], b"news")
    assert not partitions.by_key[A]._watchers
    append(partitions.by_key[A], b"more")
    session.continue_with(1, [], [])
    partitions.answer(session)
    session.continue_with(2, [position(A, 2)], [])
    partitions.answer(session)
    assert partitions.by_key[A]._watchers, "its client has read everything"


def test_there_are_only_so_many(sessions: FetchSessions) -> None:
    first, second = create(sessions, A), create(sessions, A)
    assert first.session_id and second.session_id and first.session_id != second.session_id
    assert sessions.create(Owner(), [], uses_topic_ids=False) is None
    sessions.remove(first.session_id)
    create(sessions, A)


def test_sessions_end_with_their_connection(sessions: FetchSessions, partitions: Partitions) -> None:
    owner = Owner()
    session = create(sessions, A, owner=owner)
    create(sessions, B, owner=owner)
    partitions.answer(session)
    owner.close()
    assert len(sessions) == 0
    append(partitions.by_key[A], b"unheard")
    assert not session.ready


def test_nothing_is_kept_of_ended_sessions(sessions: FetchSessions) -> None:
    """A client that makes sessions without end, on one connection, costs no memory."""
    owner = Owner()
    for _ in range(100):
        sessions.remove(create(sessions, A, owner=owner).session_id)
    assert not sessions._ids_of_owners[owner]
    assert len(owner.callbacks) == 1
    owner.close()


def test_partitions_of_all_sessions_are_counted(
    sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 3)
    first = create(sessions, A, B)
    second = create(sessions, C)
    assert sessions.create(Owner(), [position(A)], uses_topic_ids=False) is None
    # Naming what it has already, and swapping one for another, is no growth.
    sessions.resume(first.session_id, 1, [position(A, 5)], [], uses_topic_ids=False)
    sessions.resume(first.session_id, 2, [position(C)], [A], uses_topic_ids=False)
    with pytest.raises(KafkaError) as raised:
        sessions.resume(first.session_id, 3, [position(A)], [], uses_topic_ids=False)
    assert code_of(raised) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 1
    sessions.remove(second.session_id)
    create(sessions, A, B, C)


async def test_one_answer_looks_at_a_few_and_the_next_at_the_others(
    sessions: FetchSessions, partitions: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_READ", 2)
    session = create(sessions, A, B, C)
    assert keys_of(partitions.answer(session)) == [A, B, C], "the first answer names all"
    for key in (A, B, C):
        append(partitions.by_key[key], b"x")
    sessions.resume(session.session_id, 1, [], [], uses_topic_ids=False)
    assert keys_of(partitions.answer(session)) == [A, B]
    assert keys_of(partitions.answer(session)) == [C, A], "who was not looked at comes first"


def test_parked_partitions_are_counted(sessions: FetchSessions) -> None:
    assert sessions.may_park(fetch_sessions.MAX_PARTITIONS)
    sessions.count_parked(1)
    assert not sessions.may_park(fetch_sessions.MAX_PARTITIONS)
    sessions.count_parked(-1)
    assert sessions.may_park(fetch_sessions.MAX_PARTITIONS)


def test_a_removed_session_waits_for_nothing(sessions: FetchSessions, partitions: Partitions) -> None:
    """Its last request may still be answered after it was removed."""
    session = create(sessions, A)
    partitions.answer(session)
    session.continue_with(1, [position(A)], [])
    sessions.remove(session.session_id)
    partitions.answer(session)
    assert not partitions.by_key[A]._watchers


def test_partitions_that_come_later_are_counted_once(sessions: FetchSessions) -> None:
    session = create(sessions)
    session.update(position(("orders", number)) for number in range(5))
    sessions.recount(session)
    sessions.recount(session)
    assert sessions._partition_count == 5
    session.update([position(("orders", 7))])  # and the session is removed before they are counted
    sessions.remove(session.session_id)
    assert sessions._partition_count == 0
    sessions.recount(session)
    assert sessions._partition_count == 0


def test_a_session_without_an_id_is_used_again_for_the_same_partitions_only() -> None:
    session = FetchSession([position(A), position(B)])
    session.end_request()
    assert session.begin_again([position(B, 7), position(A, 5)])
    assert [fetched.position for fetched in session.to_read()] == [position(B, 7), position(A, 5)]
    assert not session.is_over
    for others in ([position(A), position(C)], [position(A)]):
        session = FetchSession([position(A), position(B)])
        session.end_request()
        assert not session.begin_again(others)
