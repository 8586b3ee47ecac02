"""The sparse offset index of one segment: `<base offset>.index`.

An entry is (relative offset, position): the last offset of a batch, less the segment's base offset, and
where that batch starts in the log file; two big-endian int32. Entries ascend in both.

Memory holds only a suffix of the entries: new ones, written out some hundred at a time, and a few older
ones for readers near the end. `load` brings in the whole file. The suffix is replaced as one tuple, so
look-ups need no lock; whoever changes it holds the lock.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from klamm.storage.files import read_at, sync_file, truncate_file, write_at
from klamm.storage.segments.page_cache import WouldBlock

ENTRY_BYTES = 8
PENDING_LIMIT = 512
"""Entries that wait to be written: 2 MB of log at the usual interval, found again by recovery if lost."""
KEPT_ENTRIES = 512
"""Written entries that stay in memory for readers near the end of the log."""


class _Resident(NamedTuple):
    first: int
    """How many entries precede these in the file."""
    offsets: array[int]
    positions: array[int]


_NOTHING = _Resident(0, array("I"), array("I"))
"""Of all indexes without entries: most partitions of a broker that has many are empty. Never changed."""


class OffsetIndex:
    __slots__ = ("_lock", "_resident", "_written", "path")

    def __init__(self, path: str, entries: int = 0) -> None:
        """`entries` are in the file already."""
        self.path = path
        self._written = entries
        self._resident = _Resident(entries, array("I"), array("I")) if entries else _NOTHING
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._resident.first + len(self._resident.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        with self._lock:
            resident = self._resident
            if resident is _NOTHING:
                resident = self._resident = _Resident(0, array("I"), array("I"))
            resident.offsets.append(relative_offset)
            resident.positions.append(position)
            if resident.first + len(resident.offsets) - self._written >= PENDING_LIMIT:
                with contextlib.suppress(OSError):  # they stay pending; the append reports a full disk
                    self._write_pending()
                    self._trim(KEPT_ENTRIES)

    def lookup(self, relative_offset: int) -> int:
        """The position to scan from for an offset: that of the last entry not beyond it, else 0."""
        first, offsets, positions = self._resident
        place = bisect_right(offsets, relative_offset)
        if place:
            return positions[place - 1]
        if first:
            raise WouldBlock
        return 0

    def floor_position(self, position: int) -> int:
        """The last indexed position not beyond `position`, else 0."""
        first, _, positions = self._resident
        place = bisect_right(positions, position)
        if place:
            return positions[place - 1]
        if first:
            raise WouldBlock
        return 0

    def last_entry(self) -> tuple[int, int] | None:
        """(relative offset, position); reads the file if need be."""
        first, offsets, positions = self._resident
        if offsets:
            return offsets[-1], positions[-1]
        if not first:
            return None
        relative_offset, position = _decode(read_at(self.path, (first - 1) * ENTRY_BYTES, ENTRY_BYTES))
        return relative_offset[0], position[0]

    def load(self, check: Callable[[], None] | None = None) -> int:
        """Bring the whole index into memory; returns the bytes that takes.

        `check` raises if the file that was read may belong to another segment; then nothing changes.
        """
        with self._lock:
            first, offsets, positions = self._resident
            if first == 0:
                return 0
            data = read_at(self.path, 0, first * ENTRY_BYTES)
            if check is not None:
                check()
            file_offsets, file_positions = _decode(data)
            self._resident = _Resident(0, file_offsets + offsets, file_positions + positions)
            return len(file_offsets) * ENTRY_BYTES

    def unload(self) -> None:
        """Forget what the file holds."""
        with self._lock:
            self._trim(0)

    def entries(self) -> list[tuple[int, int]]:
        self.load()
        _, offsets, positions = self._resident
        return list(zip(offsets, positions, strict=True))

    def truncate(self, entries: int) -> None:
        """Keep the first `entries`, in memory and in the file."""
        self.load()
        with self._lock:
            _, offsets, positions = self._resident
            self._resident = _Resident(0, offsets[:entries], positions[:entries])
            self._written = min(self._written, entries)
            truncate_file(self.path, self._written * ENTRY_BYTES)

    def flush(self, *, sync: bool = False) -> None:
        """Write what is pending; with `sync` to the disk itself."""
        with self._lock:
            self._write_pending()
        if sync:
            sync_file(self.path)

    def _write_pending(self) -> None:
        first, offsets, positions = self._resident
        start = self._written - first
        count = len(offsets) - start
        if count == 0:
            return
        entries = array("I", bytes(count * ENTRY_BYTES))
        entries[::2] = offsets[start:]
        entries[1::2] = positions[start:]
        _to_big_endian(entries)
        write_at(self.path, entries.tobytes(), self._written * ENTRY_BYTES)
        self._written += count

    def _trim(self, keep: int) -> None:
        first, offsets, positions = self._resident
        drop = min(self._written - first, len(offsets) - keep)
        if drop > 0:
            self._resident = _Resident(first + drop, offsets[drop:], positions[drop:])


def _to_big_endian(entries: array[int]) -> None:
    """Or back: it is the same swap."""
    if sys.byteorder == "little":
        entries.byteswap()


def _decode(data: bytes) -> tuple[array[int], array[int]]:
    entries = array("I", data)
    _to_big_endian(entries)
    return entries[::2], entries[1::2]
