"""What a fetcher does with answers and errors. The leader and the partitions are played by the test; what
real ones do is in `test_following.py`."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from klamm.client.errors import ConnectionFailed
from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.fetched_writes import WRITTEN_AT_ONCE_BYTES
from klamm.replication.fetcher import LeaderFetcher
from klamm.replication.follower import Do
from tests.replication.played_leader import (
    LEADER,
    PAUSE_S,
    SESSION_ID,
    TIMEOUT_S,
    Followed,
    Scene,
    forgotten,
    named,
    turns,
)
from tests.waiting import until


async def test_each_request_asks_for_what_follows(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    scene.fetchers.follow(LEADER, [a, b])
    first = await scene.leader.until_asked(1)
    assert first.replica_state is not None
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 7)
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {b"a": 0, b"b": 0})
    assert scene.leader.timeouts == [TIMEOUT_S]
    scene.leader.answer((b, b"123"))
    second = await scene.leader.until_asked(2)
    assert (second.session_id, second.session_epoch, named(second)) == (SESSION_ID, 1, {b"b": 3})
    assert (a.done, b.done) == ([], ["written", "settled"])


async def test_nothing_is_asked_while_there_is_nothing_to_fetch(scene: Scene) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    a.action = Do.WAIT_FOR_EPOCH
    scene.leader.answer((a, ErrorCode.FENCED_LEADER_EPOCH))
    await turns()
    assert len(scene.leader.requests) == 1
    await scene.fetchers.unfollow([a])
    a.action, a.leader_epoch = None, 2
    scene.fetchers.follow(LEADER, [a])
    second = await scene.leader.until_asked(2)
    assert named(second) == {b"a": 0}


async def test_a_partition_with_an_error_pauses_and_the_others_go_on(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    scene.settings = scene.settings._replace(pause_s=3600)
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, ErrorCode.NOT_LEADER_OR_FOLLOWER), (b, b"1"))
    second = await scene.leader.until_asked(2)
    assert (named(second), forgotten(second)) == ({b"b": 1}, [b"a"])


async def test_the_first_pause_is_short_and_the_next_ones_grow(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader may hear of its role a moment after a follower: all writes with acks=all wait for both."""
    pauses: list[float] = []
    pause = LeaderFetcher._pause

    def note_and_pause(fetcher: LeaderFetcher, partition: Followed, pause_s: float) -> None:
        pauses.append(pause_s)
        pause(fetcher, partition, 0.0)

    monkeypatch.setattr(LeaderFetcher, "_pause", note_and_pause)
    a = Followed(b"a")
    scene.settings = scene.settings._replace(pause_s=0.05)
    scene.fetchers.follow(LEADER, [a])
    contents = [*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 4, b"1", ErrorCode.NOT_LEADER_OR_FOLLOWER]
    for count, content in enumerate(contents, 1):
        await scene.leader.until_asked(count)
        scene.leader.answer((a, content))
    await scene.leader.until_asked(len(contents) + 1)
    assert pauses == [0.02, 0.04, 0.05, 0.05, 0.02]


async def test_a_pause_ends(scene: Scene) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    for count in range(1, 4):
        await scene.leader.until_asked(count)
        scene.leader.answer((a, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    last = await scene.leader.until_asked(4)
    assert named(last) == {b"a": 0}
    await scene.fetchers.unfollow([a])
    scene.leader.answer((a, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    await asyncio.sleep(2 * PAUSE_S)
    assert len(scene.leader.requests) == 4, "a partition that was removed is not resumed"


async def test_a_throttled_partition_pauses_and_is_asked_for_again(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    a.is_throttled_follower, a.throttled_s = True, PAUSE_S
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, b"1"), (b, b"1"))
    second = await scene.leader.until_asked(2)
    assert (named(second), forgotten(second)) == ({b"b": 1}, [b"a"])
    third = await scene.leader.until_asked(3)
    assert named(third) == {b"a": 1}
    a.throttled_s = 0.0
    scene.leader.answer()
    scene.leader.answer((a, b"2"))
    assert named(await scene.leader.until_asked(4)) == {b"a": 2}, "its rate allows more"


async def test_what_is_written_slowly_is_written_by_a_thread(scene: Scene) -> None:
    a = Followed(b"a")
    writers: list[threading.Thread] = []
    a.write = lambda: writers.append(threading.current_thread())
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, b"1"))
    await scene.leader.until_asked(2)
    a.writes_slowly = True
    scene.leader.answer((a, b"1"))
    await until(lambda: len(writers) == 2)
    assert [each is threading.current_thread() for each in writers] == [True, False]


async def test_nothing_of_an_answer_is_kept_while_the_next_one_is_awaited(scene: Scene) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    memory = bytearray(b"12")
    scene.leader.answer((a, memoryview(memory)))
    await scene.leader.until_asked(2)
    memory.append(0)  # raises BufferError if anybody has a view of it


@pytest.mark.parametrize("size", [1, WRITTEN_AT_ONCE_BYTES + 1], ids=["by the loop", "by a thread"])
async def test_what_cannot_be_written_pauses(scene: Scene, size: int) -> None:
    a = Followed(b"a")
    errors: list[Exception] = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "full"), OSError(), ValueError()]

    def write() -> None:
        if errors:
            raise errors.pop(0)

    a.write = write
    scene.fetchers.follow(LEADER, [a])
    for count in range(1, 5):
        assert named(await scene.leader.until_asked(count)) == {b"a": 0}
        scene.leader.answer((a, bytes(size)))
    last = await scene.leader.until_asked(5)
    assert (last.session_epoch, named(last)) == (4, {b"a": size}), "the session goes on"
    assert a.done == ["written", "settled"]


