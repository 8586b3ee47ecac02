"""The end of a log: where batches are appended, as a leader or as a follower, and where segments roll.

Order of an append: bytes to the kernel, then indexes and producers, then `log_end_offset`. A failed write
leaves everything as it was, and later ones work when the disk does. A follower's append of many batches
writes all of them behind the end first, in as many segments as they need, and only then makes them part of
the log.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.records.batch import BatchHeader, patch_log_append_time, patch_offset_and_epoch
from klamm.records.validation import check_timestamps
from klamm.storage.durability import Durability
from klamm.storage.files import remove_if_there
from klamm.storage.log_config import LogConfig
from klamm.storage.log_loading import LoadedLog
from klamm.storage.producers.snapshots import Snapshots
from klamm.storage.replicated import ReplicatedAppend, Run, divide
from klamm.storage.rolling import choose_jitter_ms, has_room, is_old
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.segment import SEGMENT_SUFFIXES, Segment, segment_file
from klamm.storage.segments.segment_list import SegmentList

logger = logging.getLogger("klamm.storage")


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic has message.timestamp.type=LogAppendTime."""
    log_start_offset: int
    is_duplicate: bool


class LogEnd:
    __slots__ = (
        "_disk",
        "_is_truncating",
        "_last_append_ms",
        "_last_refused",
        "_lock",
        "_roll_jitter_ms",
        "_segments",
        "_to_finish",
        "_topic_id",
        "config",
        "epochs",
        "failure",
        "log_end_offset",
        "log_start_offset",
        "on_failed_write",
        "on_roll",
        "open_files",
        "producers",
        "topic_partition",
    )

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        open_files: OpenFiles,
        loaded: LoadedLog,
        now_ms: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self.open_files = open_files
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.on_roll: Callable[[Any], None] | None = None
        """Called with this log, inside `append`, when a segment is full, so that it is flushed soon."""
        self.on_failed_write: Callable[[TopicPartition, OSError], None] | None = None
        """Called when a write fails, in the thread that writes."""
        self.failure: str | None = None
        """Why nothing can be written any more: the log directory has failed."""
        self._segments = SegmentList(directory, loaded.segments)
        self._lock = self._segments.lock
        self._disk = Durability(
            self._segments,
            loaded.epochs,
            Snapshots(directory, loaded.snapshots),
            loaded.recovery_point,
            has_new_files=loaded.has_new_files,
            now_ms=now_ms,
        )
        self._is_truncating = False
        """The log is being moved back."""
        self._to_finish: tuple[Callable[[], None], ...] = ()
        """The steps that are left of moving it back, because the disk was full. Nothing is written before."""
        self._last_append_ms = now_ms
        self._last_refused: tuple[int, int, int] | None = None
        self._topic_id: TopicId | None = None
        self._roll_jitter_ms = choose_jitter_ms(config, directory, self.log_end_offset)

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> AppendResult:
        """Append one validated batch as the leader of `leader_epoch`.

        `batch` must be writable: it gets its offset and epoch in place. A batch that its producer sent
        before is answered with where it lies, and not appended again.
        """
        with self._lock:
            if header.producer_id >= 0:
                try:
                    repeated = self.producers.check(header)
                except KafkaError as refusal:
                    self._report_refusal(header, refusal)
                    raise
                if repeated is not None:
                    return AppendResult(
                        repeated.last_offset - repeated.offset_delta,
                        repeated.last_offset,
                        repeated.timestamp if self.config.uses_log_append_time else -1,
                        self.log_start_offset,
                        True,
                    )
            config = self.config
            base_offset = self.log_end_offset
            last_offset = base_offset + header.last_offset_delta
            max_timestamp = header.max_timestamp
            log_append_time_ms = -1
            if config.uses_log_append_time:
                patch_log_append_time(batch, header.attributes, now_ms)
                log_append_time_ms = max_timestamp = now_ms
            else:
                check_timestamps(
                    header,
                    now_ms,
                    config.message_timestamp_before_max_ms,
                    config.message_timestamp_after_max_ms,
                )
            patch_offset_and_epoch(batch, base_offset, leader_epoch)
            if self.failure is not None or self._is_truncating or self._to_finish:
                self._check_writable()
            try:
                segment = self._segments.active
                if not has_room(
                    segment, config, self._roll_jitter_ms, len(batch), last_offset, max_timestamp
                ):
                    segment = self._roll(now_ms)
                segment.append(batch, last_offset, max_timestamp, config.index_interval_bytes)
            except OSError as error:
                raise self._failed_write(error) from error
            if leader_epoch > self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            if header.producer_id >= 0:
                self.producers.record(header, last_offset, now_ms)
            self._last_append_ms = now_ms
            self.log_end_offset = last_offset + 1
        return AppendResult(base_offset, last_offset, log_append_time_ms, self.log_start_offset, False)

    def _report_refusal(self, header: BatchHeader, refusal: KafkaError) -> None:
        """Say once why a batch was refused for its sequence or epoch, however often its producer sends it.

        Producers take such an answer for lost records, and some then write records a second time.
        """
        refused = (header.producer_id, header.producer_epoch, header.base_sequence)
        if refused != self._last_refused:
            self._last_refused = refused
            logger.warning("%s refuses a batch: %s", self.topic_partition, refusal.message)

    def _append_whole(
        self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int
    ) -> ReplicatedAppend:
        """Append batches that have their offsets and epochs. `headers` are those of `data`, and checked."""
        with self._lock:
            self._check_writable()
            if headers[0].base_offset < self.log_end_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"the leader of {self.topic_partition} sent offset {headers[0].base_offset}, "
                    f"the log ends at {self.log_end_offset}",
                )
            try:
                written = self._write_ahead(data, headers, now_ms)
            except OSError as error:
                raise self._failed_write(error) from error
            for run, segment in written:
                self._take_in(run, segment, now_ms)
            self._last_append_ms = now_ms
            self.log_end_offset = headers[-1].last_offset + 1
        return ReplicatedAppend(
            headers[0].base_offset,
            headers[-1].last_offset,
            sum(run.byte_count for run, _ in written),
            max(header.partition_leader_epoch for header in headers),
        )

    def _write_ahead(
        self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int
    ) -> list[tuple[Run, Segment]]:
        """Write batches behind the end of the log, where nobody sees them, in new segments where it rolls."""
        active = self._segments.active
        runs = divide(
            headers,
            active,
            self.log_end_offset,
            self.config,
            self._roll_jitter_ms,
            lambda offset: choose_jitter_ms(self.config, self._segments.directory, offset),
        )
        written: list[tuple[Run, Segment]] = []
        try:
            for run in runs:
                is_new = run.base_offset != active.base_offset
                segment = self._make_segment(run.base_offset, now_ms) if is_new else active
                written.append((run, segment))
                segment.write_ahead(data[: run.byte_count])
                data = data[run.byte_count :]
        except OSError:
            for _, segment in written:
                if segment is active:
                    active.drop_ahead()
                else:
                    segment.remove()
            raise
        return written

    def _take_in(self, run: Run, segment: Segment, now_ms: int) -> None:
        """Make batches that were written ahead part of the log."""
        if segment is not self._segments.active:
            with suppress(OSError):  # the next flush completes its indexes
                self._segments.active.seal()
            self._begin(segment)
        segment.take_in(run.headers, self.config.index_interval_bytes)
        for header in run.headers:
            if header.partition_leader_epoch > self.epochs.latest:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self.producers.record(header, header.last_offset, now_ms)

    def _check_writable(self) -> None:
        if self.failure is not None:
            raise self._storage_error(self.failure)
        if self._is_truncating:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is being truncated, as a follower"
            )
        if self._to_finish:
            full = OSError(errno.ENOSPC, "the disk was full when the log was truncated")
            raise self._failed_write(full)  # whoever waits for room finishes it

    def _failed_write(self, error: OSError) -> KafkaError:
        if self.on_failed_write is not None:
            self.on_failed_write(self.topic_partition, error)
        return self._storage_error(str(error.strerror))

    def _storage_error(self, reason: str) -> KafkaError:
        log_dir = os.path.dirname(self._segments.directory)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot write to {self.topic_partition} in {log_dir}: {reason}; "
            "free space or repair the disk, then send again",
        )

    def begin_epoch(self, epoch: int) -> None:
        """This broker leads from now on, in `epoch`: note it down before anything is appended in it.

        The entry is on the disk before the recovery point passes the first record of the epoch. A crash
        before that loses no more than recovery finds again in the batches.
        """
        with self._lock:
            self.epochs.assign(epoch, self.log_end_offset)

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it is older than segment.ms, also when nothing is written to it."""
        with self._lock:
            active = self._segments.active
            is_moving_back = self._is_truncating or self._to_finish
            if is_moving_back or not is_old(active, self.config, self._roll_jitter_ms, now_ms):
                return False
            self._roll(now_ms)
            return True

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and start a new one at the log's end. Called with the lock held."""
        self._segments.active.seal()
        segment = self._make_segment(self.log_end_offset, now_ms)
        self._begin(segment)
        return segment

    def _make_segment(self, base_offset: int, now_ms: int) -> Segment:
        directory = self._segments.directory
        preallocate_bytes = self.config.segment_bytes if self.config.preallocate else 0
        try:
            return Segment.create(
                directory,
                base_offset,
                self.open_files,
                created_ms=now_ms,
                preallocate_bytes=preallocate_bytes,
            )
        except OSError:
            for suffix in SEGMENT_SUFFIXES:
                remove_if_there(segment_file(directory, base_offset, suffix))
            raise

    def _begin(self, segment: Segment) -> None:
        """Go on in a new segment. Called with the lock held."""
        base_offset = segment.base_offset
        self._disk.files_made += 1
        self._disk.snapshots.take(base_offset, self.producers)
        self._segments.add(segment)
        self._roll_jitter_ms = choose_jitter_ms(self.config, self._segments.directory, base_offset)
        if self.on_roll is not None:
            self.on_roll(self)

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        with self._lock:
            return self.producers.remove_expired(now_ms, expiration_ms)
