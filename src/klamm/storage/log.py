"""One replica of a partition: its end, where batches are appended, and what is known of all of it.

The parts lie beside it: the list of segments and the rules of working on it from several threads
(segments/segment_list), finding what is read (reading, time_lookup), what of it is on the disk (durability),
what may be deleted (retention).

`append`, `maybe_roll` and warm reads run on the event loop; whatever may block (cold reads, look-ups by time,
flush, retention, close) runs in threads, at the same time. Bytes below a segment's `size` never change, and
files that are deleted stay open for those who read them.

Order of an append: bytes to the kernel, then indexes and producers, then `log_end_offset`. A failed write
leaves everything as it was, and later ones work when the disk does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.records.batch import BatchHeader, patch_log_append_time, patch_offset_and_epoch
from klamm.records.validation import check_timestamps
from klamm.storage.checkpoints import (
    PARTITION_METADATA_FILE,
    read_partition_metadata,
    write_partition_metadata,
)
from klamm.storage.directory_names import DELETE_SUFFIX, STRAY_SUFFIX
from klamm.storage.durability import Durability
from klamm.storage.files import LogDirFailure as LogDirFailure
from klamm.storage.files import remove_if_there
from klamm.storage.log_config import LogConfig
from klamm.storage.log_loading import LoadedLog, LogLoader
from klamm.storage.producers.snapshots import Snapshots
from klamm.storage.reading import find_slice
from klamm.storage.retention import count_expired
from klamm.storage.rolling import choose_jitter_ms, has_room, is_old
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.page_cache import WouldBlock as WouldBlock
from klamm.storage.segments.scanning import BrokenChain
from klamm.storage.segments.segment import SEGMENT_SUFFIXES, Segment, segment_file
from klamm.storage.segments.segment import FileSlice as FileSlice
from klamm.storage.segments.segment_list import SegmentList
from klamm.storage.time_lookup import TimestampOffset, find_first_at_or_after, find_max_timestamp


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic has message.timestamp.type=LogAppendTime."""
    log_start_offset: int
    is_duplicate: bool


