"""Which leader epoch wrote from which offset on: the partition's memory of its leaders.

Entries (epoch, start offset) ascend in both. They are kept in memory at once, and written to
`leader-epoch-checkpoint` before the log's recovery point passes them: recovery finds later ones again in
the batches, which carry their epoch. An epoch without records need not be in the file: it ends where it
began, so nobody has to cut anything because of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import itemgetter

from klamm.storage.checkpoints import LEADER_EPOCH_FILE, read_epochs, write_epochs

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_EPOCH = itemgetter(0)


_lock = threading.Lock()
"""Of all logs: it is held for a moment only, and never while a file is touched."""


class LeaderEpochs:
    __slots__ = ("_entries", "_saved", "directory")

    def __init__(
        self, directory: str, entries: tuple[tuple[int, int], ...] = (), *, is_saved: bool = True
    ) -> None:
        """`is_saved` says that the file holds `entries`; if there are none, it need not be there."""
        self.directory = directory
        self._entries = entries
        self._saved = entries if is_saved else None
        """What the file holds; None if that is not known."""

    @classmethod
    def load(cls, directory: str) -> LeaderEpochs:
        return cls(directory, tuple(read_epochs(f"{directory}/{LEADER_EPOCH_FILE}")))

    @property
    def path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_FILE}"

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return self._entries

    def is_saved(self, end_offset: int) -> bool:
        """True if the file holds the epochs of the records below `end_offset`, and no other."""
        entries, saved = self._entries, self._saved
        return saved == entries or saved == tuple(entry for entry in entries if entry[1] < end_offset)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """A leader of `epoch` writes from `start_offset` on; an epoch that is not new changes nothing."""
        with _lock:
            if epoch < 0 or epoch <= self.latest:
                return
            # Epochs that wrote no record below `start_offset` go.
            kept = tuple(entry for entry in self._entries if entry[1] < start_offset)
            self._entries = (*kept, (epoch, start_offset))

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
        with _lock:
            self._entries = tuple(entry for entry in self._entries if entry[1] < end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended at or before `start_offset`; the one that holds it starts there."""
        with _lock:
            earlier = [entry for entry in self._entries if entry[1] <= start_offset]
            if not earlier:
                return
            self._entries = ((earlier[-1][0], start_offset), *self._entries[len(earlier) :])

    def replace_by(self, other: LeaderEpochs) -> None:
        """Take over the entries of `other`, from another file."""
        with _lock:
            self._entries = other.entries

    def go_on_in(self, other: LeaderEpochs) -> None:
        """Write to the file of `other` from here on."""
        self.directory = other.directory
        self._saved = other._saved

    def save(self) -> None:
        """Write the file if anything changed; blocks."""
        entries = self._entries
        if entries != self._saved:
            self._saved = None
            write_epochs(self.path, list(entries))
            self._saved = entries
