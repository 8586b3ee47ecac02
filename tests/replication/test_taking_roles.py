"""The partitions of a broker whose controller is another broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.apis import k02_list_offsets
from klamm.apis.broker import Broker
from klamm.apis.registry import ConnectionHandle, Request
from klamm.cluster.image import (
    DeletedTopic,
    ImageDelta,
    PartitionImage,
    TopicDelta,
    TopicImage,
    difference,
    image_of_topics,
)
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages import k02_list_offsets as m02
from klamm.replication.followed import FollowedPartition
from klamm.storage.files import LogDirFailure
from tests.apis.outcomes import answer_of
from tests.replication.following import BOTH, FOLLOWER, LEADER, FollowerSide, topic_id_of
from tests.replication.partitions import NOW_MS
from tests.replies import FakeReply
from tests.waiting import until

NOBODY_LISTENS = 1
"""A port where no leader is reached."""

PLACE = TopicPartition("orders", 0)


@pytest.fixture
async def side(tmp_path: Path) -> AsyncIterator[FollowerSide]:
    side = FollowerSide(tmp_path / "logs", NOBODY_LISTENS)
    yield side
    await side.stop()


def led_by(broker_id: int, epoch: int) -> PartitionImage:
    return PartitionImage(BOTH, BOTH, broker_id, epoch, epoch)


def code_of_led(side: FollowerSide) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        side.partitions.led("orders", 0)
    return raised.value.code


async def test_only_what_is_led_here_is_found_as_such(side: FollowerSide) -> None:
    assert code_of_led(side) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await side.take("orders", led_by(FOLLOWER, 1), PartitionImage((LEADER,), (LEADER,), LEADER, 1, 1))
    assert side.partitions.led("orders", 0) is side.partitions.led_by_id(topic_id_of("orders"), 0)
    assert len(side.partitions) == 1, "the other partition has no replica here"


async def test_a_partition_moves_between_roles(side: FollowerSide) -> None:
    await side.take("orders", led_by(LEADER, 1))
    partition = side.partition("orders")
    assert code_of_led(side) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition in side.fetchers
    await side.take("orders", led_by(FOLLOWER, 2))
    assert side.partitions.led("orders", 0) is partition
    assert partition not in side.fetchers
    await side.take("orders", led_by(LEADER, 1))
    assert side.partitions.led("orders", 0) is partition, "an older state"
    side.partitions.resign_all()
    assert code_of_led(side) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await side.take("orders", led_by(LEADER, 3))
    side.partitions.resign_all()
    await side.take("orders", led_by(LEADER, 3))
    assert partition in side.fetchers and partition.next_fetch() is not None


async def test_a_partition_that_resigns_while_another_is_unfollowed(
    side: FollowerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's session may expire at any moment."""
    await side.take("orders", led_by(LEADER, 1), led_by(LEADER, 1))
    unfollow = side.fetchers.unfollow

    async def resign_and_unfollow(partitions: Iterable[FollowedPartition]) -> None:
        monkeypatch.undo()
        side.partitions.resign_all()
        await unfollow(partitions)

    monkeypatch.setattr(side.fetchers, "unfollow", resign_and_unfollow)
    await side.take("orders", led_by(LEADER, 2), PartitionImage(BOTH, (LEADER,), LEADER, 1, 2))
    for index in range(2):
        partition = side.partition("orders", index)
        assert partition in side.fetchers and partition.next_fetch() is not None


async def test_roles_of_an_unknown_topic_fail(side: FollowerSide) -> None:
    await side.take("orders", led_by(FOLLOWER, 1))
    states = {0: led_by(LEADER, 2)}
    failures = await side.partitions.take_roles(
        {"orders": (TopicId(b"x" * 16), states), "unheard": (topic_id_of("unheard"), states)}
    )
    assert {place: error.code for place, error in failures.items()} == {
        PLACE: ErrorCode.UNKNOWN_TOPIC_ID,
        TopicPartition("unheard", 0): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    assert side.partition("orders").leader_epoch == 1


async def test_a_replica_of_an_earlier_topic_gives_way(side: FollowerSide) -> None:
    """Of the deletion this broker has not heard."""
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"of the earlier topic")
    earlier = side.partition("orders")
    topic = TopicImage("orders", TopicId(b"n" * 16), (led_by(FOLLOWER, 0),), {})
    before = image_of_topics("cluster", LEADER, side._known)
    after = image_of_topics("cluster", LEADER, {"orders": topic})
    await side.partitions.apply_settings(after, difference(before, after))
    failures = await side.partitions.take_roles({"orders": (topic.topic_id, {0: led_by(FOLLOWER, 0)})})
    assert not failures
    assert earlier.is_offline and side.partition("orders").topic_id == b"n" * 16
    assert side.partition("orders").log.log_end_offset == 0


