"""Followers copy their leader's log over a real socket, byte for byte."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from klamm.cluster.image import PartitionImage, TopicImage, difference, image_of_topics
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId
from klamm.replication.fetchers import LANES_BEHIND
from klamm.replication.partition import Partition
from klamm.server.connection import SO_BUF_LOCK
from klamm.storage.replicated import check_batches
from klamm.testing.broker import Broker
from tests.replication.following import BOTH, FOLLOWER, LEADER, FollowerSide, LeaderSide, topic_id_of
from tests.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def leader(broker: Broker) -> LeaderSide:
    return LeaderSide(broker)


@pytest.fixture
async def follower(tmp_path: Path, leader: LeaderSide) -> AsyncIterator[FollowerSide]:
    side = FollowerSide(tmp_path / "follower", leader.port)
    yield side
    await side.stop()


def led_by(broker_id: int, epoch: int, isr: tuple[int, ...] = BOTH) -> PartitionImage:
    return PartitionImage(BOTH, isr, broker_id, epoch, epoch)


async def until_same(leader: LeaderSide, follower: FollowerSide, name: str) -> None:
    """Wait until the follower has everything; then both logs are the same bytes."""
    theirs, own = leader.partition(name), follower.partition(name)
    await until(
        lambda: own.log.log_end_offset == own.high_watermark == theirs.log.log_end_offset,
        lambda: (
            f"the follower is at {own.log.log_end_offset}, high watermark {own.high_watermark}, "
            f"the leader at {theirs.log.log_end_offset}"
        ),
    )
    assert follower.content(name) == leader.content(name)
    assert own.log.epochs.entries == theirs.log.epochs.entries
    assert own.log.log_start_offset == theirs.log.log_start_offset


async def test_a_follower_catches_up_and_keeps_up(leader: LeaderSide, follower: FollowerSide) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    leader.take("copied", led_by(LEADER, 1))
    for _ in range(10):  # small answers are written by the loop, large ones by a thread
        leader.append("copied", *(chance.randbytes(chance.choice((10, 50_000))) for _ in range(10)))
    assert leader.partition("copied").high_watermark == 0
    await follower.take("copied", led_by(LEADER, 1))
    await until_same(leader, follower, "copied")
    assert leader.partition("copied").high_watermark == 100, seed
    for _ in range(5):
        leader.append("copied", chance.randbytes(1000))
    await until_same(leader, follower, "copied")
    assert leader.partition("copied").high_watermark == 105, seed


async def test_partitions_that_are_far_behind_are_fetched_over_connections_of_their_own(
    leader: LeaderSide, follower: FollowerSide
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    names = [f"behind-{number}" for number in range(LANES_BEHIND + 2)]
    alone = led_by(LEADER, 1, (LEADER,))
    for name in names:
        leader.take(name, alone)
        for _ in range(40):
            leader.append(name, chance.randbytes(100_000))
    for name in names:
        await follower.take(name, alone)
    for name in names:
        await until_same(leader, follower, name)
    assert follower.lanes == set(range(1 + LANES_BEHIND)), seed
    for name in names:
        leader.append(name, b"and on")
        await until_same(leader, follower, name)


async def test_what_is_sent_to_a_follower_may_fill_a_larger_buffer(
    leader: LeaderSide, follower: FollowerSide
) -> None:
    node = leader.broker.node
    assert node is not None
    before = set(node.server._connections)
    leader.take("wide", led_by(LEADER, 1))
    await follower.take("wide", led_by(LEADER, 1))
    leader.append("wide", b"a")
    await until_same(leader, follower, "wide")
    with socket.create_connection(("127.0.0.1", leader.port)):
        await until(lambda: len(node.server._connections) == len(before) + 2)
        made = set(node.server._connections) - before
        has_fixed_size = [each._socket.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) & 1 for each in made]
    assert sorted(has_fixed_size) == [0, 1], "the client's has the size that is configured"


async def test_a_follower_that_has_caught_up_asks_to_join_the_isr(
    leader: LeaderSide, follower: FollowerSide
) -> None:
    leader.take("joined", led_by(LEADER, 1, (LEADER,)))
    leader.append("joined", b"one")
    assert not leader.proposals
    await follower.take("joined", led_by(LEADER, 1, (LEADER,)))
    await until(lambda: leader.proposals, "it asks to join")
    (change,) = leader.proposals
    assert change.members == ((LEADER, 0), (FOLLOWER, 7))
    assert follower.partition("joined").log.log_end_offset == 1


async def test_what_diverges_is_cut(leader: LeaderSide, follower: FollowerSide) -> None:
    """Broker 2 was elected and has appended what nobody fetched, before broker 1 was elected again."""
    leader.take("cut", led_by(LEADER, 1))
    leader.append("cut", b"a", b"b")
    leader.append("cut", b"c")
    await follower.take("cut", led_by(LEADER, 1))
    await until_same(leader, follower, "cut")
    await follower.take("cut", led_by(FOLLOWER, 2))
    follower.append("cut", b"lost")
    follower.append("cut", b"lost", b"too")
    leader.take("cut", led_by(LEADER, 3))
    leader.append("cut", b"d")
    await follower.take("cut", led_by(LEADER, 3))
    await until_same(leader, follower, "cut")
    assert b"lost" not in follower.content("cut")
    assert follower.partition("cut").log.epochs.entries == ((1, 0), (3, 3))


async def test_an_epoch_without_records_is_cut_too(leader: LeaderSide, follower: FollowerSide) -> None:
    leader.take("empty-epoch", led_by(LEADER, 1))
    leader.append("empty-epoch", b"a", b"b")
    await follower.take("empty-epoch", led_by(LEADER, 1))
    await until_same(leader, follower, "empty-epoch")
    await follower.take("empty-epoch", led_by(FOLLOWER, 2))
    assert follower.partition("empty-epoch").log.latest_epoch == 2
    leader.take("empty-epoch", led_by(LEADER, 3))
    leader.append("empty-epoch", b"c")
    await follower.take("empty-epoch", led_by(LEADER, 3))
    await until_same(leader, follower, "empty-epoch")


@pytest.mark.parametrize("has_records", [True, False], ids=["with records", "empty"])
async def test_a_follower_that_is_too_far_behind_begins_anew(
    leader: LeaderSide, follower: FollowerSide, has_records: bool
) -> None:
    name = f"anew-{has_records}"
    leader.take(name, led_by(LEADER, 1, (LEADER,)))
    leader.append(name, b"a")
    if has_records:
        await follower.take(name, led_by(LEADER, 1, (LEADER,)))
        await until(lambda: follower.partition(name).log.log_end_offset == 1)
        await follower.take(name, led_by(-1, 2, (LEADER,)))
        leader.take(name, led_by(LEADER, 2, (LEADER,)))
    for _ in range(3):
        leader.append(name, b"b", b"c")
    leader.do(lambda replica: replica.partition(name).delete_records_before(5))
    leader.take(name, led_by(LEADER, 3, (LEADER,)))
    await follower.take(name, led_by(LEADER, 3, (LEADER,)))
    own = follower.partition(name)
    await until(lambda: own.high_watermark == own.log.log_end_offset == 7, "it has the rest")
    assert own.log.log_start_offset == 5
    assert follower.content(name) and leader.content(name).endswith(follower.content(name))


async def test_the_log_start_follows_the_leaders(leader: LeaderSide, follower: FollowerSide) -> None:
    leader.take("shorter", led_by(LEADER, 1))
    for _ in range(4):
        leader.append("shorter", b"a")
    await follower.take("shorter", led_by(LEADER, 1))
    await until_same(leader, follower, "shorter")
    leader.do(lambda replica: replica.partition("shorter").delete_records_before(3))
    leader.append("shorter", b"b")
    own = follower.partition("shorter")
    await until(lambda: own.log.log_start_offset == 3 and own.high_watermark == 5, "it is shorter")


async def test_new_partitions_do_not_wait_for_a_request_that_waits(
    tmp_path: Path, leader: LeaderSide
) -> None:
    side = FollowerSide(tmp_path / "patient", leader.port, max_wait_ms=3_600_000)
    try:
        leader.take("idle", led_by(LEADER, 1))
        leader.append("idle", b"a")
        await side.take("idle", led_by(LEADER, 1))
        await until(lambda: leader.partition("idle").high_watermark == 1, "the second request has come")
        for number in range(3):
            name = f"new-{number}"
            leader.take(name, led_by(LEADER, 1))
            leader.append(name, b"b")
            await side.take(name, led_by(LEADER, 1))
            new = leader.partition(name)
            await until(lambda new=new: new.high_watermark == 1, f"{name} is fetched")  # type: ignore[misc]
            assert side.content(name) == leader.content(name)
    finally:
        await side.stop()


async def test_a_lost_connection_is_made_again(leader: LeaderSide, follower: FollowerSide) -> None:
    leader.take("lost", led_by(LEADER, 1))
    await follower.take("lost", led_by(LEADER, 1))
    for _ in range(3):
        leader.append("lost", b"a")
        await until_same(leader, follower, "lost")
        connection = await follower.connect(LEADER)
        connection.abort()
    leader.append("lost", b"b")
    await until_same(leader, follower, "lost")


async def test_a_leader_that_knows_of_its_epoch_later_is_asked_again(
    leader: LeaderSide, follower: FollowerSide
) -> None:
    leader.take("later", led_by(LEADER, 1))
    leader.append("later", b"a")
    await follower.take("later", led_by(LEADER, 2))
    leader.append("later", b"b")
    leader.take("later", led_by(LEADER, 2))
    await until(lambda: leader.partition("later").high_watermark == 2, "it is fetched in the new epoch")


async def test_an_old_leader_epoch_is_waited_over(leader: LeaderSide, follower: FollowerSide) -> None:
    leader.take("fenced", led_by(LEADER, 5))
    leader.append("fenced", b"a")
    await follower.take("fenced", led_by(LEADER, 4))
    own = follower.partition("fenced")
    await until(lambda: own.follower is not None and own.follower.is_waiting, "it is fenced")
    assert own.log.log_end_offset == 0 and leader.partition("fenced").high_watermark == 0
    await follower.take("fenced", led_by(LEADER, 5))
    await until_same(leader, follower, "fenced")


async def test_both_logs_agree_whatever_happened(leader: LeaderSide, follower: FollowerSide) -> None:
    """Appends, elections, appends of a leader that was replaced, deleted records and lost sessions."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    name = "chances"
    epoch = 1

    async def elect() -> None:
        """Broker 2 may lead for a while, and append what nobody fetches."""
        nonlocal epoch
        if chance.random() < 0.5:
            epoch += 1
            await follower.take(name, led_by(FOLLOWER, epoch))
            for _ in range(chance.randrange(3)):
                follower.append(name, *[b"lost"] * chance.randrange(1, 4))
        epoch += 1
        if chance.random() < 0.5:
            leader.take(name, led_by(LEADER, epoch))
            await follower.take(name, led_by(LEADER, epoch))
        else:
            await follower.take(name, led_by(LEADER, epoch))
            leader.take(name, led_by(LEADER, epoch))

    leader.take(name, led_by(LEADER, epoch))
    await follower.take(name, led_by(LEADER, epoch))
    for _ in range(40):
        step = chance.randrange(8)
        if step < 4:
            leader.append(name, *(chance.randbytes(chance.choice((10, 100_000))) for _ in range(3)))
        elif step < 6:
            await elect()
        elif step == 6:
            leader.do(lambda replica: replica.partition(name).delete_records_before(-1))
        else:
            follower.partitions.resign_all()
            await follower.take(name, led_by(LEADER, epoch))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() / 50)
    epoch += 1
    leader.take(name, led_by(LEADER, epoch))
    await follower.take(name, led_by(LEADER, epoch))
    leader.append(name, b"last")
    theirs, own = leader.partition(name), follower.partition(name)
    await until(
        lambda: own.log.log_end_offset == own.high_watermark == theirs.log.log_end_offset,
        lambda: f"{seed}: the follower is at {own.log.log_end_offset} of {theirs.log.log_end_offset}",
    )
    start = theirs.log.log_start_offset
    assert records_from(own, start) == leader.do(lambda replica: records_from(theirs, start)), seed
    assert b"lost" not in follower.content(name), seed


