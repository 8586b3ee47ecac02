"""Which fetcher has a partition: the one for those that keep up, or one for those behind."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from klamm.replication.fetched_writes import WRITTEN_AT_ONCE_BYTES
from klamm.replication.fetchers import LANES_BEHIND, MUCH_BYTES
from tests.replication.played_leader import (
    LEADER,
    Followed,
    Scene,
    forgotten,
    named,
    one_batch,
    turns,
)
from tests.waiting import until

LARGE = one_batch(MUCH_BYTES)
FAR = 100 * MUCH_BYTES


async def test_a_partition_that_is_behind_gets_a_connection_of_its_own(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, LARGE), (b, b"1"), high_watermark=FAR)
    second = await scene.leader.until_asked(2)
    assert (named(second), forgotten(second)) == ({b"b": 1}, [b"a"])
    await until(lambda: 1 in scene.behind)
    asked = await scene.behind[1].until_asked(1)
    assert named(asked) == {b"a": len(LARGE)}
    share = scene.settings.max_bytes // LANES_BEHIND
    assert (asked.max_bytes, asked.topics[0].partitions[0].partition_max_bytes) == (share, share)


async def test_it_comes_back_when_it_has_caught_up(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    scene.fetchers.follow(LEADER, [a, b])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, LARGE), high_watermark=FAR)
    await until(lambda: 1 in scene.behind)
    await scene.behind[1].until_asked(1)
    scene.behind[1].answer((a, LARGE), high_watermark=FAR)
    assert named(await scene.behind[1].until_asked(2)) == {b"a": 2 * len(LARGE)}
    await scene.leader.until_asked(2)
    scene.behind[1].answer((a, b"1"), high_watermark=2 * len(LARGE) + 1)
    third = await scene.leader.until_asked(3)
    assert named(third) == {b"a": 2 * len(LARGE) + 1}, "at once, though a request waits"
    await turns()
    assert len(scene.behind[1].requests) == 2


@pytest.mark.parametrize(
    ("content", "high_watermark"), [(b"1", FAR), (LARGE, len(LARGE))], ids=["little", "all that is committed"]
)
async def test_one_that_keeps_up_stays(scene: Scene, content: bytes, high_watermark: int) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, content), high_watermark=high_watermark)
    assert named(await scene.leader.until_asked(2)) == {b"a": len(content)}
    assert not scene.behind


async def test_none_moves_while_a_request_is_under_way(scene: Scene) -> None:
    """The leader could hear of its old position after the new one."""
    a, b = Followed(b"a"), Followed(b"b")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, b"1"))
    await scene.leader.until_asked(2)
    scene.fetchers.follow(LEADER, [b])
    await scene.leader.until_asked(3)
    scene.leader.answer((a, LARGE), high_watermark=FAR)
    await until(lambda: a.offset > 1)
    await turns()
    assert not scene.behind
    scene.leader.answer()
    assert named(await scene.leader.until_asked(4)) == {b"a": 1 + len(LARGE)}
    scene.leader.answer((a, LARGE), high_watermark=FAR)
    await until(lambda: 1 in scene.behind)


async def test_many_share_a_few_connections(scene: Scene) -> None:
    partitions = [Followed(b"%d" % number) for number in range(2 * LANES_BEHIND)]
    scene.fetchers.follow(LEADER, partitions)
    await scene.leader.until_asked(1)
    scene.leader.answer(*((each, LARGE) for each in partitions), high_watermark=FAR)
    await until(lambda: len(scene.behind) == LANES_BEHIND)
    for leader in scene.behind.values():
        assert len(named(await leader.until_asked(1))) == 2


async def test_who_unfollows_waits_for_those_behind_too(scene: Scene) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, LARGE), high_watermark=FAR)
    await until(lambda: 1 in scene.behind)
    await scene.behind[1].until_asked(1)
    may_go_on = threading.Event()
    a.write = lambda: cast(None, may_go_on.wait(30))
    scene.behind[1].answer((a, bytes(WRITTEN_AT_ONCE_BYTES + 1)), high_watermark=FAR)
    await turns()
    unfollowing = asyncio.ensure_future(scene.fetchers.unfollow([a]))
    await turns()
    assert not unfollowing.done()
    may_go_on.set()
    await unfollowing
    assert a not in scene.fetchers
    assert a.done == ["written", "settled"] * 2


async def behind_in_lanes(scene: Scene, *partitions: Followed) -> None:
    """Each has a lane of its own, and a request under way."""
    scene.fetchers.follow(LEADER, partitions)
    await scene.leader.until_asked(1)
    scene.leader.answer(*((each, LARGE) for each in partitions), high_watermark=FAR)
    for lane in range(1, 1 + len(partitions)):
        await until(lambda lane=lane: lane in scene.behind)  # type: ignore[misc]
        await scene.behind[lane].until_asked(1)


async def test_one_that_is_unfollowed_does_not_move_while_others_are_waited_for(scene: Scene) -> None:
    a, b = Followed(b"a"), Followed(b"b")
    await behind_in_lanes(scene, a, b)
    may_go_on = threading.Event()
    a.write = lambda: cast(None, may_go_on.wait(30))
    scene.behind[1].answer((a, bytes(WRITTEN_AT_ONCE_BYTES + 1)), high_watermark=FAR)
    await turns()
    unfollowing = asyncio.ensure_future(scene.fetchers.unfollow([a, b]))
    await turns()
    scene.behind[2].answer((b, b"1"), high_watermark=0)  # it has caught up
    await turns()
    may_go_on.set()
    await unfollowing
    await turns()
    assert a not in scene.fetchers and b not in scene.fetchers
    assert (len(scene.leader.requests), b.offset) == (1, len(LARGE)), "nothing more of it is fetched"


async def test_no_fetcher_is_made_while_all_are_stopped(scene: Scene) -> None:
    a = Followed(b"a")
    scene.fetchers.follow(LEADER, [a])
    await scene.leader.until_asked(1)
    scene.leader.answer((a, LARGE), high_watermark=FAR)
    await scene.fetchers.shut_down()
    await turns()
    assert not scene.behind
