"""Very many offsets are deleted in pieces: with their topic, with their group, by expiry."""

from __future__ import annotations

import asyncio
import logging

import pytest

from klamm.groups import cleanup, coordinator, group, shard, writer
from klamm.groups.events import Subscription
from klamm.groups.offsets import OffsetTable
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from tests.groups.fakes import Coordination, FakeLog, settle, turns_until
from tests.groups.scenario import subscription
from tests.groups.test_coordinator import run_async

DAY_MS = 24 * 60 * 60 * 1000
OLD_ID, NEW_ID = b"o" * 16, b"n" * 16
AT_ONCE = 3


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cleanup, coordinator, shard, writer):
        monkeypatch.setattr(module, "MOST_AT_ONCE", AT_ONCE)


async def started() -> Coordination:
    """All groups are in one partition, so that `batches` are in order."""
    it = Coordination(FakeLog(partition_count=1))
    await it.start()
    return it


async def commit(it: Coordination, topic: str, count: int, group_id: str = "g", **changes: object) -> None:
    changes = {"topic_id": OLD_ID} | changes
    offsets = {TopicPartition(topic, each): it.committed(each, **changes) for each in range(count)}
    codes = await it.coordinator.commit(group_id, "", None, -1, offsets)
    assert set(codes.values()) == {ErrorCode.NONE}
    it.log.batches.clear()


def sizes(it: Coordination) -> list[int]:
    return [len(batch) for batch in it.log.batches]


@run_async
async def test_the_offsets_of_a_deleted_topic_are_deleted_in_pieces() -> None:
    it = await started()
    await commit(it, "t", 7, "a")
    await commit(it, "t", 1, "b")
    await commit(it, "t", 2, "c")
    await commit(it, "u", 2, "a")
    it.coordinator.on_topics_deleted({"t": OLD_ID, "never read": NEW_ID})
    assert not it.log.batches, "deleting a topic does not wait"
    await settle()
    assert sizes(it) == [3, 3, 3, 1]
    assert it.coordinator.offsets_of("a").topics == ["u"]
    assert [listed.group_id for listed in it.coordinator.list_groups()] == ["a"]
    await it.restart()
    assert [listed.group_id for listed in it.coordinator.list_groups()] == ["a"]


@run_async
async def test_others_have_their_turn_between_the_pieces() -> None:
    it = await started()
    await commit(it, "t", 30)
    it.coordinator.on_topics_deleted({"t": OLD_ID})
    await turns_until(lambda: it.log.batches)
    await it.coordinator.commit("other", "", None, -1, {TopicPartition("u", 0): it.committed(1)})
    assert it.coordinator.offsets_of("other") and it.coordinator.offsets_of("g")


@run_async
async def test_topics_that_are_deleted_meanwhile_are_searched_for_afterwards() -> None:
    it = await started()
    for topic in ("t", "u"):
        await commit(it, topic, 4)
    it.log.gate.clear()
    it.coordinator.on_topics_deleted({"t": OLD_ID})
    await settle()
    it.coordinator.on_topics_deleted({"u": OLD_ID})
    it.log.gate.set()
    await settle()
    assert not it.coordinator.offsets_of("g")


@run_async
async def test_offsets_of_a_topic_that_was_created_since_stay() -> None:
    it = await started()
    await commit(it, "t", 4)
    await commit(it, "t", 4, "without id", topic_id=bytes(16))
    it.log.gate.clear()
    it.coordinator.on_topics_deleted({"t": OLD_ID})
    await settle()
    it.time.time_ms += 1
    place = TopicPartition("t", 3)
    commits = [
        asyncio.ensure_future(
            it.coordinator.commit(group_id, "", None, -1, {place: it.committed(9, **changes)})
        )
        for group_id, changes in (("g", {"topic_id": NEW_ID}), ("without id", {}))
    ]
    await settle()
    it.log.gate.set()
    await asyncio.gather(*commits)
    await settle()
    for group_id in ("g", "without id"):
        assert it.coordinator.offsets_of(group_id).partitions_of("t") == [3]


@run_async
async def test_a_partition_that_is_being_loaded_is_searched_once_it_is_loaded() -> None:
    it = await started()
    await commit(it, "t", 1)
    it.log.load_gate.clear()
    await it.restart()
    it.coordinator.on_topics_deleted({"t": OLD_ID})
    await settle()
    it.log.load_gate.set()
    await settle()
    assert not it.coordinator.offsets_of("g")


@run_async
async def test_the_search_ends_with_the_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    tasks_before = asyncio.all_tasks()
    for is_loading in (False, True):
        it = await started()
        await commit(it, "t", 7)
        (it.log.load_gate if is_loading else it.log.gate).clear()
        if is_loading:
            await it.restart()
        it.coordinator.on_topics_deleted({"t": OLD_ID})
        await settle()
        it.coordinator.stop()
        it.log.gate.set()
        await settle()
        assert asyncio.all_tasks() == tasks_before
        assert len(it.log.batches) <= 1
        assert not caplog.messages, "nothing has failed"