async def test_a_new_controller_deletes_its_replicas_of_topics_that_it_only_heard_are_gone(
    side: FollowerSide,
) -> None:
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"of the deleted topic")
    deleted = side.partition("orders")
    before = image_of_topics("cluster", LEADER, side._known)
    after = image_of_topics("cluster", LEADER, {})
    await side.partitions.apply_settings(after, difference(before, after))
    mark = DeletedTopic("orders", topic_id_of("orders"), 1, BOTH)
    assert not await side.partitions.apply(after, ImageDelta(deleted_topics={mark.topic_id: mark}))
    assert deleted.is_offline and len(side.partitions) == 0
    assert not (side.log_dirs.directories[0].path / "orders-0").exists()


async def test_a_new_controller_has_no_replica_of_an_earlier_topic(side: FollowerSide) -> None:
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"of the earlier topic")
    topic = TopicImage("orders", TopicId(b"n" * 16), (led_by(FOLLOWER, 0),), {})
    image = image_of_topics("cluster", FOLLOWER, {"orders": topic})
    assert not await side.partitions.apply(image, ImageDelta({"orders": TopicDelta(topic, topic, (0,))}))
    assert side.partitions.led("orders", 0).topic_id == topic.topic_id
    assert side.partition("orders").log.log_end_offset == 0


