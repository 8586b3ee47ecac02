"""A bound on what segments hold open: file descriptors, and the memory of loaded indexes.

`FileHandle` closes its descriptor when the last reference to it goes. So evicting or deleting a segment
never pulls a file from under a read or a send that is on its way.

`OpenFiles` keeps the segments that hold something in a ring and evicts by second chance: a segment that
was used since the hand last passed is spared once. Eviction only drops what can be had again.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Protocol

OPEN_FILES_LIMIT = 4096
"""Enough for a busy broker; far below the usual limit of descriptors, which connections need too."""
INDEX_LIMIT_BYTES = 64 * 1024 * 1024
"""Loaded indexes of old segments: 64 MB map about 32 GB of log."""


class FileHandle:
    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str, flags: int = os.O_RDWR) -> None:
        self.fd = -1
        self.path = path
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Holder(Protocol):
    """What a segment is to `OpenFiles`."""

    recently_used: bool

    def release(self) -> None:
        """Close the file and drop the loaded index; the next use opens and loads them again."""


class OpenFiles:
    def __init__(self, limit: int = OPEN_FILES_LIMIT, index_limit_bytes: int = INDEX_LIMIT_BYTES) -> None:
        self.limit = limit
        self.index_limit_bytes = index_limit_bytes
        self._ring: OrderedDict[Holder, int] = OrderedDict()
        self._index_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def index_bytes(self) -> int:
        return self._index_bytes

    def admit(self, holder: Holder, index_bytes: int = 0) -> None:
        """`holder` has just opened its file or loaded `index_bytes` of index; others may be evicted."""
        evicted = []
        with self._lock:
            held_before = self._ring.pop(holder, 0)
            self._index_bytes -= held_before
            index_bytes += held_before
            others_limit_bytes = self.index_limit_bytes - index_bytes
            while self._ring and (len(self._ring) >= self.limit or self._index_bytes > others_limit_bytes):
                candidate, held_bytes = self._ring.popitem(last=False)
                if candidate.recently_used:
                    candidate.recently_used = False
                    self._ring[candidate] = held_bytes
                else:
                    self._index_bytes -= held_bytes
                    evicted.append(candidate)
            self._ring[holder] = index_bytes
            self._index_bytes += index_bytes
        for candidate in evicted:
            candidate.release()

    def forget(self, holder: Holder) -> None:
        """The segment is closed or deleted."""
        with self._lock:
            self._index_bytes -= self._ring.pop(holder, 0)
        holder.release()