@run_async
async def test_a_write_that_fails_is_logged_and_the_offsets_expire(caplog: pytest.LogCaptureFixture) -> None:
    it = await started()
    await commit(it, "t", 7)
    it.log.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    with caplog.at_level(logging.WARNING):
        it.coordinator.on_topics_deleted({"t": OLD_ID})
        await settle()
    assert "until they expire" in caplog.text
    assert len(it.log.batches) == 1
    it.log.refusal = None
    await it.time.advance(7 * DAY_MS + 600_000)
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_a_group_is_deleted_in_pieces_and_its_own_tombstone_is_the_last() -> None:
    for count, expected in ((2, [3]), (3, [3, 1]), (7, [3, 3, 2])):
        it = await started()
        await commit(it, "t", count)
        assert await it.coordinator.delete_group("g") is ErrorCode.NONE
        assert sizes(it) == expected
        last_key, _ = it.log.batches[-1][-1]
        assert last_key[:2] == b"\x00\x02"
        assert list(it.coordinator.list_groups()) == []
        await it.restart()
        assert list(it.coordinator.list_groups()) == []


@run_async
async def test_an_unknown_group_is_answered_without_a_wait() -> None:
    it = await started()
    deletion = it.coordinator.delete_group("nobody")
    with pytest.raises(StopIteration) as answer:
        deletion.send(None)
    assert answer.value.value == ErrorCode.GROUP_ID_NOT_FOUND


@run_async
async def test_no_commit_slips_in_between_the_pieces_of_a_deletion() -> None:
    it = await started()
    await commit(it, "t", 7)
    it.log.gate.clear()
    deletion = asyncio.ensure_future(it.coordinator.delete_group("g"))
    place = TopicPartition("u", 0)
    await asyncio.sleep(0)
    accepted = asyncio.ensure_future(it.coordinator.commit("g", "", None, -1, {place: it.committed(1)}))
    await settle()
    with pytest.raises(KafkaError) as error:
        await it.coordinator.commit("g", "", None, -1, {place: it.committed(2)})
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = asyncio.ensure_future(it.coordinator.delete_group("g"))
    it.log.gate.set()
    await turns_until(again.done)
    assert again.result() is ErrorCode.GROUP_ID_NOT_FOUND
    assert not deletion.done()
    with pytest.raises(KafkaError):  # the second deletion has not brought the group back
        await it.coordinator.commit("g", "", None, -1, {place: it.committed(3)})
    assert await deletion is ErrorCode.NONE
    assert (await accepted)[place] is ErrorCode.NONE
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_a_deletion_that_fails_on_its_way_leaves_the_other_offsets() -> None:
    it = await started()
    await commit(it, "t", 7)
    deletion = asyncio.ensure_future(it.coordinator.delete_group("g"))
    await turns_until(lambda: it.log.batches)
    it.log.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert await deletion is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.log.refusal = None
    assert it.coordinator.offsets_of("g").partitions_of("t") == [3, 4, 5, 6]
    assert (await it.join()).error is ErrorCode.NONE


@run_async
async def test_offsets_expire_in_pieces() -> None:
    it = await started()
    await commit(it, "t", 7, expire_timestamp_ms=it.time.time_ms + 60_000)
    await commit(it, "u", 1)
    await it.time.advance(600_000)
    assert sizes(it) == [3, 3, 1]
    assert it.coordinator.offsets_of("g").topics == ["u"]


@run_async
async def test_small_commits_that_wait_are_written_in_pieces() -> None:
    it = await started()
    it.log.gate.clear()
    commits = [
        asyncio.ensure_future(
            it.coordinator.commit("g", "", None, -1, {TopicPartition("t", each): it.committed(each)})
        )
        for each in range(8)
    ]
    await settle()
    it.log.gate.set()
    await asyncio.gather(*commits)
    assert max(sizes(it)) == AT_ONCE and sum(sizes(it)) == 8


@run_async
async def test_subscriptions_are_read_once_for_all_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may subscribe to very many topics, and a group may have very many members."""
    it = await started()
    topics = [f"{number}" for number in range(100)]
    protocols = (Subscription("range", subscription(*topics)),)
    await it.joined(protocols=protocols)
    read: list[bytes] = []

    def counted(metadata: bytes) -> frozenset[str]:
        read.append(metadata)
        return frozenset(topics)

    monkeypatch.setattr(group, "subscribed_topics", counted)
    codes = await it.coordinator.delete_offsets("g", [TopicPartition(topic, 0) for topic in topics])
    assert set(codes.values()) == {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert len(read) == 1


@run_async
async def test_a_record_is_replayed_without_a_look_at_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    def sum_over_all_topics(_: OffsetTable) -> int:
        raise AssertionError("the offsets of all topics are counted for one record")

    it = await started()
    await commit(it, "t", 2)
    await commit(it, "u", 1)
    monkeypatch.setattr(OffsetTable, "__len__", sum_over_all_topics)
    await it.coordinator.delete_offsets("g", [TopicPartition("t", 0)])
    assert it.coordinator.offsets_of("g").partitions_of("t") == [1]
