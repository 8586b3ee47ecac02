"""Which leader epoch wrote from which offset on: the partition's memory of its leaders.

Entries (epoch, start offset) ascend in both. They are kept in memory at once, and written to
`leader-epoch-checkpoint` before the log's recovery point passes them: recovery finds later ones again in
the batches, which carry their epoch.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import itemgetter

from klamm.storage.checkpoints import read_epochs, write_epochs

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_EPOCH = itemgetter(0)


class LeaderEpochs:
    __slots__ = ("_entries", "_is_dirty", "_lock", "path")

    def __init__(
        self, path: str, entries: tuple[tuple[int, int], ...] = (), *, is_dirty: bool = False
    ) -> None:
        self.path = path
        self._entries = entries
        self._is_dirty = is_dirty
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str) -> LeaderEpochs:
        return cls(path, tuple(read_epochs(path)))

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return self._entries

    @property
    def is_dirty(self) -> bool:
        """True if memory holds entries that are not in the file yet."""
        return self._is_dirty

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """A leader of `epoch` writes from `start_offset` on; an epoch that is not new changes nothing."""
        with self._lock:
            if epoch < 0 or epoch <= self.latest:
                return
            # Epochs that wrote no record below `start_offset` go.
            kept = tuple(entry for entry in self._entries if entry[1] < start_offset)
            self._entries = (*kept, (epoch, start_offset))
            self._is_dirty = True

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch not above `epoch`, the offset where it ended); (-1, -1) if not known."""
        entries = self._entries
        if not entries or epoch < 0 or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        place = bisect_right(entries, epoch, key=_EPOCH)
        return (entries[place - 1][0] if place else epoch), entries[place][1]

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        for epoch, start_offset in reversed(self._entries):
            if start_offset <= offset:
                return epoch
        return UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that start at `end_offset` or later."""
        with self._lock:
            kept = tuple(entry for entry in self._entries if entry[1] < end_offset)
            if kept != self._entries:
                self._entries = kept
                self._is_dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended at or before `start_offset`; the one that holds it starts there."""
        with self._lock:
            earlier = [entry for entry in self._entries if entry[1] <= start_offset]
            if not earlier:
                return
            kept = ((earlier[-1][0], start_offset), *self._entries[len(earlier) :])
            if kept != self._entries:
                self._entries = kept
                self._is_dirty = True

    def replace_by(self, other: LeaderEpochs) -> None:
        """Take over the entries of `other`, from another file."""
        with self._lock:
            self._is_dirty = self._is_dirty or self._entries != other.entries
            self._entries = other.entries

    def save(self) -> None:
        """Write the file if anything changed; blocks."""
        with self._lock:
            entries, is_dirty = self._entries, self._is_dirty
            self._is_dirty = False
        if is_dirty:
            try:
                write_epochs(self.path, list(entries))
            except BaseException:
                self._is_dirty = True
                raise
