"""The part of a log that moves its end back, as a follower: it is cut, or dropped to begin at another offset.

A truncation changes what is known of the log, and the names of files, in one step. What is left to do then
(cutting files, writing epochs) is a list of steps, each of which can be done again: a full disk may fail any
of them, and they are done when there is room. Meanwhile nothing is written. All of this blocks, and is on the
disk when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from klamm.storage.checkpoints import PARTITION_METADATA_FILE, write_partition_metadata
from klamm.storage.files import FULL_DISK, LogDirFailure, sync_directory
from klamm.storage.log_end import LogEnd
from klamm.storage.producers.state import ProducerStates
from klamm.storage.producers.windows import LATELY_MS, fill_windows
from klamm.storage.recovery import bring_producers_up_to_date
from klamm.storage.segments.segment import FirstSegment, Segment
from klamm.storage.truncation import cut_files, find_cut, shorten


def _nothing() -> None: ...


class CuttableLog(LogEnd):
    __slots__ = ()

    def truncate_to(self, offset: int, now_ms: int, on_cut: Callable[[], None] = _nothing) -> int:
        """Cut everything at or above `offset`; returns the new log end offset.

        A batch that spans `offset` goes as a whole, so the log may end below it. `on_cut` writes the recovery
        point to its checkpoint: nothing may be appended before. A crash at any moment leaves a log that was
        cut not at all, in part or as wanted. If the disk is full, KAFKA_STORAGE_ERROR is raised, and nothing
        can be written until the next call, or `finish_moving_back`, has done what is left. After any other
        OSError nothing can be written until the next start.
        """

        def cut() -> None:
            while offset < self.log_end_offset and not self._cut(offset, now_ms):
                pass  # compaction has replaced a segment meanwhile
            entries = self.epochs.entries
            if not self._to_finish and entries and entries[-1][1] >= self.log_end_offset:
                # An epoch without records, in which this broker was elected and replaced.
                self.epochs.truncate_from_end(self.log_end_offset)
                self.epochs.save()

        self._move_back(cut, on_cut)
        return self.log_end_offset

    def start_at(self, offset: int, now_ms: int, on_cut: Callable[[], None] = _nothing) -> None:
        """Drop all and begin empty at `offset`. For the caller, on errors and after a crash as with
        `truncate_to`."""
        self._move_back(lambda: self._begin_anew(offset, offset, now_ms), on_cut)

    @property
    def is_moved_back_in_part(self) -> bool:
        """True if a full disk has kept `truncate_to` or `start_at` from its end."""
        return bool(self._to_finish)

    @property
    def is_whole(self) -> bool:
        """False if the log directory has failed, or a truncation is not finished."""
        return self.failure is None and not self._to_finish

    def finish_moving_back(self) -> None:
        """Do what a full disk has kept from being done. Raises as `truncate_to`."""
        self._move_back(_nothing)

    def _move_back(self, move: Callable[[], None], on_cut: Callable[[], None] = _nothing) -> None:
        """No appends, rolls, flushes nor retention meanwhile."""
        with self._disk.lock:
            with self._lock:
                if self.failure is not None:
                    raise self._storage_error(self.failure)
                self._is_truncating = True
            try:
                self._finish()
                move()
                self._to_finish = (*self._to_finish, on_cut)
                self._finish()
            except LogDirFailure as error:
                self.failure = str(error)
                raise
            except OSError as error:
                if error.errno in FULL_DISK and self.failure is None:
                    raise self._failed_write(error) from error
                self.failure = str(error)
                raise self._storage_error(str(error)) from error
            finally:
                with self._lock:
                    self._is_truncating = False

    def _finish(self) -> None:
        """Do the steps that are left. One that fails can be done again."""
        while self._to_finish:
            self._to_finish[0]()
            self._to_finish = self._to_finish[1:]

    def _cut(self, offset: int, now_ms: int) -> bool:
        """False, and nothing has changed, if a segment was replaced meanwhile."""
        segments = self._segments.current
        try:
            cut = find_cut(segments, max(offset, segments[0].base_offset))
            is_all = cut.first_dropped <= segments[0].base_offset or cut.end_offset < self.log_start_offset
            if is_all or offset <= self.log_start_offset:
                offset = min(offset, max(cut.end_offset, self.log_start_offset))
                self._begin_anew(offset, offset, now_ms)
                return True
            left = None
            if cut.segment is not None:
                if not cut.segment.is_sealed:
                    with self._lock:
                        cut.segment.seal()
                left = shorten(cut.segment, cut.position, self.config)
        except FileNotFoundError:
            if self._segments.is_current(segments):
                raise
            return False
        due_ms = now_ms + self.config.file_delete_delay_ms
        with self._segments.names_lock, self._lock, self._failing_for_good():
            if not self._segments.cut(cut.first_dropped, cut.segment, left, due_ms):
                return False
            self.log_end_offset = cut.end_offset
            self._disk.recovery_point = min(self._disk.recovery_point, cut.end_offset)
            self._to_finish = (partial(self._complete_cut, left, now_ms),)
        return True

    def _complete_cut(self, left: Segment | None, now_ms: int) -> None:
        """Bring the files in line with the list of segments, and go on in a new one.

        In this order: dropped segments, then the one that lost its end, then the new one. Else a loss of
        power could leave two segments with the same offsets.
        """
        directory, end_offset = self._segments.directory, self.log_end_offset
        snapshots = self._disk.snapshots
        sync_directory(directory)
        if left is not None:
            cut_files(left)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.save()
        snapshots.drop_above(end_offset)
        segments = list(self._segments.current)
        producers, _ = bring_producers_up_to_date(
            directory, snapshots.offsets, segments, end_offset, lambda _: None
        )
        fill_windows(producers, segments, now_ms - LATELY_MS)
        with self._lock:
            self.producers = producers
            self._begin(self._make_segment(end_offset, now_ms))
        sync_directory(directory)

    def _begin_anew(self, base_offset: int, log_start_offset: int, now_ms: int) -> None:
        """Drop all; the next batch has `base_offset` or a higher one."""
        unmade = self._unmade
        if unmade is not None and unmade.topic_id is not None:
            # The first segment, which would have named the topic, is never made.
            write_partition_metadata(self._file(PARTITION_METADATA_FILE), unmade.topic_id)
        with self._segments.names_lock, self._lock, self._failing_for_good():
            self._segments.drop_all(now_ms + self.config.file_delete_delay_ms)
            self._disk.recovery_point = base_offset
            self.producers = ProducerStates()
            self.log_start_offset = log_start_offset
            self.log_end_offset = base_offset
            self._to_finish = (partial(self._begin_first, base_offset, now_ms), self._forget_all)

    def _begin_first(self, base_offset: int, now_ms: int) -> None:
        """Go on in a new segment, the only one."""
        with self._segments.names_lock, self._lock:
            self._segments.restart(self._make_segment(base_offset, now_ms))
            self._disk.files_made += 1

    def _forget_all(self) -> None:
        """Forget what was known of the records that are gone."""
        self._disk.snapshots.drop_above(-1)
        self.epochs.truncate_from_end(0)
        self.epochs.save()
        sync_directory(self._segments.directory)

    @contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """What fails here has changed a part of the files' names: only a start finds out which."""
        try:
            yield
        except OSError as error:
            self.failure = str(error)
            raise

    @property
    def _unmade(self) -> FirstSegment | None:
        active = self._segments.active
        return active if isinstance(active, FirstSegment) and not active.is_made else None

    def _file(self, name: str) -> str:
        return f"{self._segments.directory}/{name}"
