from __future__ import annotations

from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.closest_replica import NO_PREFERENCE
from klamm.replication.fetch_sessions import FetchPosition, FetchSession, PartitionKey
from klamm.replication.fetching import Reading, has_nothing_new, report_followers, settle
from klamm.replication.newest_batches import MAX_ENTRIES, NewestBatches
from klamm.replication.partition import Partition
from tests.replication.partitions import (
    BROKER_EPOCH,
    TOPIC_ID,
    alone,
    append,
    commit,
    led_by,
    open_log,
    open_partition,
    position,
)

KEY: PartitionKey = ("orders", 0)
OTHER: PartitionKey = ("orders", 1)
FOLLOWER = 2


class Fetcher:
    """Reads two partitions, as a consumer or as a follower."""

    def __init__(self, directory: Path, replica_id: int = -1) -> None:
        self.partitions = {key: open_partition(directory, "orders", key[1]) for key in (KEY, OTHER)}
        self.session = FetchSession([position(KEY), position(OTHER)], replica_id=replica_id)
        self.newest = NewestBatches()

    def read(self, max_bytes: int = 1_000_000, max_files: int = 100, rack: str = "") -> Reading:
        ready = self.session.to_read()
        for fetched in ready:
            fetched.find(lambda key: self.partitions[key])
        if self.session.is_follower:
            report_followers(self.session, ready, broker_epoch=7)
        reading = Reading(
            replica_id=self.session.replica_id, max_bytes=max_bytes, max_files=max_files, rack=rack
        )
        reading.read_blocking(ready)
        assert has_nothing_new(self.session) <= (not reading.byte_count and not reading.must_answer)
        return reading


def bytes_in(partition: Partition) -> int:
    return partition.log.size_bytes


