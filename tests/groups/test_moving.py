"""Groups move with the leader of their partition: between two brokers over one log, and to a new epoch."""

from __future__ import annotations

import asyncio

import pytest

from klamm.groups.events import GroupState, Leaver
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from tests.groups.fakes import Coordination, FakeLog, settle
from tests.groups.test_coordinator import code_of, commit, run_async, started

T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)


async def two_brokers() -> tuple[Coordination, Coordination]:
    """The first one leads all partitions."""
    first = await started()
    second = Coordination(FakeLog(replicas=first.log.replicas), first.time)
    await second.start()
    return first, second


async def move(old: Coordination, new: Coordination, *, truncate: bool = False) -> None:
    old.log.led.clear()
    for partition in range(new.log.partition_count):
        new.log.begin_epoch(partition, truncate=truncate)
    old.coordinator.update_leadership()
    new.coordinator.update_leadership()
    await settle()


def state_of(it: Coordination, group_id: str = "g") -> GroupState:
    description = it.coordinator.describe(group_id)
    assert description is not None
    return description.state


@run_async
async def test_members_carry_on_in_their_generation() -> None:
    old, new = await two_brokers()
    member = await old.joined()
    static = await old.joined("with static", instance_id="s")
    await old.coordinator.commit("g", member.member_id, None, 1, {T0: old.committed(7)})
    described = [old.coordinator.describe(group_id) for group_id in ("g", "with static")]
    await old.time.advance(9_000)
    await move(old, new)
    await old.time.advance(9_000)  # of a session of ten seconds, which started again
    assert [new.coordinator.describe(group_id) for group_id in ("g", "with static")] == described
    assert new.coordinator.heartbeat("g", member.member_id, None, 1) is ErrorCode.NONE
    assert new.coordinator.heartbeat("with static", static.member_id, "s", 1) is ErrorCode.NONE
    assert new.coordinator.heartbeat("with static", "other", "s", 1) is ErrorCode.FENCED_INSTANCE_ID
    assert new.coordinator.offsets_of("g").get("t", 0) is not None
    await new.coordinator.commit("g", member.member_id, None, 1, {T0: new.committed(8)})
    with pytest.raises(KafkaError) as error:
        await new.coordinator.commit("g", member.member_id, None, 0, {T0: new.committed(6)})
    assert code_of(error) is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(KafkaError) as error:
        old.coordinator.heartbeat("g", member.member_id, None, 1)
    assert code_of(error) is ErrorCode.NOT_COORDINATOR


