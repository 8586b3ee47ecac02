from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.fetch_sessions import PartitionKey, TargetSet
from klamm.replication.fetching import FetchResult, ParkedFetch, collect, ready_targets, select_for_response
from klamm.replication.partition import Partition
from klamm.storage.log import WouldBlock
from tests.replication.partitions import append, open_partition, position
from tests.replies import FakeReply

KEY: PartitionKey = ("orders", 0)
OTHER: PartitionKey = ("orders", 1)


class Fetcher:
    """One fetch of two partitions, as the API handler does it."""

    def __init__(self, directory: Path, min_bytes: int = 1) -> None:
        self.partitions = {key: open_partition(directory, "orders", key[1]) for key in (KEY, OTHER)}
        self.fetch = TargetSet([position(KEY), position(OTHER)])
        self.min_bytes = min_bytes
        self.looks = 0
        self.must_block = False

    def collect(self, max_bytes: int = 1_000_000, max_files: int = 100) -> FetchResult:
        targets = ready_targets(self.fetch)
        self.fetch.resolve(lambda key: self.partitions[key], targets)
        return collect(targets, max_bytes, max_files, may_block=True)

    def attempt(self, is_last: bool) -> FetchResult | None:
        self.looks += 1
        if self.must_block:
            raise WouldBlock
        result = self.collect()
        if is_last or result.must_answer or result.byte_count >= self.min_bytes:
            select_for_response(self.fetch, result.answers)
            return result
        return None

    async def attempt_from_disk(self) -> FetchResult:
        await asyncio.sleep(0)
        return self.collect()

    def park(self, max_wait_ms: int = 60_000) -> FakeReply:
        self.collect()
        reply = FakeReply()
        ParkedFetch(
            self.fetch,
            reply,
            self.attempt,
            self.attempt_from_disk,
            min_bytes=self.min_bytes,
            bytes_so_far=0,
            max_wait_ms=max_wait_ms,
        )
        return reply

    def has_watchers(self) -> bool:
        return any(partition._watchers for partition in self.partitions.values())


def bytes_in(partition: Partition) -> int:
    return partition.log.size_bytes