def test_the_first_batch_comes_even_if_it_is_too_large(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x" * 5000)
    append(fetcher.partitions[KEY], b"y" * 5000)
    append(fetcher.partitions[OTHER], b"z" * 5000)
    first, other = fetcher.read(max_bytes=100).answers
    assert first.records is not None and len(first.records) < 6000
    assert other.records is None


def test_later_partitions_obey_the_limit(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x" * 1000)
    append(fetcher.partitions[OTHER], b"y" * 1000)
    append(fetcher.partitions[OTHER], b"z" * 1000)
    limit = bytes_in(fetcher.partitions[KEY]) + bytes_in(fetcher.partitions[OTHER]) // 2
    assert fetcher.read(max_bytes=limit).byte_count == limit


@pytest.mark.parametrize("files", [0, 1])
def test_an_answer_holds_open_no_more_files_than_it_may(tmp_path: Path, files: int) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x")
    append(fetcher.partitions[OTHER], b"y")
    first, other = fetcher.read(max_files=files).answers
    assert first.records is not None, "one there must be, or its client gets nowhere"
    assert other.records is None


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_limit_of_nothing_still_gives_one_batch(tmp_path: Path, limit: int) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[KEY], b"x")
    append(fetcher.partitions[OTHER], b"y")
    answers = fetcher.read(max_bytes=limit).answers
    assert [answer.records is not None for answer in answers] == [True, False]


def test_an_error_of_one_partition_leaves_the_other_alone(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    append(fetcher.partitions[OTHER], b"fine")
    fetcher.session.update([position(KEY, 77)])
    reading = fetcher.read()
    assert reading.must_answer
    broken, fine = reading.answers
    assert broken.error is not None and broken.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fine.error is None and fine.records is not None


def test_a_log_that_went_another_way(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    partition = fetcher.partitions[KEY]
    append(partition, b"epoch 0")
    partition.leader_epoch = 2
    append(partition, b"epoch 2")
    fetcher.session.update([position(KEY, 2, last_fetched_epoch=1)])
    reading = fetcher.read()
    assert reading.must_answer
    assert reading.answers[0].diverging_epoch == (0, 1)
    fetcher.session.update([position(KEY, 2, last_fetched_epoch=2)])
    assert fetcher.read().answers[0].diverging_epoch is None


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_another_leader_epoch_is_refused_at_the_end_of_the_log_too(
    tmp_path: Path, epoch: int, code: ErrorCode
) -> None:
    fetcher = Fetcher(tmp_path)
    fetcher.partitions[KEY].leader_epoch = 1
    fetcher.session.update([position(KEY, leader_epoch=epoch)])
    reading = fetcher.read()
    assert reading.must_answer
    assert reading.answers[0].error is not None and reading.answers[0].error.code == code


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
    answers = {answer.fetched.position.key: answer for answer in fetcher.read().answers}
    error = answers[KEY].error
    assert error is not None and error.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answers[OTHER].records is not None
    with pytest.raises(KafkaError):
        log.offset_for_timestamp(0)


# ---- followers


THIRD = 3


class Led(Partition):
    """A partition with two followers, whose fetches are noted."""

    __slots__ = ("noted",)

    @classmethod
    def open(cls, directory: Path) -> Led:
        partition = cls("orders", 0, TOPIC_ID, open_log(directory), alone())
        partition.take_over(led_by(1, 1, FOLLOWER, THIRD))
        partition.noted = []
        return partition

    def on_follower_fetch(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int
    ) -> None:
        super().on_follower_fetch(replica_id, broker_epoch, fetch_offset, log_start_offset)
        self.noted.append((replica_id, broker_epoch, fetch_offset, log_start_offset))


def follow(tmp_path: Path, asked: FetchPosition, replica_id: int = FOLLOWER) -> tuple[Led, Fetcher]:
    fetcher = Fetcher(tmp_path / "others", replica_id)
    partition = Led.open(tmp_path)
    fetcher.partitions[KEY] = partition
    fetcher.session = FetchSession([asked], replica_id=replica_id)
    return partition, fetcher


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark(tmp_path: Path) -> None:
    partition, follower = follow(tmp_path, position(KEY, 0, log_start_offset=0))
    append(partition, b"not everywhere yet")
    (answer,) = follower.read().answers
    assert answer.records is not None and answer.high_watermark == 0
    follower.session = FetchSession([position(KEY)])
    (answer,) = follower.read().answers
    assert answer.records is None and answer.error is None


def test_a_followers_progress_is_noted_before_it_is_answered(tmp_path: Path) -> None:
    partition, follower = follow(tmp_path, position(KEY, 1, log_start_offset=0))
    append(partition, b"one")
    follower.read()
    assert partition.noted == [(FOLLOWER, 7, 1, 0)]


@pytest.mark.parametrize(
    "asked",
    [
        position(KEY, 2, log_start_offset=0),  # beyond the end
        position(KEY, 1, last_fetched_epoch=1, log_start_offset=0),  # diverges
        position(KEY, 1, leader_epoch=-2, log_start_offset=0),  # follows another leader epoch
    ],
)
def test_what_a_follower_has_that_we_have_not_is_not_noted(tmp_path: Path, asked: FetchPosition) -> None:
    partition, follower = follow(tmp_path, asked)
    append(partition, b"one")
    assert follower.read().must_answer
    assert partition.noted == []


def test_a_broker_without_a_replica_is_refused(tmp_path: Path) -> None:
    partition, stranger = follow(tmp_path, position(KEY), replica_id=9)
    append(partition, b"one")
    reading = stranger.read()
    (answer,) = reading.answers
    assert reading.must_answer and answer.records is None
    assert answer.error is not None and answer.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_is_told_at_once_of_a_newer_high_watermark(tmp_path: Path) -> None:
    partition, follower = follow(tmp_path, position(KEY, 1, log_start_offset=0, high_watermark=0))
    append(partition, b"one")
    assert not follower.read().must_answer
    partition.on_follower_fetch(THIRD, BROKER_EPOCH, 1, 0)
    assert partition.high_watermark == 1
    reading = follower.read()
    assert reading.must_answer
    settle(follower.session, reading.answers)
    assert not follower.read().must_answer, "it has been told"


def test_a_consumer_is_sent_to_a_closer_replica(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    context = alone()
    context.racks = lambda: {1: "east", FOLLOWER: "west"}
    partition = fetcher.partitions[KEY] = open_partition(
        tmp_path, "near", state=led_by(1, 1, FOLLOWER), context=context
    )
    append(partition, b"one")
    commit(partition, 1)
    fetcher.session = FetchSession([position(KEY)])
    reading = fetcher.read(rack="west")
    (answer,) = reading.answers
    assert reading.must_answer and answer.records is None
    assert (answer.preferred_read_replica, answer.high_watermark) == (FOLLOWER, 1)
    (answer,) = fetcher.read(rack="east").answers
    assert answer.records is not None and answer.preferred_read_replica == NO_PREFERENCE
    fetcher.session = FetchSession([position(KEY)], replica_id=FOLLOWER)
    (answer,) = fetcher.read(rack="west").answers
    assert answer.records is not None, "a follower copies from its leader, wherever both are"


# ---- the newest batches


def read_newest(newest: NewestBatches, partition: Partition, offset: int) -> bytes | None:
    records = newest.read(partition, offset, 1_000_000, to_log_end=False, must_return_one=True)
    assert records is None or isinstance(records, bytes | bytearray)
    return records


def test_the_newest_batches_are_read_once(tmp_path: Path) -> None:
    newest, partition = NewestBatches(), open_partition(tmp_path)
    append(partition, b"one")
    first = read_newest(newest, partition, 0)
    assert first is not None and b"one" in first
    assert read_newest(newest, partition, 0) is first
    append(partition, b"two")
    longer = read_newest(newest, partition, 0)
    assert longer is not None and b"two" in longer
    assert read_newest(newest, partition, 2) is None


def test_what_changed_since_it_was_read_is_read_again(tmp_path: Path) -> None:
    newest, partition = NewestBatches(), open_partition(tmp_path)
    append(partition, b"one")
    first = read_newest(newest, partition, 0)
    partition.leader_epoch += 1  # another leader may have had other records
    assert read_newest(newest, partition, 0) is not first
    partition.delete_records_before(1)
    with pytest.raises(KafkaError):
        read_newest(newest, partition, 0)
    append(partition, b"two")
    assert read_newest(newest, partition, 1) is not None
    partition.take_offline()
    with pytest.raises(KafkaError):
        read_newest(newest, partition, 1)


def test_only_a_few_ranges_are_kept(tmp_path: Path) -> None:
    newest, partition = NewestBatches(), open_partition(tmp_path)
    for _ in range(MAX_ENTRIES + 10):
        append(partition, b"one")
    for offset in range(MAX_ENTRIES + 10):
        read_newest(newest, partition, offset)
    assert len(newest._entries) == MAX_ENTRIES


def test_a_follower_that_was_answered_before_the_high_watermark_rose_is_told_of_it_later(
    tmp_path: Path,
) -> None:
    """Nothing else may happen to the partition for long, and consumers may read from the follower."""
    partition = open_partition(tmp_path, state=led_by(1, 1, FOLLOWER, 3))
    append(partition, b"one")
    session = FetchSession([position(KEY, 1, log_start_offset=0)], replica_id=FOLLOWER, session_id=5)

    def answers() -> list[int]:
        ready = session.to_read()
        for fetched in ready:
            fetched.find(lambda _: partition)
        report_followers(session, ready, broker_epoch=7)
        reading = Reading(replica_id=FOLLOWER, max_bytes=1_000, max_files=10)
        reading.read_blocking(ready)
        return [answer.high_watermark for answer in settle(session, reading.answers)]

    assert answers() == [0], "the other follower has not fetched it yet"
    session.is_incremental = True
    assert answers() == []
    partition.on_follower_fetch(3, 7, 1, 0)
    assert partition.high_watermark == 1
    assert answers() == [1]
    assert answers() == []
