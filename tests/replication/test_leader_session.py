from __future__ import annotations

from klamm.model.errors import ErrorCode
from klamm.replication.follower import FetchPosition
from klamm.replication.leader_session import INITIAL_EPOCH, NO_SESSION, Key, LeaderSession, NextRequest

A: Key = (b"a" * 16, 0)
B: Key = (b"b" * 16, 0)
C: Key = (b"c" * 16, 0)
SESSION_ID = 55


class Followed:
    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.is_waiting = False

    def next_fetch(self) -> FetchPosition | None:
        return None if self.is_waiting else FetchPosition(self.offset, 1, 1, 0)


class Session(LeaderSession):
    """A session with partitions that the test moves on."""

    def __init__(self, *keys: Key) -> None:
        super().__init__()
        self.followed = {key: Followed() for key in keys}
        for key, partition in self.followed.items():
            self.add(key, partition)

    def begin(self) -> None:
        asked = self.next_request()
        assert (asked.session_id, asked.epoch) == (NO_SESSION, INITIAL_EPOCH)
        assert self.on_answer(asked, ErrorCode.NONE, SESSION_ID)

    def move(self, key: Key, offset: int) -> None:
        self.followed[key].offset = offset
        self.touch((key,))


def named(asked: NextRequest) -> dict[Key, int]:
    return {key: position.fetch_offset for key, position in asked.positions.items()}


def test_the_first_request_names_all_and_the_others_what_changed() -> None:
    session = Session(A, B)
    asked = session.next_request()
    assert (asked.epoch, named(asked), asked.forgotten) == (0, {A: 0, B: 0}, [])
    assert session.on_answer(asked, ErrorCode.NONE, SESSION_ID)
    session.move(B, 3)
    asked = session.next_request()
    assert (asked.session_id, asked.epoch, named(asked)) == (SESSION_ID, 1, {B: 3})
    assert session.on_answer(asked, ErrorCode.NONE, SESSION_ID)
    asked = session.next_request()
    assert (asked.epoch, named(asked), asked.forgotten) == (2, {}, [])


def test_what_comes_and_goes() -> None:
    session = Session(A, B)
    session.begin()
    session.remove(A)
    session.add(C, Followed(9))
    asked = session.next_request()
    assert (named(asked), asked.forgotten) == ({C: 9}, [A])
    assert session.position(A, asked) is None
    session.remove(C)
    session.add(C, Followed(4))
    asked = session.next_request()
    assert (named(asked), asked.forgotten) == ({C: 4}, []), "it is there still, elsewhere"
    assert len(session) == 2


def test_what_the_leader_was_not_told_it_need_not_forget() -> None:
    session = Session(A)
    session.begin()
    session.add(B, Followed())
    session.remove(B)
    session.remove(C)
    session.touch((B, C))
    asked = session.next_request()
    assert (named(asked), asked.forgotten) == ({}, [])


def test_a_partition_that_waits_for_an_epoch_is_forgotten() -> None:
    session = Session(A, B)
    session.begin()
    session.followed[A].is_waiting = True
    session.touch((A,))
    asked = session.next_request()
    assert (named(asked), asked.forgotten, len(session)) == ({}, [A], 1)


def test_a_failure_begins_a_new_session_that_names_all() -> None:
    session = Session(A, B)
    session.begin()
    session.remove(A)
    session.on_failure()
    asked = session.next_request()
    assert (asked.session_id, asked.epoch, named(asked)) == (NO_SESSION, INITIAL_EPOCH, {B: 0})
    assert asked.forgotten == []


def test_an_answer_with_an_error_does_not_count() -> None:
    session = Session(A)
    session.begin()
    asked = session.next_request()
    assert not session.on_answer(asked, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert session.next_request().epoch == INITIAL_EPOCH


def test_a_leader_without_room_for_sessions_is_asked_for_all_each_time() -> None:
    session = Session(A, B)
    for _ in range(3):
        asked = session.next_request()
        assert (asked.epoch, named(asked)) == (INITIAL_EPOCH, {A: 0, B: 0})
        assert session.on_answer(asked, ErrorCode.NONE, NO_SESSION), "its partitions count"
        assert session.position(A, asked) is not None and not session.may_ask_ahead


def test_requests_ahead_count_on_and_are_judged_by_their_own_positions() -> None:
    session = Session(A, B)
    assert not session.may_ask_ahead
    session.begin()
    assert session.may_ask_ahead
    first = session.next_request()
    session.remove(A)
    session.add(A, Followed(7))
    second = session.next_request()
    assert (first.epoch, second.epoch, named(second)) == (1, 2, {A: 7})
    assert session.on_answer(first, ErrorCode.NONE, SESSION_ID)
    assert session.position(A, first) is None, "it is about a position that is gone"
    assert session.position(B, first) is not None
    assert session.on_answer(second, ErrorCode.NONE, SESSION_ID)
    position = session.position(A, second)
    assert position is not None and position.fetch_offset == 7
    assert session.next_request().epoch == 3


def test_answers_of_a_session_that_was_given_up_are_dropped() -> None:
    session = Session(A)
    session.begin()
    first, second = session.next_request(), session.next_request()
    assert not session.on_answer(first, ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    anew = session.next_request()
    assert not session.on_answer(second, ErrorCode.NONE, SESSION_ID)
    assert session.on_answer(anew, ErrorCode.NONE, SESSION_ID + 1)
    asked = session.next_request()
    assert (asked.session_id, asked.epoch) == (SESSION_ID + 1, 1)


def test_epochs_begin_again_at_one() -> None:
    session = Session(A)
    session.begin()
    session._epoch = 2**31 - 1
    assert [session.next_request().epoch for _ in range(2)] == [2**31 - 1, 1]