def records_from(partition: Partition, offset: int) -> bytes:
    records = b""
    while piece := partition.read(offset, 10_000_000, must_return_one=True, may_block=True):
        content = bytes(piece.read())
        records += content
        offset = check_batches(memoryview(content))[-1].last_offset + 1
    return records


async def test_a_follower_becomes_leader_and_follows_again(
    leader: LeaderSide, follower: FollowerSide
) -> None:
    leader.take("around", led_by(LEADER, 1))
    leader.append("around", b"a")
    await follower.take("around", led_by(LEADER, 1))
    await until_same(leader, follower, "around")
    await follower.take("around", led_by(FOLLOWER, 2))
    own = follower.partition("around")
    leader.append("around", b"of a leader that does not know yet")
    own.on_follower_fetch(LEADER, 9, 1, 0)
    assert own.log.log_end_offset == own.high_watermark == 1
    follower.partitions.resign_all()
    assert own.leader is None
    await follower.take("around", led_by(LEADER, 3))
    leader.take("around", led_by(LEADER, 3))
    leader.append("around", b"b")
    await until_same(leader, follower, "around")


async def test_nothing_is_fetched_from_an_earlier_topic_of_the_same_name(
    leader: LeaderSide, follower: FollowerSide
) -> None:
    """The leader has heard that the topic was made anew, and not yet that its replica is to be deleted."""
    leader.take("anew", led_by(LEADER, 1))
    leader.append("anew", b"of the earlier topic")
    topic = TopicImage("anew", TopicId(b"n" * 16), (led_by(LEADER, 1),), {})
    earlier = TopicImage("anew", topic_id_of("anew"), (led_by(LEADER, 1),), {})
    before, after = (image_of_topics("cluster", LEADER, {"anew": each}) for each in (earlier, topic))
    roles = {"anew": (topic.topic_id, {0: led_by(LEADER, 1)})}

    async def hear() -> None:
        await leader.broker.node.partitions.apply_settings(after, difference(before, after))

    async def lead() -> None:
        await leader.broker.node.partitions.take_roles(roles)
        leader._replica.append("anew", b"of the new topic")

    leader.broker.run(hear())
    with pytest.raises(KafkaError) as refused:
        leader.do(lambda replica: replica.partitions.led_by_id(topic.topic_id, 0))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await follower.partitions.apply_settings(after, difference(image_of_topics("c", LEADER, {}), after))
    assert not await follower.partitions.take_roles(roles)
    await asyncio.sleep(0.2)
    leader.broker.run(lead())
    await until_same(leader, follower, "anew")
