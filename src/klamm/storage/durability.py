"""Knows which part of a log is on the disk, and flushes the rest.

Everything below `recovery_point` is on the disk: batches, index entries, leader epochs, producer snapshots.
After an unclean stop, recovery checks the log from that point on. All of this blocks and runs in threads;
`lock` lets one thread in at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from klamm.storage.checkpoints import PARTITION_METADATA_FILE
from klamm.storage.files import sync_directory, sync_file
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.producers.snapshots import Snapshots
from klamm.storage.segments.segment import Segment
from klamm.storage.segments.segment_list import SegmentList


class Durability:
    __slots__ = (
        "_epochs",
        "_files_synced",
        "_segments",
        "files_made",
        "is_new_log",
        "last_flush_ms",
        "lock",
        "recovery_point",
        "snapshots",
    )

    def __init__(
        self,
        segments: SegmentList,
        epochs: LeaderEpochs,
        snapshots: Snapshots,
        recovery_point: int,
        *,
        has_new_files: bool,
        now_ms: int,
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self.snapshots = snapshots
        self.recovery_point = recovery_point
        self.last_flush_ms = now_ms
        """When the newest record that is on the disk was appended."""
        self.is_new_log = recovery_point == 0
        """True while a loss of power may take the log's directory: nothing of it was ever brought to the
        disk, also if it was closed cleanly while it was empty."""
        self.files_made = int(has_new_files or self.is_new_log)
        """How often files were added to the directory; `_files_synced` is this number at its last fsync."""
        self._files_synced = 0
        self.lock = threading.Lock()

    def go_on_in(self, other: Durability) -> None:
        """The log goes on in the files that `other` knows of, which have no less on the disk."""
        self.snapshots = other.snapshots
        self.recovery_point = other.recovery_point
        self.is_new_log = other.is_new_log
        self.files_made += 1

    def covers(self, end_offset: int) -> bool:
        """True if all below `end_offset` is on the disk, and all that is known of it."""
        return (
            end_offset <= self.recovery_point
            and not self.snapshots.has_pending
            and self._epochs.is_saved(end_offset)
        )

    def sync(self, segments: Sequence[Segment], end_offset: int, files_made: int) -> None:
        """Bring `segments` below `end_offset` to the disk. Called with the lock held."""
        directory = self._segments.directory
        if self.is_new_log:
            sync_file(f"{directory}/{PARTITION_METADATA_FILE}")
            sync_directory(os.path.dirname(directory))
            self.is_new_log = False
        self._epochs.save()
        for place, segment in enumerate(segments):
            is_last = place + 1 == len(segments)
            is_flushed = not is_last and segments[place + 1].base_offset <= self.recovery_point
            if is_flushed or segment.base_offset >= end_offset:
                continue
            try:
                segment.sync()
            except FileNotFoundError:
                if segment in self._segments.current:
                    raise
        has_written_snapshots = self.snapshots.has_pending
        self.snapshots.write_pending()
        if has_written_snapshots or files_made != self._files_synced:
            sync_directory(directory)
            self._files_synced = files_made
        if has_written_snapshots:
            self.snapshots.prune(self._segments.base_offsets())
