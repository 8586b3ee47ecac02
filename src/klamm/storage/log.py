"""One replica of a partition: a list of segments, the last of which is written to.

`append`, `maybe_roll` and warm reads run on the event loop; whatever may block (cold reads, look-ups by time,
flush, retention, close) runs in threads, at the same time. These rules make that safe:
- the segment list is replaced, never changed; a reader works on the list it took;
- `_lock` guards the end of the log (append, roll) and replacing the list; it is held for memory work, one
  write, or making or exchanging a segment's files, never for an fsync nor for reading;
- retention first takes segments out of the list and then renames their files: when a reader misses a file,
  the list is new already;
- bytes below a segment's `size` never change, and files that are deleted stay open for those who read them.

Order of an append: bytes to the kernel, then indexes and producers, then `log_end_offset`. A failed write
leaves everything as it was, and later ones work when the disk does.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
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
from klamm.storage.directory_names import DELETE_SUFFIX, STRAY_SUFFIX, put_away
from klamm.storage.files import LogDirFailure as LogDirFailure
from klamm.storage.files import remove_if_there, sync_directory, sync_file
from klamm.storage.log_config import LogConfig
from klamm.storage.log_loading import LoadedLog, LogLoader
from klamm.storage.producers.snapshots import Snapshots
from klamm.storage.retention import count_expired
from klamm.storage.rolling import choose_jitter_ms, has_room, is_old
from klamm.storage.segments.exchange import DeletedFiles, put_in_place, stage, unstage
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.page_cache import WouldBlock as WouldBlock
from klamm.storage.segments.scanning import BrokenChain
from klamm.storage.segments.segment import SEGMENT_SUFFIXES, Segment, segment_file
from klamm.storage.segments.segment import FileSlice as FileSlice
from klamm.storage.time_lookup import TimestampOffset, find_first_at_or_after, find_max_timestamp

_BASE_OFFSET = attrgetter("base_offset")


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic has message.timestamp.type=LogAppendTime."""
    log_start_offset: int
    is_duplicate: bool


