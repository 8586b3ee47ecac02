"""Batches whose commit takes too long, or whose outcome is lost: memory never differs from the log."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from klamm.groups.events import GroupState, Leaver
from klamm.groups.table import GroupTable
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from tests.groups.fakes import Coordination, FakeLog, settle
from tests.groups.test_coordinator import code_of, commit, run_async, started

T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)
TIMEOUT_MS = 5_000


def committed_offset(it: Coordination, place: TopicPartition = T0) -> int | None:
    committed = it.coordinator.offsets_of("g").get(*place)
    return None if committed is None else committed.offset


@run_async
async def test_a_commit_that_takes_too_long_counts_once_it_is_committed() -> None:
    it = await started()
    idle = len(it.time.pending)
    await commit(it, T0, 1)
    it.log.gate.clear()
    slow = asyncio.ensure_future(commit(it, T0, 2))
    await it.time.advance(TIMEOUT_MS - 1)
    queued = asyncio.ensure_future(commit(it, U0, 3))
    await settle()
    assert not slow.done()
    await it.time.advance(1)
    with pytest.raises(KafkaError) as error:
        await slow
    assert code_of(error) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not queued.done()
    await it.time.advance(TIMEOUT_MS)
    with pytest.raises(KafkaError) as error:
        await queued
    assert code_of(error) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(it) == 1
    third = asyncio.ensure_future(commit(it, U0, 4))
    await settle()
    assert len(it.log.batches) == 2, "nothing is appended behind a batch that may still be lost"
    it.log.gate.set()
    assert await third == {U0: ErrorCode.NONE}
    assert committed_offset(it) == 2
    assert [len(batch) for batch in it.log.batches] == [1, 1, 1], "the queued commit was given up"
    assert len(it.time.pending) == idle
    await it.restart()
    assert (committed_offset(it), committed_offset(it, U0)) == (2, 4)


@run_async
async def test_an_assignment_that_takes_too_long_is_assigned_again() -> None:
    it = await started()
    joined = await it.join(session_timeout_ms=30_000)
    it.log.gate.clear()
    synced = it.sync("g", joined, {joined.member_id: b"x"})
    await it.time.advance(TIMEOUT_MS)
    assert (await synced).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.log.gate.set()
    await settle()
    assert it.coordinator.heartbeat("g", joined.member_id, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await it.join(member_id=joined.member_id)
    assert (await it.sync("g", rejoined, {joined.member_id: b"y"})).assignment == b"y"
    assert rejoined.generation == 2


@run_async
async def test_a_deletion_that_takes_too_long_happens_once_it_is_committed() -> None:
    it = await started()
    await commit(it, T0, 1)
    it.log.gate.clear()
    deletion = asyncio.ensure_future(it.coordinator.delete_group("g"))
    await it.time.advance(TIMEOUT_MS)
    assert await deletion is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(it) == 1
    it.log.gate.set()
    await settle()
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_a_leave_that_takes_too_long_is_answered() -> None:
    it = await started()
    member = await it.joined()
    it.log.gate.clear()
    leaving = asyncio.ensure_future(it.coordinator.leave("g", [Leaver(member.member_id, None)]))
    await it.time.advance(TIMEOUT_MS)
    assert await leaving == [ErrorCode.NONE]
    description = it.coordinator.describe("g")
    assert description is not None and description.state is GroupState.EMPTY


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
@run_async
async def test_after_a_lost_outcome_the_log_decides(loss: ErrorCode, told: ErrorCode, truncate: bool) -> None:
    it = await started()
    await commit(it, T0, 1)
    it.log.gate.clear()
    it.log.loss = KafkaError(loss)
    lost = asyncio.ensure_future(commit(it, T0, 2))
    await settle()
    queued = asyncio.ensure_future(commit(it, T0, 3))
    await settle()
    partition = it.coordinator.partition_for("g")
    if truncate:
        del it.log.replicas.partitions[partition][it.log.replicas.high_watermarks[partition] :]
    it.log.gate.set()
    with pytest.raises(KafkaError) as error:
        await lost
    assert code_of(error) is told
    with pytest.raises(KafkaError) as error:
        await queued
    assert code_of(error) is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as error:
        it.coordinator.offsets_of("g")
    assert code_of(error) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    it.log.loss = None
    await it.time.advance(1_000)
    assert committed_offset(it) == (1 if truncate else 2)


class _Moves:
    """Two brokers whose log hangs, loses outcomes and moves, while clients commit and read."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.first = Coordination(FakeLog(partition_count=1))
        self.second = Coordination(FakeLog(1, self.first.log.replicas), self.first.time)
        self.brokers = [self.first, self.second]
        self.confirmed = 0
        self.read = 0
        self.next_offset = 0
        self.clients: list[asyncio.Task[None]] = []

    async def commit(self, it: Coordination) -> None:
        self.next_offset += 1
        offset = self.next_offset
        try:
            await commit(it, T0, offset)
        except KafkaError:
            return
        self.confirmed = max(self.confirmed, offset)

    def look(self, it: Coordination) -> None:
        """What is read never goes back, and is never older than what was confirmed."""
        try:
            offset = committed_offset(it) or 0
        except KafkaError:
            return
        assert offset >= max(self.read, self.confirmed), (offset, self.read, self.confirmed)
        self.read = offset

    async def step(self) -> None:
        chance = self.chance
        it = chance.choice(self.brokers)
        match chance.randrange(8):
            case 0:
                it.log.gate.clear()
            case 1 | 2:
                it.log.gate.set()
            case 3 if chance.random() < 0.5:
                self.move_to(it)
            case 4 if chance.random() < 0.3:
                it.log.loss = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            case 5:
                await self.first.time.advance(chance.choice([10, 1_000, 6_000]))
            case _:
                self.clients.append(asyncio.ensure_future(self.commit(it)))
        if chance.random() < 0.7:
            await settle()
        it.log.loss = None
        for broker in self.brokers:
            self.look(broker)

    def move_to(self, new: Coordination) -> None:
        for broker in self.brokers:
            broker.log.led.clear()
        new.log.begin_epoch(0, truncate=self.chance.random() < 0.5)
        told = [broker for broker in self.brokers if self.chance.random() < 0.7]
        for broker in told:
            broker.coordinator.update_leadership()

    async def heal(self) -> None:
        for broker in self.brokers:
            broker.log.gate.set()
        self.move_to(self.second)
        for broker in self.brokers:
            broker.coordinator.update_leadership()
        await self.first.time.advance(60_000)
        await asyncio.gather(*self.clients)


@pytest.mark.parametrize("round_number", range(8))
@run_async
async def test_whatever_happens_memory_is_what_the_log_says(round_number: int) -> None:
    seed = int(os.environ.get("SEED", "1")) * 1_000 + round_number
    moves = _Moves(random.Random(seed))
    try:
        for broker in moves.brokers:
            await broker.start()
        for _ in range(150):
            await moves.step()
        await moves.heal()
        moves.look(moves.second)
        expected = GroupTable()
        for key, value in moves.first.log.replicas.partitions[0]:
            expected.replay(key, value)
        entry = expected.get("g")
        assert moves.second.coordinator.offsets_of("g") == (entry.offsets if entry else {})
        assert moves.confirmed > 10
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
