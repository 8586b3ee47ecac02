"""Reads what a fetch asks for: whole batches of each ready partition, as ranges of segment files.

`Reading` walks the partitions of a session that are ready and gathers the answer of each. It never waits:
data that the page cache lacks raises `WouldBlock`, and the same walk is then done in a thread. So a walk
changes nothing but itself. What the broker notes of a fetch is noted on the event loop: `report_followers`
before a walk, `settle` when its answers are sent.

A consumer reads up to the high watermark, a follower up to the log end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.closest_replica import NO_PREFERENCE
from klamm.replication.fetch_sessions import (
    CONSUMER,
    HIGH_WATERMARK_NOT_GIVEN,
    FetchedPartition,
    FetchPosition,
    FetchSession,
)
from klamm.replication.leader import diverging_epoch
from klamm.replication.newest_batches import NewestBatches
from klamm.replication.partition import Partition
from klamm.storage.log import FileSlice

logger = logging.getLogger("klamm.replication")


class PartitionAnswer(NamedTuple):
    """The answer of a fetch for one partition."""

    fetched: FetchedPartition
    error: KafkaError | None
    high_watermark: int
    log_start_offset: int
    records: FileSlice | bytes | bytearray | None
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, its end offset) if the fetcher's log diverges from ours."""
    preferred_read_replica: int = NO_PREFERENCE

    @property
    def topic(self) -> str | bytes:
        """Topic name or topic id, as the request gave it."""
        return self.fetched.position.key[0]

    @property
    def is_plain(self) -> bool:
        """True if the answer is records, or that there are none."""
        return (
            self.error is None
            and self.diverging_epoch is None
            and self.preferred_read_replica == NO_PREFERENCE
        )


class Reading:
    """What is read for one answer: at most `max_bytes` (the first batch even if larger), in at most
    `max_files` ranges of files."""

    __slots__ = (
        "_is_follower",
        "_max_bytes",
        "_max_files",
        "_rack",
        "_replica_id",
        "answers",
        "byte_count",
        "file_count",
        "must_answer",
    )

    def __init__(self, *, replica_id: int, max_bytes: int, max_files: int, rack: str = "") -> None:
        """`rack` is where a consumer is; it may be sent to a replica that is closer."""
        self._replica_id = replica_id
        self._is_follower = replica_id != CONSUMER
        self._rack = rack
        self._max_bytes = max_bytes
        self._max_files = max_files
        self.answers: list[PartitionAnswer] = []
        self.byte_count = 0
        self.file_count = 0
        self.must_answer = False
        """True if there is an error or a change that the client is told at once, whatever min_bytes is."""

    def read(self, ready: Iterable[FetchedPartition], newest: NewestBatches) -> None:
        """Read what `ready` have, on the event loop. Raises WouldBlock."""
        for fetched in ready:
            self._add(self._read_partition(fetched, newest))

    def read_blocking(self, ready: Iterable[FetchedPartition]) -> None:
        """As `read`, in a thread."""
        for fetched in ready:
            self._add(self._read_partition(fetched, None))

    def _add(self, answer: PartitionAnswer) -> None:
        self.answers.append(answer)
        if answer.records is not None:
            self.byte_count += len(answer.records)
            self.file_count += 1
        elif not answer.is_plain or _has_news_for_follower(answer):
            self.must_answer = True

    def _read_partition(self, fetched: FetchedPartition, newest: NewestBatches | None) -> PartitionAnswer:
        partition = fetched.partition
        position = fetched.position
        if partition is None:
            return PartitionAnswer(fetched, fetched.error, -1, -1, None)
        records: FileSlice | bytes | bytearray | None = None
        must_return_one = self.byte_count == 0
        bytes_left = self._max_bytes - self.byte_count if self.file_count < self._max_files else 0
        try:
            partition.check_leader_epoch(position.current_leader_epoch)
            diverging_epoch = find_diverging_epoch(partition, position)
            if self._rack and not self._is_follower:
                preferred = partition.closest_replica(self._rack, position.fetch_offset)
                if preferred != NO_PREFERENCE:
                    return _sent_to(preferred, fetched, partition)
            if partition.is_throttled_leader and self._is_follower and partition.holds_back(self._replica_id):
                must_return_one, bytes_left = False, 0
            if diverging_epoch is None and (bytes_left > 0 or must_return_one):
                max_bytes = min(position.max_bytes, bytes_left)
                if newest is None:
                    records = partition.read(
                        position.fetch_offset,
                        max_bytes,
                        to_log_end=self._is_follower,
                        must_return_one=must_return_one,
                        may_block=True,
                    )
                else:
                    records = newest.read(
                        partition,
                        position.fetch_offset,
                        max_bytes,
                        to_log_end=self._is_follower,
                        must_return_one=must_return_one,
                    )
        except KafkaError as error:
            # A follower whose offset is out of range begins anew where the leader's log starts.
            log_start_offset = partition.log.log_start_offset if self._is_follower else -1
            return PartitionAnswer(fetched, error.as_result(), -1, log_start_offset, None)
        except OSError as error:
            return PartitionAnswer(fetched, _unreadable(partition, error), -1, -1, None)
        return PartitionAnswer(
            fetched, None, partition.high_watermark, partition.log.log_start_offset, records, diverging_epoch
        )


