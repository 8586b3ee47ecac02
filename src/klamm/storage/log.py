"""One replica of a partition: all that can be done with it besides appending, which is `LogEnd`'s part, and
truncation, which is `CuttableLog`'s.

Its other parts lie beside it: the list of segments and the rules of working on it from several threads
(segments/segment_list), finding what is read (reading, time_lookup), what of it is on the disk (durability),
what may be deleted (retention), and where it is cut (truncation).

`append`, `maybe_roll` and warm reads run on the event loop; whatever may block (cold reads, look-ups by time,
flush, retention, truncation, close) runs in threads, at the same time. Files that are deleted stay open for
those who read them. Bytes below a segment's `size` never change; truncation takes them away, and then nothing
is written in their place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.records.batch import Buffer
from klamm.storage.checkpoints import (
    PARTITION_METADATA_FILE,
    read_partition_metadata,
    write_partition_metadata,
)
from klamm.storage.cuttable_log import CuttableLog
from klamm.storage.directory_names import DELETE_SUFFIX, STRAY_SUFFIX
from klamm.storage.files import LogDirFailure as LogDirFailure
from klamm.storage.files import sync_directory
from klamm.storage.log_config import LogConfig
from klamm.storage.log_end import AppendResult as AppendResult
from klamm.storage.log_loading import LogLoader
from klamm.storage.reading import find_slice
from klamm.storage.replicated import ReplicatedAppend as ReplicatedAppend
from klamm.storage.replicated import check_batches
from klamm.storage.retention import count_expired
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.page_cache import WouldBlock as WouldBlock
from klamm.storage.segments.scanning import BrokenChain
from klamm.storage.segments.segment import CorruptSegment, Segment
from klamm.storage.segments.segment import FileSlice as FileSlice
from klamm.storage.time_lookup import TimestampOffset, find_first_at_or_after, find_max_timestamp

TAIL_BYTES = 256 * 1024
"""What a log may still have to copy when it goes on in another directory: its appends wait for that long."""


class Log(CuttableLog):
    __slots__ = ()

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
        loader = LogLoader(path, topic_partition, config, open_files, now_ms, report)
        if os.path.isdir(path):
            loaded = loader.load(recovery_point, log_start_offset, clean=clean)
        else:
            os.makedirs(path)  # its files are made with the first batch
            loaded = loader.begin(log_start_offset)
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
        if self._topic_id is None and self._unmade is None:
            self._topic_id = read_partition_metadata(self._file(PARTITION_METADATA_FILE))
        return self._topic_id

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """Write down whose log this is; blocks, unless the log has no files yet."""
        unmade = self._unmade
        if unmade is not None:
            unmade.topic_id = topic_id
        else:
            write_partition_metadata(self._file(PARTITION_METADATA_FILE), topic_id)
        self._topic_id = topic_id
        self._disk.is_new_log = True
        with self._lock:
            self._disk.files_made += 1

    @property
    def has_files(self) -> bool:
        """False if nothing was ever written to this log."""
        return self._unmade is None

    def append_replicated(self, data: Buffer, now_ms: int) -> ReplicatedAppend | None:
        """Append batches as a follower: whole ones as fetched from the leader, with its offsets and epochs.

        Gaps between offsets are allowed: a leader's compaction leaves some. A last batch that is not whole is
        left out; None if there is no other. Raises CorruptBatch, and OFFSET_OUT_OF_RANGE for batches that
        begin below the log's end. After any error the log is as it was. May block.
        """
        view = memoryview(data)
        headers = check_batches(view)
        if not headers:
            return None
        first = headers[0]
        if self.size_bytes == 0 and first.base_offset < self.log_end_offset <= first.last_offset:
            # Records of this batch were deleted, and the leader's log starts inside of it.
            self._move_back(lambda: self._begin_anew(first.base_offset, self.log_start_offset, now_ms))
        return self._append_whole(view, headers, now_ms)

    # Reading.

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, must_return_one: bool, may_block: bool
    ) -> FileSlice | None:
        """Whole batches from the one that contains `offset`, below `end_offset`, of at most `max_bytes`.

        With `must_return_one` the first batch comes even if it is larger. None if there is nothing to
        return. Raises WouldBlock unless `may_block`, and OFFSET_OUT_OF_RANGE.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self._out_of_range(offset)
        if offset >= end_offset:
            return None
        with self._lock:  # so that size, log start and log end belong to these segments
            segments = self._segments.current
            active_size = self._segments.active.size
            log_start_offset = self.log_start_offset
            log_end_offset = self.log_end_offset
        if offset < log_start_offset:  # retention has just deleted it, and the next segment has other records
            raise self._out_of_range(offset)
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
        except (FileNotFoundError, CorruptSegment):
            if self._segments.is_current(segments):
                raise
        return self.read(offset, max_bytes, end_offset, must_return_one=must_return_one, may_block=may_block)

    def _out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self.topic_partition} has offsets {self.log_start_offset} to {self.log_end_offset}, "
            f"not {offset}",
        )

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
            except (OSError, BrokenChain, CorruptSegment) as error:
                if self._segments.is_current(segments):
                    raise self._cannot_read(error) from error

    def _cannot_read(self, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} cannot be read: {error}")

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch that is known here; -1 if none is."""
        return self.epochs.latest

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
            if disk.covers(end) or self._to_finish:
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

    @property
    def may_expire(self) -> bool:
        """False if there is nothing to delete or to roll: the log is one empty segment."""
        segments = self._segments.current
        return len(segments) > 1 or segments[0].size > 0

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
            with self._disk.lock:  # truncation must not make files of the same names meanwhile
                expired = self._take_out(segments, count, log_end_offset, now_ms)
                if expired:
                    self._segments.rename_deleted(expired, now_ms + self.config.file_delete_delay_ms)
            if expired is not None:
                break
        if not expired:
            return 0
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
            if not expired or self._is_truncating or self._to_finish:
                return ()
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

    # Moving it to another log directory; these block.

    def go_on_in(self, copy: Log, now_ms: int, on_moved: Callable[[], None]) -> str | None:
        """Go on in the files of `copy`, which has this log's records; returns where the old directory is put
        away for deletion. None, and nothing has changed, if the copy lacks more than TAIL_BYTES.

        Meanwhile the caller must truncate neither log and append nothing to `copy`. It notes the new place
        when `on_moved` is called, and renames the directory afterwards. At every moment one of the two
        directories has all that was on the disk before.
        """
        with self._disk.lock:  # nothing is acknowledged as flushed until the old name is gone from the disk
            with self._lock:
                if not self._copy_tail(copy, now_ms):
                    return None
            copy.epochs.replace_by(self.epochs)
            copy.flush()
            copy._secure_files()
            log_dir = os.path.dirname(self._segments.directory)
            with self._segments.names_lock, self._lock:
                self._check_writable()
                has_same_start = copy.log_start_offset == self.log_start_offset
                if not has_same_start or not self._copy_tail(copy, now_ms):
                    return None
                put_away_as = self._segments.go_on_in(copy._segments)
                self._disk.go_on_in(copy._disk)
                self.epochs.go_on_in(copy.epochs)
                self._roll_jitter_ms = copy._roll_jitter_ms
            copy.failure = "it has become the log"
            on_moved()
            sync_directory(log_dir)
        return put_away_as

    def _secure_files(self) -> None:
        """Bring the names of files to the disk, which a flush leaves out if the log is empty."""
        disk = self._disk
        with disk.lock:
            if self.has_files and self.log_start_offset == self.log_end_offset:
                disk.sync(self._segments.current, self.log_end_offset, disk.files_made)

    def _copy_tail(self, copy: Log, now_ms: int) -> bool:
        """Copy what was appended last, which is in the page cache; False if it is too much. Called with the
        lock, so that nothing is appended meanwhile."""
        active, offset = self._segments.active, copy.log_end_offset
        if offset == self.log_end_offset:
            return True
        position = active.locate(offset, may_block=True) if offset >= active.base_offset else None
        if position is None or active.size - position > TAIL_BYTES:
            return False
        tail = active.read_range(position, active.size - position, may_block=True)
        copy.append_replicated(tail, now_ms)
        return copy.log_end_offset == self.log_end_offset

    def rename(self, directory: str) -> None:
        """Rename the directory, in the same log directory, while the log is read and written."""
        with self._disk.lock:
            self._segments.rename(directory)
            self._disk.snapshots.directory = directory
            self.epochs.directory = directory
            sync_directory(os.path.dirname(directory))

    @property
    def is_on_disk(self) -> bool:
        """True if all of it is on the disk already, and closing it takes no time."""
        return (
            self._segments.active.is_sealed
            and not self._to_finish
            and self._disk.covers(self.log_end_offset)
            and (self._disk.snapshots.has(self.log_end_offset) or not (self.producers or self.size_bytes))
        )

    def close(self, *, clean: bool = True) -> None:
        """Close the files; if `clean`, flush first, so that opening the log again needs no recovery."""
        try:
            if clean and self._to_finish:
                raise self._storage_error("the log was truncated while the disk was full")
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