async def test_a_log_that_is_made_after_a_resignation_has_no_role(
    side: FollowerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker without a session that leads in its old epoch would acknowledge what nobody replicates."""

    def no_room(names: list[TopicPartition], *_: object) -> list[KafkaError]:
        return [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room") for _ in names]

    with monkeypatch.context() as full_disk:
        full_disk.setattr(side.log_dirs, "create_logs", no_room)
        with pytest.raises(AssertionError, match="no room"):
            await side.take("orders", led_by(FOLLOWER, 1))
    side.partitions.resign_all()
    await side.partitions.make_unmade()
    assert code_of_led(side) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await side.take("orders", led_by(FOLLOWER, 1))
    assert side.partitions.led("orders", 0).leader_epoch == 1


async def test_a_look_up_by_time_waits_for_the_high_watermark_of_a_new_leader(side: FollowerSide) -> None:
    """Else a client is told that there is no such record, though the leader before has acknowledged it."""
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"a")
    await side.take("orders", led_by(FOLLOWER, 2))
    broker = cast(Broker, SimpleNamespace(partitions=side.partitions))
    partition = side.partition("orders")
    with pytest.raises(KafkaError) as raised:
        await k02_list_offsets._find(broker, partition, NOW_MS, False)
    assert raised.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    partition.on_follower_fetch(LEADER, 7, 1, 0)
    assert (await k02_list_offsets._find(broker, partition, NOW_MS, False))[0] == 0


async def latest_of(side: FollowerSide, version: int, isolation_level: int) -> tuple[int, int]:
    """(error code, offset) as ListOffsets answers."""
    asked = m02.ListOffsetsPartition(partition_index=0, timestamp=k02_list_offsets.LATEST)
    message = m02.ListOffsetsRequest(
        isolation_level=isolation_level, topics=[m02.ListOffsetsTopic(name="orders", partitions=[asked])]
    )
    reply = FakeReply()
    connection = cast(ConnectionHandle, None)
    broker = cast(Broker, SimpleNamespace(partitions=side.partitions))
    request = Request(message, version, "test", connection, cast(Any, reply))
    answer = await answer_of(k02_list_offsets.handle(broker, request), reply, version)
    (partition,) = answer.topics[0].partitions
    return partition.error_code, partition.offset


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_the_latest_offset_is_not_told_before_a_new_leader_knows_its_high_watermark(
    side: FollowerSide, isolation_level: int
) -> None:
    """Else the offset goes backwards for clients that the leader before has told a higher one (KIP-207)."""
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"a")
    await side.take("orders", led_by(FOLLOWER, 2))
    spec = API_VERSIONS[ApiKey.LIST_OFFSETS]
    for version in range(spec.min_version, spec.max_version + 1):
        # Clients know OFFSET_NOT_AVAILABLE since version 5.
        code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
        assert await latest_of(side, version, isolation_level) == (code, -1), version
    side.partition("orders").on_follower_fetch(LEADER, 7, 1, 0)
    assert await latest_of(side, spec.max_version, isolation_level) == (ErrorCode.NONE, 1)


async def test_a_replica_that_the_image_does_not_have_yet_is_made(side: FollowerSide) -> None:
    elsewhere = PartitionImage((LEADER,), (LEADER,), LEADER, 1, 1)
    await side.take("orders", elsewhere)
    assert len(side.partitions) == 0
    failures = await side.partitions.take_roles(
        {"orders": (topic_id_of("orders"), {0: PartitionImage(BOTH, (LEADER,), LEADER, 1, 2)})}
    )
    assert not failures and side.partition("orders").next_fetch() is not None


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_replicas_are_stopped(side: FollowerSide, is_deleted: bool) -> None:
    await side.take("orders", led_by(FOLLOWER, 0))
    side.append("orders", b"a")
    await side.take("orders", led_by(LEADER, 1))
    partition = side.partition("orders")
    assert await side.partitions.stop_replicas({PLACE: is_deleted}) == {}
    assert code_of_led(side) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.next_fetch() is None and partition not in side.fetchers
    assert (side.log_dirs.directories[0].path / "orders-0").exists() is not is_deleted
    assert await side.partitions.stop_replicas({PLACE: is_deleted}) == {}, "once more"
    await side.take("orders", led_by(FOLLOWER, 2))
    assert (side.partition("orders") is partition) is not is_deleted
    assert side.partition("orders").log.log_end_offset == (0 if is_deleted else 1)


async def test_an_offline_partition_is_told_as_a_failure(side: FollowerSide) -> None:
    await side.take("orders", led_by(FOLLOWER, 1))
    partition = side.partition("orders")
    side.partitions.take_directory_offline(str(partition.log.directory.parent), OSError("broken"))
    failures = await side.partitions.take_roles({"orders": (topic_id_of("orders"), {0: led_by(LEADER, 2)})})
    assert failures[PLACE].code is ErrorCode.KAFKA_STORAGE_ERROR
    assert partition not in side.fetchers


async def test_an_fsync_that_fails_in_a_truncation_takes_the_directory_offline(
    side: FollowerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"a")

    def fail(*_: object) -> None:
        raise LogDirFailure(5, "fsync failed")

    monkeypatch.setattr("klamm.storage.log.Log.truncate_to", fail)
    with pytest.raises(LogDirFailure):
        await side.partitions.run_in_thread(side.partitions._context.truncate, {PLACE: 0})
    await until(lambda: side.partition("orders").is_offline, "it is offline")


async def test_an_fsync_that_fails_for_a_follower_takes_the_directory_offline(
    side: FollowerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    await side.take("orders", led_by(LEADER, 1))

    def fail(*_: object) -> None:
        raise LogDirFailure(5, "fsync failed")

    monkeypatch.setattr("klamm.storage.log.Log.flush", fail)
    with pytest.raises(LogDirFailure):
        await side.partitions.run_in_thread(side.partitions._context.flush, side.partition("orders").log)
    await until(lambda: side.partition("orders").is_offline, "it is offline")
    monkeypatch.undo()


async def test_followers_that_lag_are_proposed_to_leave(side: FollowerSide) -> None:
    proposed: list[tuple[int, ...]] = []
    context = side.partitions._context
    context.propose = lambda partition, change: proposed.append(change.isr)
    now_ms = NOW_MS
    context.monotonic_ms = lambda: now_ms
    await side.take("orders", led_by(FOLLOWER, 1))
    side.append("orders", b"a")
    side.partitions.check_lag()
    now_ms += 20_000
    side.partitions.check_lag()
    assert proposed == []
    now_ms += 20_000
    side.partitions.check_lag()
    assert proposed == [(FOLLOWER,)]


async def test_a_broker_with_peers_takes_no_roles_before_the_controller_speaks(side: FollowerSide) -> None:
    topic = TopicImage("orders", topic_id_of("orders"), (led_by(FOLLOWER, 4),), {})
    image = image_of_topics("cluster", LEADER, {"orders": topic})
    await side.partitions.adopt(image, {}, takes_roles=False)
    partition = side.partition("orders")
    assert partition.leader is None and code_of_led(side) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await side.take("orders", led_by(FOLLOWER, 5))
    assert side.partitions.led("orders", 0) is partition