async def test_what_the_leader_repeats_is_named_again_or_forgotten(scene: Scene) -> None:
    """Else the leader would send the same for ever."""
    a, b = Followed(b"a"), Followed(b"b")
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    a.offset, b.is_over, b.action = 5, True, Do.DROP
    scene.leader.answer((a, b"1"), (b, b"1"))
    second = await scene.leader.until_asked(2)
    assert (named(second), forgotten(second)) == ({b"a": 5}, [b"b"])
    assert not a.done and not b.done


async def test_a_lost_connection_begins_a_new_session(scene: Scene) -> None:
    a = Followed(b"a")
    scene.failures = [ConnectionFailed("not yet"), ValueError("of a kind that nobody expects")]
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    assert scene.attempts == 3
    scene.leader.answer((a, b"1"))
    await scene.leader.until_asked(2)
    scene.leader.fail()
    await until(lambda: len(scene.leaders) == 2)
    first = await scene.leader.until_asked(1)
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {b"a": 1})


async def test_a_lost_session_is_begun_anew_at_once_and_a_refused_one_after_a_pause(scene: Scene) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer()
    await scene.leader.until_asked(2)
    scene.leader.answer(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    await turns()
    assert len(scene.leader.requests) == 3 and scene.attempts == 1
    assert scene.leader.requests[2].session_epoch == 0
    scene.leader.answer(error_code=12345, session_id=0)
    await turns()
    assert len(scene.leader.requests) == 3
    await scene.leader.until_asked(4)
    assert scene.attempts == 2


async def test_a_partition_that_is_added_is_asked_for_at_once(scene: Scene) -> None:
    a, b, c = Followed(b"a"), Followed(b"b"), Followed(b"c")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.fetchers.follow(LEADER, [b])
    await turns()
    assert len(scene.leader.requests) == 1, "the session is not known yet"
    scene.leader.answer()
    await scene.leader.until_asked(2)
    scene.fetchers.follow(LEADER, [c])
    third = scene.leader.requests[2]
    assert (third.session_epoch, named(third)) == (2, {b"c": 0})
    scene.leader.answer((a, b"1"))
    await until(lambda: a.offset == 1)
    await turns()
    assert len(scene.leader.requests) == 3, "one that waits is enough"
    scene.leader.answer((c, b"12"))
    fourth = await scene.leader.until_asked(4)
    assert (fourth.session_epoch, named(fourth)) == (3, {b"a": 1, b"c": 2})


async def test_an_answer_about_an_older_position_is_left_out(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    scene.leader.answer()
    await scene.leader.until_asked(2)
    await scene.fetchers.unfollow([a])
    a.leader_epoch = 2
    scene.fetchers.follow(LEADER, [a])
    assert len(scene.leader.requests) == 3
    a.action = Do.WAIT_FOR_EPOCH  # what FENCED_LEADER_EPOCH means to a follower
    scene.leader.answer((a, ErrorCode.FENCED_LEADER_EPOCH))
    await turns()
    a.action = None
    scene.leader.answer((a, b"1"))
    await until(lambda: a.offset == 1)


async def test_who_unfollows_waits_until_a_thread_has_written_and_all_is_settled(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    may_go_on = threading.Event()
    a.write = lambda: cast(None, may_go_on.wait(30))
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, bytes(WRITTEN_AT_ONCE_BYTES + 1)), (b, b"1"))
    await turns()
    unfollowing = asyncio.ensure_future(scene.fetchers.unfollow([a]))
    await turns()
    assert not unfollowing.done()
    may_go_on.set()
    await unfollowing
    assert a.done == b.done == ["written", "settled"]
    second = await scene.leader.until_asked(2)
    assert (named(second), forgotten(second)) == ({b"b": 1}, [b"a"])


async def test_who_stops_waits_too(scene: Scene) -> None:
    a = Followed(b"a")
    may_go_on = threading.Event()
    a.write = lambda: cast(None, may_go_on.wait(30))
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, bytes(WRITTEN_AT_ONCE_BYTES + 1)))
    await turns()
    stopping = asyncio.ensure_future(scene.fetchers.shut_down())
    await turns()
    assert not stopping.done()
    may_go_on.set()
    await stopping
    assert a.done == ["written", "settled"]
