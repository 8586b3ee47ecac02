"""The segments of one log, oldest first, and the names of their files.

Loop and threads work on the list at the same time. These rules make that safe:
- the list is replaced, never changed; a reader works on the list that it took;
- `lock` guards the end of the log (append, roll) and replacing the list; it is held for memory work, one
  write, or making or exchanging a segment's files, never for an fsync nor for reading;
- segments leave the list before their files are renamed: when a reader misses a file, the list is new
  already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from operator import attrgetter

from klamm.storage.directory_names import DELETE_SUFFIX, put_away
from klamm.storage.files import sync_directory
from klamm.storage.segments.exchange import DeletedFiles, put_in_place, stage, unstage
from klamm.storage.segments.segment import Segment

BASE_OFFSET = attrgetter("base_offset")


class SegmentList:
    __slots__ = ("active", "current", "deleted_files", "directory", "lock", "names_lock")

    def __init__(self, directory: str, segments: Sequence[Segment]) -> None:
        self.directory = directory
        self.current: Sequence[Segment] = segments
        self.active: Segment = segments[-1]
        self.deleted_files = DeletedFiles()
        self.lock = threading.Lock()
        self.names_lock = threading.Lock()
        """Held while files or the directory are renamed: another log may take the old name afterwards."""

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.current)

    def base_offsets(self) -> list[int]:
        return [segment.base_offset for segment in self.current]

    def is_current(self, segments: Sequence[Segment]) -> bool:
        """False if `segments` has been replaced. If a thread is replacing it, waits until it has."""
        with self.lock:
            return segments is self.current

    def add(self, segment: Segment) -> None:
        """`segment` goes to the end and is written to from now on. Called with the lock held."""
        self.current = [*self.current, segment]
        self.active = segment

    def drop_first(self, count: int) -> None:
        """Take the first `count` out; one must be left. Called with the lock held."""
        self.current = self.current[count:]

    def cut(self, first_dropped: int, old: Segment | None, left: Segment | None, due_ms: int) -> bool:
        """Take out the segments whose base offset is `first_dropped` or higher, the newest first, so that a
        crash leaves no hole. `left` takes the place of `old`, the one before them. Called with both locks.

        False, and nothing has changed, if `old` is no longer there, or nothing would be left.
        """
        kept = [segment for segment in self.current if segment.base_offset < first_dropped]
        dropped = self.current[len(kept) :]
        if not kept or (old is not None and kept[-1] is not old):
            return False
        if old is not None and left is not None:
            old.retire()
            kept[-1] = left
        self.current = kept
        self.active = kept[-1]
        self.deleted_files.take_over(dropped[::-1], due_ms)
        return True

    def drop_all(self, due_ms: int) -> None:
        """Rename the files of all, the newest first. `restart` must follow; called with both locks held."""
        self.deleted_files.take_over(self.current[::-1], due_ms)

    def restart(self, segment: Segment) -> None:
        """The log consists of `segment` alone. Called with the lock held."""
        self.current = [segment]
        self.active = segment

    def rename_deleted(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Give the files of segments that were taken out their `.deleted` names, unless the log was put
        away meanwhile. They may be removed at `due_ms`."""
        with self.names_lock:
            if segments[0].directory == self.directory:
                self.deleted_files.take_over(segments, due_ms)

    def replace(self, cleaned: Segment, replaced: Sequence[Segment], due_ms: int) -> bool:
        """Put a compacted segment, whose `.cleaned` files are on the disk, in the place of others.

        A crash at any moment leaves the old segments or the new one. False, and nothing has changed, if
        one of the old ones is gone meanwhile, or the log was put away.
        """
        with self.names_lock:
            if cleaned.directory != self.directory:
                return False
            stage(cleaned)
            with self.lock:
                gone = set(replaced)
                kept = [segment for segment in self.current if segment not in gone]
                if len(kept) + len(replaced) != len(self.current):
                    unstage(cleaned)
                    return False
                self.deleted_files.take_over(replaced, due_ms)
                put_in_place(cleaned)
                self.current = sorted([*kept, cleaned.in_place()], key=BASE_OFFSET)
            sync_directory(self.directory)
        return True

    def go_on_in(self, other: SegmentList) -> str:
        """Put the directory away for deletion, and go on with the segments of `other`; returns its new name.
        Called with both locks. After an OSError nothing has changed."""
        put_away_as = put_away(self.directory, DELETE_SUFFIX)
        for segment in self.current:
            segment.retire()
        self.directory = other.directory
        self.current = other.current
        self.active = other.active
        self.deleted_files = DeletedFiles()
        return put_away_as

    def rename(self, directory: str) -> None:
        """Rename the directory. Whoever misses a file meanwhile finds that the list is new."""
        with self.names_lock, self.lock:
            os.rename(self.directory, directory)
            self.directory = directory
            for segment in self.current:
                segment.relocate(directory)
            self.current = list(self.current)

    def put_away(self, suffix: str) -> None:
        """Rename the directory."""
        with self.names_lock:
            self.directory = put_away(self.directory, suffix)
