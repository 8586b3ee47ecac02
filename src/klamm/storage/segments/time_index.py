"""The sparse time index of one segment: `<base offset>.timeindex`.

An entry is (timestamp, relative offset): the largest timestamp up to there and the last offset of the
batch that brought it; a big-endian int64 and int32. Timestamps ascend strictly. The last entry of a
segment that is no longer written to holds the largest timestamp of the whole segment.

Only time look-ups read it, in threads; so memory holds no more than what waits to be written and the last
entry.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable

from klamm.storage.files import read_at, sync_file, truncate_file, write_at
from klamm.storage.segments.offset_index import PENDING_LIMIT

ENTRY_BYTES = 12
_ENTRY = struct.Struct(">qI")


class TimeIndex:
    __slots__ = ("_last", "_lock", "_pending", "_written", "path")

    def __init__(self, path: str, entries: int = 0) -> None:
        """`entries` are in the file already."""
        self.path = path
        self._written = entries
        self._pending: list[tuple[int, int]] = []
        self._last: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._written + len(self._pending)

    def append_if_later(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless an earlier one covers it."""
        last = self.last_entry()
        if timestamp <= (last[0] if last else -1):
            return
        with self._lock:
            self._pending.append((timestamp, relative_offset))
            self._last = (timestamp, relative_offset)
            if len(self._pending) >= PENDING_LIMIT:
                with contextlib.suppress(OSError):  # they stay pending; the append reports a full disk
                    self._write_pending()

    def last_entry(self, check: Callable[[], None] | None = None) -> tuple[int, int] | None:
        """(timestamp, relative offset); reads the file once.

        `check` raises if the file that was read may belong to another segment; then nothing changes.
        """
        if self._last is None and self._written:
            data = read_at(self.path, (self._written - 1) * ENTRY_BYTES, ENTRY_BYTES)
            if check is not None:
                check()
            self._last = _ENTRY.unpack(data)
        return self._last

    def lookup(self, timestamp: int) -> int:
        """The relative offset to search from for a timestamp: that of the last entry not beyond it."""
        with self._lock:
            data = read_at(self.path, 0, self._written * ENTRY_BYTES) if self._written else b""
            pending = list(self._pending)
        for entry_timestamp, relative_offset in reversed(pending):
            if entry_timestamp <= timestamp:
                return relative_offset
        low, high = 0, len(data) // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if _ENTRY.unpack_from(data, middle * ENTRY_BYTES)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        return int(_ENTRY.unpack_from(data, (low - 1) * ENTRY_BYTES)[1]) if low else 0

    def entries(self) -> list[tuple[int, int]]:
        with self._lock:
            data = read_at(self.path, 0, self._written * ENTRY_BYTES) if self._written else b""
            return [*_ENTRY.iter_unpack(data), *self._pending]

    def truncate(self, entries: int) -> None:
        """Keep the first `entries`, in memory and in the file."""
        kept = self.entries()[:entries]
        with self._lock:
            self._pending = kept[self._written :]
            self._written = min(self._written, entries)
            self._last = kept[-1] if kept else None
            truncate_file(self.path, self._written * ENTRY_BYTES)

    def flush(self, *, sync: bool = False) -> None:
        """Write what is pending; with `sync` to the disk itself."""
        with self._lock:
            self._write_pending()
        if sync:
            sync_file(self.path)

    def _write_pending(self) -> None:
        if self._pending:
            data = b"".join(_ENTRY.pack(*entry) for entry in self._pending)
            write_at(self.path, data, self._written * ENTRY_BYTES)
            self._written += len(self._pending)
            self._pending = []