class Log:
    __slots__ = (
        "_active",
        "_deleted_files",
        "_files_made",
        "_files_synced",
        "_flush_lock",
        "_is_new",
        "_last_append_ms",
        "_last_flush_ms",
        "_lock",
        "_names_lock",
        "_path",
        "_roll_jitter_ms",
        "_segments",
        "_snapshots",
        "_topic_id",
        "config",
        "epochs",
        "failure",
        "log_end_offset",
        "log_start_offset",
        "on_roll",
        "open_files",
        "producers",
        "recovery_point",
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
        self._path = directory
        self.topic_partition = topic_partition
        self.config = config
        self.open_files = open_files
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.on_roll: Callable[[Log], None] | None = None
        """Called, inside `append`, when a segment is full, so that the segment is flushed soon."""
        self.failure: str | None = None
        """Why nothing can be written any more: the log directory has failed."""
        self._segments: Sequence[Segment] = loaded.segments
        self._active: Segment = loaded.segments[-1]
        self._snapshots = Snapshots(directory, loaded.snapshots)
        self._deleted_files = DeletedFiles()
        self._last_append_ms = now_ms
        self._topic_id: TopicId | None = None
        self._is_new = False
        self._files_made = int(loaded.has_new_files)
        """How often files were added to the directory; `_files_synced` is this number at its last fsync."""
        self._files_synced = 0
        self._last_flush_ms = now_ms
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._names_lock = threading.Lock()
        """Held while files or the directory are renamed: another log may take the old name afterwards."""
        self._roll_jitter_ms = choose_jitter_ms(self.config, self._path, self.log_end_offset)

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
        return Path(self._path)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last is the active one."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def topic_id(self) -> TopicId | None:
        if self._topic_id is None:
            self._topic_id = read_partition_metadata(f"{self._path}/{PARTITION_METADATA_FILE}")
        return self._topic_id

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """Write down whose log this is; blocks."""
        write_partition_metadata(f"{self._path}/{PARTITION_METADATA_FILE}", topic_id)
        self._topic_id = topic_id
        self._is_new = True
        with self._lock:
            self._files_made += 1

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
                segment = self._active
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
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot write to {self.topic_partition} in {os.path.dirname(self._path)}: {reason}; "
            "free space or repair the disk, then send again",
        )

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it is older than segment.ms, also when nothing is written to it."""
        with self._lock:
            if not is_old(self._active, self.config, self._roll_jitter_ms, now_ms):
                return False
            self._roll(now_ms)
            return True

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and start a new one at the log's end. Called with the lock held."""
        base_offset = self.log_end_offset
        self._active.seal()
        preallocate_bytes = self.config.segment_bytes if self.config.preallocate else 0
        try:
            segment = Segment.create(
                self._path,
                base_offset,
                self.open_files,
                created_ms=now_ms,
                preallocate_bytes=preallocate_bytes,
            )
        except OSError:
            for suffix in SEGMENT_SUFFIXES:
                remove_if_there(segment_file(self._path, base_offset, suffix))
            raise
        self._files_made += 1
        self._snapshots.take(base_offset, self.producers)
        self._segments = [*self._segments, segment]
        self._active = segment
        self._roll_jitter_ms = choose_jitter_ms(self.config, self._path, self.log_end_offset)
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
        segments = self._segments
        try:
            return self._read(segments, offset, max_bytes, end_offset, must_return_one, may_block)
        except FileNotFoundError:
            with self._lock:  # if another thread was replacing the list, it has finished now
                if segments is self._segments:
                    raise
        return self.read(offset, max_bytes, end_offset, must_return_one=must_return_one, may_block=may_block)

    def _read(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        end_offset: int,
        must_return_one: bool,
        may_block: bool,
    ) -> FileSlice | None:
        place = len(segments) - 1
        if offset < segments[place].base_offset:
            place = bisect_right(segments, offset, key=_BASE_OFFSET) - 1
        while place < len(segments):
            segment = segments[place]
            start = segment.locate(offset, may_block)
            if start is not None:
                break
            place += 1  # compaction may leave nothing between the offset and the segment's end
        else:
            return None
        if place + 1 < len(segments):
            stop, next_offset = segment.size, segments[place + 1].base_offset
        else:
            with self._lock:  # so that size and log end belong together
                stop, next_offset = segment.size, self.log_end_offset
        if end_offset < next_offset:
            next_offset = end_offset
            end = segment.locate(end_offset, may_block)
            stop = stop if end is None else end
        if stop - start > max_bytes:
            stop, next_offset = segment.cut(start, start + max_bytes, may_block)
            if stop == start and must_return_one:
                stop = start + segment.batch_size_at(start, may_block)
                next_offset = -1
        if stop <= start:
            return None
        file_slice = segment.slice(start, stop - start, may_block)
        if next_offset >= 0:
            segment.note_cursor(next_offset, stop)
        return file_slice

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
            segments = self._segments
            try:
                found = find(segments)
                if not any(segment.is_deleted for segment in segments):
                    return found
            except FileNotFoundError as error:
                with self._lock:
                    if segments is self._segments:
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
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed >= config.flush_messages or (
            now_ms - self._last_flush_ms >= config.flush_ms and unflushed > 0
        )

    @property
    def has_unflushed_segment(self) -> bool:
        """True if a full segment has not been flushed yet."""
        return self.recovery_point < self._active.base_offset

    def flush(self, upto: int | None = None) -> None:
        """Bring the log below `upto` (all of it if None) to the disk; then the recovery point moves.

        What has rolled is flushed in the background with `upto` = the active segment's base offset.
        """
        with self._flush_lock:
            with self._lock:
                end = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
                segments = self._segments
                last_append_ms = self._last_append_ms
                files_made = self._files_made
            if end <= self.recovery_point and not self._snapshots.has_pending and not self.epochs.is_dirty:
                return
            try:
                self._sync(segments, end, files_made)
            except LogDirFailure as error:
                self.failure = str(error)
                raise
            except OSError as error:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"cannot flush {self.topic_partition}: {error}"
                ) from error
            self.recovery_point = max(self.recovery_point, end)
            self._last_flush_ms = last_append_ms

    def _sync(self, segments: Sequence[Segment], end: int, files_made: int) -> None:
        if self._is_new:
            sync_file(f"{self._path}/{PARTITION_METADATA_FILE}")
            sync_directory(os.path.dirname(self._path))
            self._is_new = False
        self.epochs.save()
        for place, segment in enumerate(segments):
            is_last = place + 1 == len(segments)
            is_flushed = not is_last and segments[place + 1].base_offset <= self.recovery_point
            if is_flushed or segment.base_offset >= end:
                continue
            try:
                segment.sync()
            except FileNotFoundError:
                if segment in self._segments:
                    raise
        has_written_snapshots = self._snapshots.has_pending
        self._snapshots.write_pending()
        if has_written_snapshots or files_made != self._files_synced:
            sync_directory(self._path)
            self._files_synced = files_made
        if has_written_snapshots:
            self._snapshots.prune(segment.base_offset for segment in self._segments)

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
            segments, log_end_offset = self._segments, self.log_end_offset
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
                with self._lock:
                    if segments is self._segments:
                        raise
                continue  # compaction has replaced what was looked at
            expired = self._take_out(segments, count, log_end_offset, now_ms)
            if expired is not None:
                break
        if not expired:
            return 0
        with self._names_lock:
            if expired[0].directory == self._path:
                self._deleted_files.take_over(expired, now_ms + self.config.file_delete_delay_ms)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._snapshots.prune(segment.base_offset for segment in self._segments)
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
            if self._segments[:count] != expired:
                return None
            if count == len(self._segments):
                self._roll(now_ms)
            self._segments = self._segments[count:]
            self.log_start_offset = max(self.log_start_offset, self._segments[0].base_offset)
            return expired

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._deleted_files)

    def remove_deleted_files(self, now_ms: int) -> int | None:
        """Remove files of deleted segments that are due; returns when the next ones are, if any are left."""
        return self._deleted_files.remove_due(now_ms)

    def replace_segments(self, cleaned: Segment, replaced: Sequence[Segment], now_ms: int) -> bool:
        """Put a compacted segment, whose `.cleaned` files are on the disk, in the place of others.

        A crash at any moment leaves the old segments or the new one. False, and nothing has changed, if
        retention has taken one of the old ones meanwhile, or the log was put away.
        """
        stage(cleaned)
        with self._names_lock, self._lock:
            if cleaned.directory != self._path:
                return False
            gone = set(replaced)
            kept = [segment for segment in self._segments if segment not in gone]
            if len(kept) + len(replaced) != len(self._segments):
                unstage(cleaned)
                return False
            self._deleted_files.take_over(replaced, now_ms + self.config.file_delete_delay_ms)
            put_in_place(cleaned)
            self._segments = sorted([*kept, cleaned.in_place()], key=_BASE_OFFSET)
        sync_directory(self._path)
        self._snapshots.prune(segment.base_offset for segment in self._segments)
        return True

    def close(self, *, clean: bool = True) -> None:
        """Close the files; if `clean`, flush first, so that opening the log again needs no recovery."""
        try:
            if clean and self.failure is None:
                with self._lock:
                    active, was_sealed = self._active, self._active.is_sealed
                    if not was_sealed:
                        active.seal()
                        self._files_made += 1
                    if self.producers or self.size_bytes:
                        self._snapshots.take(self.log_end_offset, self.producers)
                if not was_sealed:
                    active.sync()
                self.flush()
        finally:
            for segment in self._segments:
                self.open_files.forget(segment)

    def rename_for_delete(self) -> None:
        """Rename the directory, so that a new topic of the same name can be made at once."""
        self._put_away(DELETE_SUFFIX, "the partition is deleted")

    def rename_as_stray(self) -> None:
        """Rename the directory and keep its content, for a person to decide."""
        self._put_away(STRAY_SUFFIX, "the partition belongs to no topic")

    def _put_away(self, suffix: str, failure: str) -> None:
        self.failure = failure
        with self._names_lock:
            self._path = put_away(self._path, suffix)
