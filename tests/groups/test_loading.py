"""Loads that wait, fail, are tried again, or are of an epoch that is over."""

from __future__ import annotations

import asyncio
import logging

import pytest

from klamm.groups import loading
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from tests.groups.fakes import Coordination, FakeLog, settle
from tests.groups.test_coordinator import code_of, commit, run_async

T0 = TopicPartition("t", 0)


async def written() -> Coordination:
    """A partition with more records than one piece of a load, of which the last ones delete the first."""
    it = Coordination(FakeLog(partition_count=1))
    await it.start()
    for number in range(20):
        await commit(it, T0, number, group_id=f"g{number}")
    assert await it.coordinator.delete_group("g0") is ErrorCode.NONE
    return it


@run_async
async def test_a_load_that_fails_is_tried_again_and_its_reason_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = await written()
    it.log.load_error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    it.log.load_attempts = 0
    with caplog.at_level(logging.ERROR):
        await it.restart()
        await it.time.advance(30_000)
        attempts = it.log.load_attempts
        assert 8 <= attempts <= 12, "0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7 seconds after the first"
        assert len(caplog.messages) == 1 and "the disk is full" in caplog.text
        it.log.load_error = ValueError("a bug")
        await it.time.advance(30_000)
        assert len(caplog.messages) == 2 and "a bug" in caplog.text
        with pytest.raises(KafkaError) as error:
            it.coordinator.offsets_of("g1")
        assert code_of(error) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        it.log.load_error = None
        it.log.compact()
        await it.time.advance(loading.LONGEST_BACKOFF_MS)
    assert len(list(it.coordinator.list_groups())) == 19, "what a failed load had replayed is forgotten"
    assert len(caplog.messages) == 2


@run_async
async def test_a_partition_that_is_not_led_any_more_is_not_loaded_again() -> None:
    it = await written()
    it.log.load_error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    await it.restart()
    it.log.led.clear()
    attempts = it.log.load_attempts
    await it.time.advance(60_000)
    assert it.log.load_attempts == attempts


@run_async
async def test_a_load_of_an_earlier_epoch_is_dropped() -> None:
    it = await written()
    it.log.load_gate.clear()
    await it.restart()
    it.log.begin_epoch(0)
    it.coordinator.update_leadership()
    it.log.replicas.partitions[0].clear()  # as a follower, this broker cut its log, and is leader again
    it.log.replicas.high_watermarks[0] = 0
    it.log.load_gate.set()
    await settle()
    assert list(it.coordinator.list_groups()) == []


@run_async
async def test_a_load_waits_until_what_the_last_leader_wrote_is_committed() -> None:
    it = await written()
    it.log.replicas.high_watermarks[0] = 3
    it.log.gate.clear()
    await it.restart()
    await it.time.advance(60_000)
    with pytest.raises(KafkaError) as error:
        it.coordinator.offsets_of("g19")
    assert code_of(error) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    it.log.gate.set()
    await settle()
    assert it.coordinator.offsets_of("g19")


class _LogWithoutReplicas(FakeLog):
    """Most partitions lack the replicas to commit what is in them."""

    async def until_committed(self, partition: int, leader_epoch: int) -> None:
        if partition < self.partition_count - 1:
            await asyncio.get_running_loop().create_future()


@run_async
async def test_partitions_that_lack_replicas_do_not_keep_others_from_being_loaded() -> None:
    tasks_before = asyncio.all_tasks()
    it = Coordination(_LogWithoutReplicas(partition_count=loading.LOADS_AT_A_TIME + 2))
    await it.start()
    assert [each for each in range(it.log.partition_count) if it.coordinator.is_loaded(each)] == [
        it.log.partition_count - 1
    ]
    it.coordinator.stop()
    await settle()
    assert asyncio.all_tasks() == tasks_before


@run_async
async def test_a_load_that_fails_does_not_stop_the_deletion_of_offsets_elsewhere() -> None:
    it = Coordination(FakeLog(partition_count=2))
    await it.start()
    ids = {it.coordinator.partition_for(f"g{number}"): f"g{number}" for number in range(9)}
    for group_id in ids.values():
        await commit(it, T0, 1, group_id=group_id, topic_id=b"o" * 16)
    it.log.load_error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    it.log.begin_epoch(0)
    it.coordinator.update_leadership()
    it.coordinator.on_topics_deleted({"t": b"o" * 16})
    await settle()
    assert not it.coordinator.offsets_of(ids[1])
    it.log.load_error = None
    await it.time.advance(1_000)
    assert not it.coordinator.offsets_of(ids[0])