def _sent_to(replica_id: int, fetched: FetchedPartition, partition: Partition) -> PartitionAnswer:
    return PartitionAnswer(
        fetched,
        None,
        partition.high_watermark,
        partition.log.log_start_offset,
        None,
        preferred_read_replica=replica_id,
    )


def _has_news_for_follower(answer: PartitionAnswer) -> bool:
    """True if the follower told us its log start or high watermark, and it is older than ours."""
    if has_new_log_start(answer.fetched, answer.log_start_offset):
        return True
    known = answer.fetched.position.high_watermark
    return known != HIGH_WATERMARK_NOT_GIVEN and answer.high_watermark > max(
        known, answer.fetched.high_watermark_told
    )


def has_new_log_start(fetched: FetchedPartition, log_start_offset: int) -> bool:
    """True if a follower, which tells its log start, has not been told ours. Consumers tell none (-1)."""
    told = fetched.position.log_start_offset
    return 0 <= told < log_start_offset and fetched.log_start_offset_told != log_start_offset


def _unreadable(partition: Partition, error: OSError) -> KafkaError:
    """The disk failed, or the partition was deleted while its files were being opened."""
    if not partition.is_offline:
        logger.error("%s-%d cannot be read: %s", partition.topic, partition.index, error)
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic}-{partition.index} cannot be read: {error}"
    )


def find_diverging_epoch(partition: Partition, position: FetchPosition) -> tuple[int, int] | None:
    """Where the fetcher's log parts from ours, as (epoch, its end offset); None if it does not."""
    diverging = diverging_epoch(partition.log, position.fetch_offset, position.last_fetched_epoch)
    if diverging is not None and min(diverging) < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic}-{partition.index} has no records of leader epoch "
            f"{position.last_fetched_epoch}",
        )
    return diverging


def has_nothing_new(session: FetchSession) -> bool:
    """True if a reading would find nothing at all: the client has everything, which is the usual case."""
    is_follower = session.is_follower
    for fetched in session.ready:
        partition, position = fetched.partition, fetched.position
        if partition is None or partition.is_offline:
            return False
        log = partition.log
        if (
            position.fetch_offset != (log.log_end_offset if is_follower else partition.high_watermark)
            or position.current_leader_epoch not in (-1, partition.leader_epoch)
            or position.last_fetched_epoch not in (-1, log.epochs.latest)
            or position.high_watermark < partition.high_watermark
            or has_new_log_start(fetched, log.log_start_offset)
        ):
            return False
    return True


def report_followers(session: FetchSession, ready: Iterable[FetchedPartition], broker_epoch: int) -> None:
    """Tell the partitions how far the follower is, before its request is answered.

    Its fetch offset says that it has all records before. That holds only if it follows this leader epoch and
    does not diverge. A partition that refuses the follower gives no records.
    """
    for fetched in ready:
        partition, position = fetched.partition, fetched.position
        if partition is None:
            continue
        try:
            partition.check_leader_epoch(position.current_leader_epoch)
            log = partition.log
            if (
                log.log_start_offset <= position.fetch_offset <= log.log_end_offset
                and find_diverging_epoch(partition, position) is None
            ):
                partition.on_follower_fetch(
                    session.replica_id, broker_epoch, position.fetch_offset, position.log_start_offset
                )
        except KafkaError as error:
            fetched.refuse(error)


def settle(session: FetchSession, answers: Iterable[PartitionAnswer]) -> list[PartitionAnswer]:
    """Choose what goes into the response, and remember what the client has been told with it.

    An incremental answer leaves out partitions with nothing new. A partition that gave records moves to the
    end of the line, so that a full response does not starve the others; one without records leaves the line
    and waits until it has some.
    """
    told: list[PartitionAnswer] = []
    for answer in answers:
        fetched = answer.fetched
        if session.partitions.get(fetched.position.key) is not fetched:
            continue  # forgotten by a later request, while a thread was reading
        session.ready.pop(fetched, None)
        has_something = answer.records is not None or not answer.is_plain
        partition = fetched.partition
        if partition is not None:
            _count(partition, answer, session)
        if has_something or _may_read_more(session, fetched):
            session.ready[fetched] = None
        elif session.session_id:
            fetched.wait(session)
        if (
            has_something
            or not session.is_incremental
            or answer.high_watermark != fetched.high_watermark_told
            or answer.log_start_offset != fetched.log_start_offset_told
        ):
            fetched.high_watermark_told = answer.high_watermark
            fetched.log_start_offset_told = answer.log_start_offset
            told.append(answer)
    return told


def _count(partition: Partition, answer: PartitionAnswer, session: FetchSession) -> None:
    counters = partition.counters
    counters.fetches += 1
    if answer.records is not None:
        if not session.is_follower:
            counters.bytes_out += len(answer.records)
            return
        counters.replication_bytes_out += len(answer.records)
        if partition.is_throttled_leader:
            partition.note_sent(len(answer.records))
    elif answer.error is not None:
        counters.note_failed_fetch(answer.error.code)


def _may_read_more(session: FetchSession, fetched: FetchedPartition) -> bool:
    """True when the byte limit, and not the end of the log, kept a partition from giving records.

    Or when it must be found again: it changed while a thread was reading.
    """
    partition = fetched.partition
    if partition is None or fetched.has_changed:
        return True
    end_offset = partition.log.log_end_offset if session.is_follower else partition.high_watermark
    return fetched.position.fetch_offset < end_offset