class Log:
    __slots__ = (
        "_disk",
        "_last_append_ms",
        "_lock",
        "_roll_jitter_ms",
        "_segments",
        "_topic_id",
        "config",
        "epochs",
        "failure",
        "log_end_offset",
        "log_start_offset",
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
        self.on_roll: Callable[[Log], None] | None = None
        """Called, inside `append`, when a segment is full, so that the segment is flushed soon."""
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
        self._last_append_ms = now_ms
        self._topic_id: TopicId | None = None
        self._roll_jitter_ms = choose_jitter_ms(config, directory, self.log_end_offset)

    @classmethod
    def open(
        cls,
        directory: Path | str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        open_files: OpenFiles,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool,
        now_ms: int,
        report: Callable[[str], None],
    ) -> Log:
        """Open what is in `directory` (made if need be), with recovery unless it was closed cleanly."""
        path = str(directory)
        os.makedirs(path, exist_ok=True)
        loader = LogLoader(path, topic_partition, config, open_files, now_ms, report)
        loaded = loader.load(recovery_point, log_start_offset, clean=clean)
        return cls(path, topic_partition, config, open_files, loaded, now_ms)

    # What it is.

    @property
    def directory(self) -> Path:
        return Path(self._segments.directory)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last is the active one."""
        return self._segments.current

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def recovery_point(self) -> int:
        """All below it is on the disk; recovery after an unclean stop begins there."""
        return self._disk.recovery_point

    @property
    def topic_id(self) -> TopicId | None:
        if self._topic_id is None:
            self._topic_id = read_partition_metadata(self._file(PARTITION_METADATA_FILE))
        return self._topic_id

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """Write down whose log this is; blocks."""
        write_partition_metadata(self._file(PARTITION_METADATA_FILE), topic_id)
        self._topic_id = topic_id
        self._disk.is_new_log = True
        with self._lock:
            self._disk.files_made += 1

    def _file(self, name: str) -> str:
        return f"{self._segments.directory}/{name}"

    # Writing.

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> AppendResult:
        """Append one validated batch as the leader of `leader_epoch`.

        `batch` must be writable: it gets its offset and epoch in place. A batch that its producer sent
        before is answered with where it lies, and not appended again.
        """
        with self._lock:
            if header.producer_id >= 0:
                repeated = self.producers.check(header)
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
            if self.failure is not None:
                raise self._storage_error(self.failure)
            try:
                segment = self._segments.active
                if not has_room(
                    segment, config, self._roll_jitter_ms, len(batch), last_offset, max_timestamp
                ):
                    segment = self._roll(now_ms)
                segment.append(batch, last_offset, max_timestamp, config.index_interval_bytes)
            except OSError as error:
                raise self._storage_error(str(error.strerror)) from error
            if leader_epoch > self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            if header.producer_id >= 0:
                self.producers.record(header, last_offset, now_ms)
            self._last_append_ms = now_ms
            self.log_end_offset = last_offset + 1
        return AppendResult(base_offset, last_offset, log_append_time_ms, self.log_start_offset, False)

    def _storage_error(self, reason: str) -> KafkaError:
        log_dir = os.path.dirname(self._segments.directory)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot write to {self.topic_partition} in {log_dir}: {reason}; "
            "free space or repair the disk, then send again",
        )

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it is older than segment.ms, also when nothing is written to it."""
        with self._lock:
            if not is_old(self._segments.active, self.config, self._roll_jitter_ms, now_ms):
                return False
            self._roll(now_ms)
            return True

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and start a new one at the log's end. Called with the lock held."""
        base_offset = self.log_end_offset
        directory = self._segments.directory
        self._segments.active.seal()
        preallocate_bytes = self.config.segment_bytes if self.config.preallocate else 0
        try:
            segment = Segment.create(
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
        self._disk.files_made += 1
        self._disk.snapshots.take(base_offset, self.producers)
        self._segments.add(segment)
        self._roll_jitter_ms = choose_jitter_ms(self.config, directory, base_offset)
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        with self._lock:
            return self.producers.remove_expired(now_ms, expiration_ms)

    # Reading.

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, must_return_one: bool, may_block: bool
    ) -> FileSlice | None:
        """Whole batches from the one that contains `offset`, below `end_offset`, of at most `max_bytes`.

        With `must_return_one` the first batch comes even if it is larger. None if there is nothing to
        return. Raises WouldBlock unless `may_block`, and OFFSET_OUT_OF_RANGE.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has offsets {self.log_start_offset} to {self.log_end_offset}, "
                f"not {offset}",
            )
        if offset >= end_offset:
            return None
        with self._lock:  # so that size and log end belong together
            segments = self._segments.current
            active_size = self._segments.active.size
            log_end_offset = self.log_end_offset
        try:
            return find_slice(
                segments,
                active_size,
                log_end_offset,
                offset,
                max_bytes,
                end_offset,
                must_return_one,
                may_block,
            )
        except FileNotFoundError:
            if self._segments.is_current(segments):
                raise
        return self.read(offset, max_bytes, end_offset, must_return_one=must_return_one, may_block=may_block)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record not before `timestamp`; blocks."""
        return self._look_up(
            lambda segments: find_first_at_or_after(segments, timestamp, self.log_start_offset)
        )

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp; blocks."""
        return self._look_up(lambda segments: find_max_timestamp(segments, self.log_start_offset))

    def _look_up(self, find: Callable[[Sequence[Segment]], TimestampOffset | None]) -> TimestampOffset | None:
        while True:
            segments = self._segments.current
            try:
                found = find(segments)
                if not any(segment.is_deleted for segment in segments):
                    return found
            except FileNotFoundError as error:
                if self._segments.is_current(segments):
                    raise self._cannot_read(error) from error
            except (OSError, BrokenChain) as error:
                raise self._cannot_read(error) from error

    def _cannot_read(self, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} cannot be read: {error}")

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(largest epoch not above `epoch`, where it ended); (-1, -1) if not known."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # Keeping it: these block, and run in threads.

    def needs_flush(self, now_ms: int) -> bool:
        """True if flush.messages or flush.ms ask for an fsync before the last append is acknowledged."""
        config = self.config
        disk = self._disk
        unflushed = self.log_end_offset - disk.recovery_point
        return unflushed >= config.flush_messages or (
            now_ms - disk.last_flush_ms >= config.flush_ms and unflushed > 0
        )

    @property
    def has_unflushed_segment(self) -> bool:
        """True if a full segment has not been flushed yet."""
        return self._disk.recovery_point < self._segments.active.base_offset

    def flush(self, upto: int | None = None) -> None:
        """Bring the log below `upto` (all of it if None) to the disk; then the recovery point moves.

        What has rolled is flushed in the background with `upto` = the active segment's base offset.
        """
        disk = self._disk
        with disk.lock:
            with self._lock:
                end = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
                segments = self._segments.current
                last_append_ms = self._last_append_ms
                files_made = disk.files_made
            if disk.covers(end):
                return
            try:
                disk.sync(segments, end, files_made)
            except LogDirFailure as error:
                self.failure = str(error)
                raise
            except OSError as error:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"cannot flush {self.topic_partition}: {error}"
                ) from error
            disk.recovery_point = max(disk.recovery_point, end)
            disk.last_flush_ms = last_append_ms

    def delete_records_before(self, offset: int) -> int:
        """Records below `offset` are no longer served; returns the log start offset."""
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to offset {offset}: {self.topic_partition} ends at {self.log_end_offset}",
            )
        with self._lock:
            self.log_start_offset = max(self.log_start_offset, offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        return self.log_start_offset

    def delete_expired(self, now_ms: int, deletable_before: int | None = None) -> int:
        """Take segments out of the log by age, size and log start offset; returns how many.

        Only what lies below `deletable_before` (the high watermark) may go. Their files are renamed, and
        removed by `remove_deleted_files` when file.delete.delay.ms has passed.
        """
        while True:
            segments, log_end_offset = self._segments.current, self.log_end_offset
            try:
                count = count_expired(
                    segments,
                    self.config,
                    now_ms=now_ms,
                    log_start_offset=self.log_start_offset,
                    log_end_offset=log_end_offset,
                    deletable_before=log_end_offset if deletable_before is None else deletable_before,
                )
            except FileNotFoundError:
                if self._segments.is_current(segments):
                    raise
                continue  # compaction has replaced what was looked at
            expired = self._take_out(segments, count, log_end_offset, now_ms)
            if expired is not None:
                break
        if not expired:
            return 0
        self._segments.rename_deleted(expired, now_ms + self.config.file_delete_delay_ms)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._disk.snapshots.prune(self._segments.base_offsets())
        return len(expired)

    def _take_out(
        self, segments: Sequence[Segment], count: int, log_end_offset: int, now_ms: int
    ) -> Sequence[Segment] | None:
        """Take the first `count` of `segments` out, as decided when the log ended at `log_end_offset`.

        None, and nothing has changed, if they are no longer the log's first ones.
        """
        with self._lock:
            if count == len(segments) and self.log_end_offset != log_end_offset:
                count -= 1  # the last one was still being written to
            expired = segments[:count]
            if not expired:
                return expired
            if self.segments[:count] != expired:
                return None
            if count == len(self.segments):
                self._roll(now_ms)
            self._segments.drop_first(count)
            self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
            return expired

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._segments.deleted_files)

    def remove_deleted_files(self, now_ms: int) -> int | None:
        """Remove files of deleted segments that are due; returns when the next ones are, if any are left."""
        return self._segments.deleted_files.remove_due(now_ms)

    def replace_segments(self, cleaned: Segment, replaced: Sequence[Segment], now_ms: int) -> bool:
        """Put a compacted segment, whose `.cleaned` files are on the disk, in the place of others.

        A crash at any moment leaves the old segments or the new one. False, and nothing has changed, if
        retention has taken one of the old ones meanwhile, or the log was put away.
        """
        is_replaced = self._segments.replace(cleaned, replaced, now_ms + self.config.file_delete_delay_ms)
        if is_replaced:
            self._disk.snapshots.prune(self._segments.base_offsets())
        return is_replaced

    def close(self, *, clean: bool = True) -> None:
        """Close the files; if `clean`, flush first, so that opening the log again needs no recovery."""
        try:
            if clean and self.failure is None:
                with self._lock:
                    active = self._segments.active
                    was_sealed = active.is_sealed
                    if not was_sealed:
                        active.seal()
                        self._disk.files_made += 1
                    if self.producers or self.size_bytes:
                        self._disk.snapshots.take(self.log_end_offset, self.producers)
                if not was_sealed:
                    active.sync()
                self.flush()
        finally:
            for segment in self.segments:
                self.open_files.forget(segment)

    def rename_for_delete(self) -> None:
        """Rename the directory, so that a new topic of the same name can be made at once."""
        self._put_away(DELETE_SUFFIX, "the partition is deleted")

    def rename_as_stray(self) -> None:
        """Rename the directory and keep its content, for a person to decide."""
        self._put_away(STRAY_SUFFIX, "the partition belongs to no topic")

    def _put_away(self, suffix: str, failure: str) -> None:
        self.failure = failure
        self._segments.put_away(suffix)