def test_the_first_batch_comes_even_if_it_is_too_large(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x" * 5000)
    append(fetcher.partitions[KEY], b"y" * 5000)
    append(fetcher.partitions[OTHER], b"z" * 5000)
    first, other = fetcher.collect(max_bytes=100).answers
    assert first.records is not None and b"yy" not in bytes(first.records.read())
    assert other.records is None


def test_later_partitions_obey_the_limit(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x" * 1000)
    append(fetcher.partitions[OTHER], b"y" * 1000)
    append(fetcher.partitions[OTHER], b"z" * 1000)
    limit = bytes_in(fetcher.partitions[KEY]) + bytes_in(fetcher.partitions[OTHER]) // 2
    result = fetcher.collect(max_bytes=limit)
    assert result.byte_count == limit


@pytest.mark.parametrize("files", [0, 1])
def test_an_answer_holds_open_no_more_files_than_it_may(tmp_path: Path, files: int) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x")
    append(fetcher.partitions[OTHER], b"y")
    first, other = fetcher.collect(max_files=files).answers
    assert first.records is not None, "one there must be, or its client gets nowhere"
    assert other.records is None


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_limit_of_nothing_still_gives_one_batch(tmp_path: Path, limit: int) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x")
    append(fetcher.partitions[OTHER], b"y")
    assert [answer.records is not None for answer in fetcher.collect(max_bytes=limit).answers] == [
        True,
        False,
    ]


def test_an_error_of_one_partition_leaves_the_other_alone(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[OTHER], b"fine")
    fetcher.fetch.update([position(KEY, 77)])
    result = fetcher.collect()
    assert result.must_answer
    broken, fine = result.answers
    assert broken.error is not None and broken.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fine.error is None and fine.records is not None


def test_a_log_that_went_another_way(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    partition = fetcher.partitions[KEY]
    append(partition, b"epoch 0")
    partition.leader_epoch = 2
    append(partition, b"epoch 2")
    fetcher.fetch.update([position(KEY, 2, last_fetched_epoch=1)])
    result = fetcher.collect()
    assert result.must_answer
    assert result.answers[0].diverging_epoch == (0, 1)
    fetcher.fetch.update([position(KEY, 2, last_fetched_epoch=2)])
    assert fetcher.collect().answers[0].diverging_epoch is None


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_a_log_that_cannot_be_read_is_an_error_of_its_partition(tmp_path: Path, damage: str) -> None:
    fetcher = Fetcher(tmp_path)
    for key in (KEY, OTHER):
        append(fetcher.partitions[key], b"value")
    log = fetcher.partitions[KEY].log
    for segment in log.segments:
        log.open_files.forget(segment)
    file = log.directory / f"{0:020d}.log"
    if damage == "gone":  # so it is when the topic is deleted at this moment
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    answers = {answer.target.position.key: answer for answer in fetcher.collect().answers}
    error = answers[KEY].error
    assert error is not None and error.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answers[OTHER].records is not None
    with pytest.raises(KafkaError):
        log.offset_for_timestamp(0)


async def test_a_parked_fetch_is_woken_by_an_append(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    reply = fetcher.park()
    append(fetcher.partitions[OTHER], b"news")
    result = await asyncio.wait_for(reply.answer, 10)
    assert result.byte_count == bytes_in(fetcher.partitions[OTHER])
    await asyncio.sleep(0)
    assert not fetcher.has_watchers()


async def test_many_appends_of_one_iteration_are_one_look(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    reply = fetcher.park()
    for _ in range(100):
        append(fetcher.partitions[KEY], b"news")
    await asyncio.wait_for(reply.answer, 10)
    assert fetcher.looks == 1


async def test_too_few_bytes_wake_nobody(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path, min_bytes=10_000)
    reply = fetcher.park()
    append(fetcher.partitions[KEY], b"x" * 4000)
    for _ in range(10):
        await asyncio.sleep(0)
    assert reply.is_open and fetcher.looks == 0
    append(fetcher.partitions[KEY], b"x" * 6000)
    await asyncio.wait_for(reply.answer, 10)


async def test_every_byte_of_a_batch_counts(tmp_path: Path) -> None:
    """The bytes that are announced must be the bytes that are read, or a fetch that has enough waits on."""
    example = open_partition(tmp_path, "example")
    append(example, b"x" * 1000)
    fetcher = Fetcher(tmp_path, min_bytes=2 * bytes_in(example))
    reply = fetcher.park()
    append(fetcher.partitions[KEY], b"x" * 1000)
    append(fetcher.partitions[OTHER], b"x" * 1000)
    result = await asyncio.wait_for(reply.answer, 10)
    assert result.byte_count == fetcher.min_bytes


async def test_time_is_up(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    result = await asyncio.wait_for(fetcher.park(max_wait_ms=10).answer, 10)
    assert result.byte_count == 0


async def test_a_partition_that_goes_offline_is_told_at_once(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path, min_bytes=10_000)
    reply = fetcher.park()
    fetcher.partitions[KEY].take_offline()
    result = await asyncio.wait_for(reply.answer, 10)
    assert result.answers[0].error is not None
    assert result.answers[0].error.code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_what_is_not_in_memory_is_answered_by_a_thread(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    reply = fetcher.park()
    fetcher.must_block = True
    append(fetcher.partitions[KEY], b"news")
    result = await asyncio.wait_for(reply.answer, 10)
    assert result.byte_count > 0


async def test_an_abandoned_fetch_leaves_nobody_watching(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    reply = fetcher.park()
    assert fetcher.has_watchers()
    reply.drop()
    assert not fetcher.has_watchers()
    append(fetcher.partitions[KEY], b"unheard")


async def test_a_fetch_that_is_over_is_freed_without_a_collection(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    partitions = fetcher.partitions
    answered = fetcher.park()
    append(partitions[KEY], b"v")
    await answered.answer
    abandoned = TargetSet([position(KEY)])
    abandoned.resolve(lambda key: partitions[key], ready_targets(abandoned))
    sets = [id(fetcher.fetch), id(abandoned)]
    gc.disable()
    try:
        del fetcher, answered, abandoned
        await asyncio.sleep(0)
        assert not [each for each in gc.get_objects() if isinstance(each, TargetSet) and id(each) in sets]
    finally:
        gc.enable()
