"""Opening a partition's log from its directory: cleanly in a few reads, or with recovery."""

from __future__ import annotations

import os
from dataclasses import dataclass

from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchHeader
from klamm.storage.files import remove_if_there
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_config import LogConfig
from klamm.storage.producers.state import ProducerStates
from klamm.storage.producers.windows import LATELY_MS, fill_windows
from klamm.storage.recovery import (
    Listing,
    Report,
    bring_producers_up_to_date,
    complete_segment,
    has_damaged_index,
    list_directory,
    load_epochs,
    open_segments,
    rebuild_epochs,
    rebuild_indexes,
    recover_segment,
)
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, FirstSegment, Segment


@dataclass
class LoadedLog:
    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerStates
    epochs: LeaderEpochs
    snapshots: list[int]
    """The offsets of the producer snapshots that are there."""
    has_new_files: bool
    """True if a segment was made and the directory was not synced since."""


class LogLoader:
    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        open_files: OpenFiles,
        now_ms: int,
        report: Report,
    ) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.open_files = open_files
        self.now_ms = now_ms
        self.report = report
        self._has_new_files = False

    def load(self, recovery_point: int, log_start_offset: int, *, clean: bool) -> LoadedLog:
        if not os.listdir(self.directory):
            return self.begin(log_start_offset)
        listing = list_directory(self.directory, self.report)
        segments = open_segments(self.directory, listing, self.open_files, self.now_ms)
        epochs = load_epochs(self.directory, self.report)
        if not segments:
            segments = [self._create_segment(log_start_offset)]
        recovery_point = max(recovery_point, segments[0].base_offset)
        self._mend_indexes(segments, listing, recovery_point, clean)
        if clean:
            log_end_offset, is_whole = self._find_end(segments[-1])
            if not is_whole:
                recovery_point = segments[-1].base_offset
                clean = False
        if not clean:
            log_end_offset = self._recover(segments, recovery_point, epochs)
        if log_end_offset < log_start_offset:
            self.report(
                f"{self.topic_partition}: the log ends at {log_end_offset}, before its start offset "
                f"{log_start_offset}; it starts empty there"
            )
            self._remove(segments)
            segments = [self._create_segment(log_start_offset)]
            log_end_offset = log_start_offset
        epochs.truncate_from_end(log_end_offset + 1)
        if not epochs.entries:
            rebuild_epochs(segments, epochs)
        producers, snapshot = bring_producers_up_to_date(
            self.directory, listing.snapshots, segments, log_end_offset, self.report
        )
        fill_windows(producers, segments, self.now_ms - LATELY_MS if clean else 0)
        segments[-1].load_first_timestamp()
        for segment in segments:
            self.open_files.forget(segment)
        return LoadedLog(
            segments,
            max(log_start_offset, segments[0].base_offset),
            log_end_offset,
            min(recovery_point, log_end_offset),
            producers,
            epochs,
            [offset for offset in listing.snapshots if offset <= snapshot],
            self._has_new_files,
        )

    def begin(self, log_start_offset: int) -> LoadedLog:
        """A log in an empty directory: there is nothing to look for, which makes topics quick to create.

        Where a log begins at another offset than 0, the name of its first file is what tells so.
        """
        first = (
            self._create_segment(log_start_offset)
            if log_start_offset
            else FirstSegment(self.directory, self.open_files, base_offset=0, created_ms=self.now_ms)
        )
        return LoadedLog(
            segments=[first],
            log_start_offset=log_start_offset,
            log_end_offset=log_start_offset,
            recovery_point=log_start_offset,
            producers=ProducerStates(),
            epochs=LeaderEpochs(self.directory),
            snapshots=[],
            has_new_files=True,
        )

    def _create_segment(self, base_offset: int) -> Segment:
        self._has_new_files = True
        return Segment.create(self.directory, base_offset, self.open_files, created_ms=self.now_ms)

    def _mend_indexes(
        self, segments: list[Segment], listing: Listing, recovery_point: int, clean: bool
    ) -> None:
        """Rebuild missing or damaged indexes of the segments that recovery will not read."""
        for place, segment in enumerate(segments):
            is_last = place + 1 == len(segments)
            is_recovered = not clean and (is_last or segments[place + 1].base_offset > recovery_point)
            if is_recovered or segment.base_offset not in listing.log_sizes:
                continue
            end_offset = 2**63 if is_last else segments[place + 1].base_offset
            if has_damaged_index(segment, listing, end_offset):
                rebuild_indexes(segment, self.config)
                if not is_last:
                    segment.seal()
                self.report(
                    f"{segment.path(LOG_SUFFIX)}: its indexes were missing or damaged; built them anew"
                )

    def _find_end(self, active: Segment) -> tuple[int, bool]:
        """(log end offset, whether the segment is whole)"""
        if active.size == 0:
            return active.base_offset, True
        end_offset, _, broken = complete_segment(active, self.config)
        if broken is not None:
            self.report(f"{active.path(LOG_SUFFIX)}: {broken}, although it was closed cleanly; recovering it")
        return end_offset, broken is None

    def _recover(self, segments: list[Segment], recovery_point: int, epochs: LeaderEpochs) -> int:
        """Check what was written since the recovery point and cut what is not whole."""
        epochs.truncate_from_end(recovery_point)

        def note_epoch(header: BatchHeader) -> None:
            if header.base_offset >= recovery_point:
                epochs.assign(header.partition_leader_epoch, header.base_offset)

        end_offset = segments[-1].base_offset
        for place, segment in enumerate(segments):
            is_last = place + 1 == len(segments)
            if not is_last and segments[place + 1].base_offset <= recovery_point:
                continue
            end_offset, start, broken = recover_segment(segment, self.config, recovery_point, note_epoch)
            if broken is None:
                if segment.size > start and end_offset > recovery_point:
                    self.report(
                        f"{segment.path(LOG_SUFFIX)}: checked {segment.size - start} bytes, all whole"
                    )
                if is_last:
                    break
                if not self._has_hole(end_offset, segments[place + 1]):
                    segment.seal()
                    continue
                self.report(
                    f"{segment.path(LOG_SUFFIX)}: it ends at offset {end_offset}, before the next segment; "
                    "the log ends there"
                )
            else:
                self.report(
                    f"{segment.path(LOG_SUFFIX)}: {broken}; cut {segment.size - broken.position} bytes, "
                    f"the log ends at offset {end_offset}"
                )
                self._cut(segment, broken.position)
            if not is_last:
                self.report(f"{self.topic_partition}: dropped {len(segments) - place - 1} later segments")
                self._remove(segments[place + 1 :])
                del segments[place + 1 :]
            break
        return end_offset

    def _has_hole(self, end_offset: int, following: Segment) -> bool:
        """True if the end of a segment is lost: power failed before it was on the disk, and what was written
        after it to the next segment was there already. Compaction leaves such holes, too, and loses
        nothing."""
        return end_offset != following.base_offset and not self.config.cleanup_compact

    def _cut(self, segment: Segment, size: int) -> None:
        segment.size = size
        handle = segment.handle or segment.open_handle()
        os.ftruncate(handle.fd, size)

    def _remove(self, segments: list[Segment]) -> None:
        for segment in segments:
            self.open_files.forget(segment)
            for suffix in SEGMENT_SUFFIXES:
                remove_if_there(segment.path(suffix))
