"""The producer snapshots of one log: which are there, which are to be written.

One is due wherever a segment starts, and at the end of a log that is closed. Taking one is a shallow copy,
on the loop; writing it waits for the next flush, in a thread. If a crash comes first, recovery starts from
an older one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from klamm.storage.files import remove_if_there, sync_file
from klamm.storage.producers.state import ProducerStates
from klamm.storage.segments.segment import SNAPSHOT_SUFFIX, segment_file

_lock = threading.Lock()
"""Of all logs: it is held for a moment only, and never while a file is touched."""


class Snapshots:
    """Immutable tuples, of which most logs share the empty one: a broker may have ten thousand logs."""

    __slots__ = ("_pending", "directory", "offsets")

    def __init__(self, directory: str, offsets: Iterable[int]) -> None:
        self.directory = directory
        self.offsets = tuple(sorted(offsets))
        """The offsets of the snapshots on disk, ascending."""
        self._pending: tuple[tuple[int, ProducerStates], ...] = ()

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def has(self, offset: int) -> bool:
        """True if the snapshot of `offset` is on disk."""
        return offset in self.offsets

    def take(self, offset: int, producers: ProducerStates) -> None:
        """Remember the producers as they are at `offset`, which is the log's end."""
        with _lock:
            if offset not in self.offsets and all(offset != pending for pending, _ in self._pending):
                self._pending = (*self._pending, (offset, producers.copy()))

    def write_pending(self) -> None:
        """On the disk when this returns; what cannot be written stays pending. One caller at a time."""
        while self._pending:
            offset, producers = self._pending[0]
            path = segment_file(self.directory, offset, SNAPSHOT_SUFFIX)
            producers.write_snapshot(path)
            sync_file(path)
            with _lock:
                self.offsets = tuple(sorted({*self.offsets, offset}))
                self._pending = self._pending[1:]

    def drop_above(self, offset: int) -> None:
        """The log was cut at `offset`: those of later offsets are wrong. The caller syncs the directory."""
        with _lock:
            stale = [known for known in self.offsets if known > offset]
            self.offsets = tuple(known for known in self.offsets if known <= offset)
            self._pending = tuple(entry for entry in self._pending if entry[0] <= offset)
        for known in stale:
            remove_if_there(segment_file(self.directory, known, SNAPSHOT_SUFFIX))

    def prune(self, base_offsets: Iterable[int]) -> None:
        """Keep those that a segment starts with, and the newest."""
        with _lock:
            keep = {*base_offsets, *self.offsets[-1:]}
            stale = [offset for offset in self.offsets if offset not in keep]
            self.offsets = tuple(offset for offset in self.offsets if offset in keep)
        for offset in stale:
            remove_if_there(segment_file(self.directory, offset, SNAPSHOT_SUFFIX))