@run_async
async def test_a_join_phase_that_was_under_way_starts_again_and_ends() -> None:
    old, new = await two_brokers()
    first = await old.joined()
    parked = old.join()
    await move(old, new)
    assert (await parked).error is ErrorCode.NOT_COORDINATOR
    parked = new.join()
    assert new.coordinator.heartbeat("g", first.member_id, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    first_joined, second_joined = await asyncio.gather(new.join(member_id=first.member_id), parked)
    assert (first_joined.generation, second_joined.generation) == (2, 2)
    assignments = {first_joined.member_id: b"1", second_joined.member_id: b"2"}
    synced = await asyncio.gather(
        new.sync("g", first_joined, assignments), new.sync("g", second_joined, assignments)
    )
    assert sorted(each.assignment for each in synced) == [b"1", b"2"]
    assert state_of(new) is GroupState.STABLE


@pytest.mark.parametrize("truncate", [False, True])
@run_async
async def test_a_sync_that_was_under_way_ends(truncate: bool) -> None:
    """The new leader may have the assignment, or not; nobody was told of it by the old one."""
    old, new = await two_brokers()
    joined = await old.join()
    old.log.gate.clear()
    parked = old.sync("g", joined, {joined.member_id: b"x"})
    await settle()
    assert not parked.done()
    await move(old, new, truncate=truncate)
    old.log.gate.set()
    assert (await parked).error is ErrorCode.NOT_COORDINATOR
    if truncate:
        with pytest.raises(KafkaError) as error:
            new.sync("g", joined, {})
        assert code_of(error) is ErrorCode.UNKNOWN_MEMBER_ID
        joined = await new.joined()
    else:
        assert (await new.sync("g", joined, {})).assignment == b"x"
    assert state_of(new) is GroupState.STABLE
    assert new.coordinator.heartbeat("g", joined.member_id, None, joined.generation) is ErrorCode.NONE


@run_async
async def test_a_generation_that_was_never_written_is_not_known_after_the_move() -> None:
    old, new = await two_brokers()
    member = await old.joined()
    again = await old.join(member_id=member.member_id)
    assert again.generation == 2
    await move(old, new)
    assert new.coordinator.heartbeat("g", member.member_id, None, 2) is ErrorCode.ILLEGAL_GENERATION
    assert (await new.sync("g", again, {})).error is ErrorCode.ILLEGAL_GENERATION
    rejoined = await new.join(member_id=member.member_id)
    synced = await new.sync("g", rejoined, {member.member_id: b"y"})
    assert (rejoined.generation, synced.assignment) == (2, b"y")


@run_async
async def test_a_static_member_that_comes_back_elsewhere_keeps_its_assignment() -> None:
    old, new = await two_brokers()
    static = await old.joined(instance_id="s")
    await move(old, new)
    back = await new.join(instance_id="s", can_skip_assignment=True)
    assert (back.error, back.generation, back.skip_assignment) == (ErrorCode.NONE, 1, True)
    assert back.member_id != static.member_id
    assert (await new.sync("g", back, {})).assignment == b"x"
    await move(new, old)
    assert old.coordinator.heartbeat("g", back.member_id, "s", 1) is ErrorCode.NONE
    assert old.coordinator.heartbeat("g", static.member_id, "s", 1) is ErrorCode.FENCED_INSTANCE_ID


@run_async
async def test_a_new_epoch_of_the_same_leader_begins_with_a_load() -> None:
    it = await started()
    member = await it.joined()
    parked_join = it.join()
    it.log.gate.clear()
    under_way = [
        asyncio.ensure_future(commit(it, T0, 1, group_id="simple")),
        asyncio.ensure_future(it.coordinator.delete_offsets("simple", [T0])),
    ]
    await settle()
    for partition in range(it.log.partition_count):
        it.log.begin_epoch(partition)
    it.coordinator.update_leadership()
    assert (await parked_join).error is ErrorCode.NOT_COORDINATOR
    for each in under_way:
        with pytest.raises(KafkaError) as error:
            await each
        assert code_of(error) is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as error:
        it.coordinator.heartbeat("g", member.member_id, None, 1)
    assert code_of(error) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    it.log.gate.set()
    await settle()
    assert it.coordinator.heartbeat("g", member.member_id, None, 1) is ErrorCode.NONE
    assert it.coordinator.offsets_of("simple").get("t", 0) is not None, "its record was not lost"


@run_async
async def test_a_leave_is_not_confirmed_by_a_coordinator_whose_epoch_ended() -> None:
    old, new = await two_brokers()
    member = await old.joined()
    old.log.gate.clear()
    leaving = asyncio.ensure_future(old.coordinator.leave("g", [Leaver(member.member_id, None)]))
    await settle()
    await move(old, new, truncate=True)
    with pytest.raises(KafkaError) as error:
        await leaving
    assert code_of(error) is ErrorCode.NOT_COORDINATOR
    assert await new.coordinator.leave("g", [Leaver(member.member_id, None)]) == [ErrorCode.NONE]
    assert state_of(new) is GroupState.EMPTY


@run_async
async def test_requests_notice_a_new_epoch_that_nobody_has_told_of() -> None:
    it = await started()
    await commit(it, T0, 1)
    for ask in (lambda: it.coordinator.offsets_of("g"), lambda: list(it.coordinator.list_groups())):
        for partition in range(it.log.partition_count):
            it.log.begin_epoch(partition)
        assert not any(map(it.coordinator.is_loaded, range(it.log.partition_count)))
        with pytest.raises(KafkaError) as error:
            ask()
        assert code_of(error) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await settle()
        assert ask()
        await it.coordinator.wait_until_loaded(range(it.log.partition_count))
    it.log.led.clear()
    assert list(it.coordinator.list_groups()) == []


class _LogThatTellsOfEveryCommit(FakeLog):
    """A batch may be committed just before the epoch ends, and who waits for it may be woken after that."""

    async def _committed(self, partition: int, leader_epoch: int, end_offset: int) -> None:
        await self.gate.wait()
        self.replicas.high_watermarks[partition] = end_offset


@run_async
async def test_a_commit_that_is_committed_after_the_epoch_is_not_confirmed() -> None:
    """Another leader may have accepted commits since."""
    it = Coordination(_LogThatTellsOfEveryCommit())
    await it.start()
    it.log.gate.clear()
    under_way = asyncio.ensure_future(commit(it, T0, 1))
    await settle()
    it.log.led.clear()
    it.log.gate.set()
    with pytest.raises(KafkaError) as error:
        await under_way
    assert code_of(error) is ErrorCode.NOT_COORDINATOR


@run_async
async def test_timers_of_an_epoch_that_ended_answer_nothing() -> None:
    it = await started()
    await it.joined()
    parked = it.join()
    it.log.led.clear()
    written = len(it.log.batches)
    await it.time.advance(60_000)
    assert (await parked).error is ErrorCode.NOT_COORDINATOR
    assert len(it.log.batches) == written


@run_async
async def test_only_the_leader_expires_offsets_and_deletes_those_of_deleted_topics() -> None:
    old, new = await two_brokers()
    await commit(old, T0, 1, topic_id=b"o" * 16)
    await commit(old, U0, 1)
    await move(old, new)
    written = len(old.log.batches)
    for it in (old, new):
        it.coordinator.on_topics_deleted({"t": b"o" * 16})
    await settle()
    assert new.coordinator.offsets_of("g").topics == ["u"]
    assert len(new.log.batches) == 1
    await old.time.advance(8 * 24 * 60 * 60 * 1000)
    assert list(new.coordinator.list_groups()) == [] == list(old.coordinator.list_groups())
    assert len(old.log.batches) == written


@run_async
async def test_the_offsets_of_a_deleted_topic_are_deleted_across_a_new_epoch() -> None:
    it = await started()
    await commit(it, T0, 1, topic_id=b"o" * 16)
    it.log.gate.clear()
    it.coordinator.on_topics_deleted({"t": b"o" * 16})
    await settle()
    for partition in range(it.log.partition_count):
        it.log.begin_epoch(partition, truncate=True)
    it.coordinator.update_leadership()
    await settle()
    it.log.gate.set()
    await settle()
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_a_stopped_coordinator_loads_nothing() -> None:
    tasks_before = asyncio.all_tasks()
    it = await started()
    it.log.gate.clear()
    under_way = asyncio.ensure_future(commit(it, T0, 1))
    await settle()
    it.coordinator.stop()
    with pytest.raises(KafkaError):
        await under_way
    await settle()
    assert asyncio.all_tasks() == tasks_before
    attempts = it.log.load_attempts
    with pytest.raises(KafkaError):
        it.join()
    assert list(it.coordinator.list_groups()) == []
    await settle()
    assert it.log.load_attempts == attempts
