"""The table of followed files: identifies files through rotation, truncation and deletion. A core.

A file is identified by device and inode, and by a fingerprint of its first bytes, because the system reuses
inodes of deleted files. A path is only where a file was last seen. Rules:

- A renamed file stays the same file, whether its new name matches or not. A file without a matching name is
  read to its end, and closed when it has not grown for a while.
- A file that became shorter than its position, or whose first bytes changed, was truncated: it counts as a
  new file in the same place, and is read from its beginning.
- A file that appears again is read from where reading stopped.
- Device numbers may change when a machine restarts. A file with the same path, inode and first bytes is the
  same file then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

FINGERPRINT_BYTES = 256
"""Enough for the timestamps of first lines to differ, and one small read."""

_DIGEST_BYTES = 16

MOST_REMEMBERED = 10_000
"""How many closed files are remembered in case they appear again. The oldest are forgotten."""


class Fingerprint(NamedTuple):
    """The digest of a file's first bytes, and how many there were."""

    length: int
    digest: bytes

    @classmethod
    def of(cls, head: bytes) -> Fingerprint:
        head = head[:FINGERPRINT_BYTES]
        return cls(len(head), blake2b(head, digest_size=_DIGEST_BYTES).digest())

    def fits(self, head: bytes) -> bool:
        """True if a file that begins with `head` may be the same file, perhaps grown."""
        return len(head) >= self.length and Fingerprint.of(head[: self.length]) == self


NO_FINGERPRINT = Fingerprint.of(b"")


@dataclass(slots=True, eq=False)
class TailedFile:
    """A file and the position of its next byte to read."""

    file_id: int
    path: str
    device: int
    inode: int
    fingerprint: Fingerprint = NO_FINGERPRINT
    position: int = 0
    """The next byte to read."""
    is_open: bool = False
    is_listed: bool = True
    """True if it has a name that matches the patterns."""
    grew_at: float = 0.0
    size: int = 0
    """The size at the last check."""


class Seen(NamedTuple):
    """A file in a listing. `head` is its first bytes, FINGERPRINT_BYTES at most."""

    path: str
    device: int
    inode: int
    size: int
    head: bytes


class Look(Enum):
    """What to do with an open file."""

    READ = "there are bytes to read"
    WAIT = "nothing new"
    RESTART = "it was truncated"
    RELEASE = "it is at its end, and its name no longer matches"


class FileTable:
    """All files that are or were followed."""

    def __init__(self, known: Iterable[TailedFile], *, release_after_s: float) -> None:
        self._files = {file.file_id: file for file in known}
        self._release_after_s = release_after_s
        self._next_id = max(self._files, default=0) + 1
        self._open: dict[tuple[int, int], TailedFile] = {}

    @property
    def open_files(self) -> Sequence[TailedFile]:
        return list(self._open.values())

    @property
    def closed_files(self) -> Sequence[TailedFile]:
        return [file for file in self._files.values() if not file.is_open]

    def is_followed(self, device: int, inode: int) -> bool:
        return (device, inode) in self._open

    def listed(self, seen: Iterable[Seen], now: float, *, is_listed: bool = True) -> list[TailedFile]:
        """Take a listing of all files that match the patterns; returns the files to open, in its order.

        The head of a file that is followed already is not used and may be empty. With `is_listed` false the
        listing has other names, among which remembered files may be found; no other files are opened then.
        """
        opened: list[TailedFile] = []
        there: set[tuple[int, int]] = set()
        for one in seen:
            place = (one.device, one.inode)
            if place in there:
                continue  # another link to the same file
            there.add(place)
            file = self._open.get(place)
            if file is None:
                file = self._remembered(one) or (self._added(one) if is_listed else None)
                if file is None:
                    continue
                file.device, file.is_open, file.grew_at = one.device, True, now
                self._open[place] = file
                opened.append(file)
            file.path = one.path
            file.is_listed = is_listed
        if is_listed:
            for place, file in self._open.items():
                file.is_listed = place in there
        return opened

    def look(self, file: TailedFile, size: int, head: bytes | None, now: float) -> Look:
        """What to do with an open file of `size` bytes. `head` is given if the file was written to."""
        if head is not None:
            file.grew_at = now
        file.size = size
        if size < file.position or (head is not None and not file.fingerprint.fits(head)):
            return Look.RESTART
        if head is not None and file.fingerprint.length < FINGERPRINT_BYTES:
            file.fingerprint = Fingerprint.of(head)
        if size > file.position:
            return Look.READ
        if not file.is_listed and now - file.grew_at >= self._release_after_s:
            return Look.RELEASE
        return Look.WAIT

    def restarted(self, file: TailedFile, now: float) -> TailedFile:
        """Replace a truncated file by a new one in the same place, and return the new one."""
        successor = self._add(file.path, file.device, file.inode)
        successor.is_open, successor.is_listed, successor.grew_at = True, file.is_listed, now
        self._open[file.device, file.inode] = successor
        file.is_open = False
        del self._files[file.file_id]
        return successor

    def released(self, file: TailedFile, *, is_deleted: bool) -> None:
        """Note that a file is closed. It is remembered, unless it is deleted."""
        file.is_open = False
        self._open.pop((file.device, file.inode), None)
        if is_deleted:
            self._files.pop(file.file_id, None)

    def forget_oldest(self) -> list[TailedFile]:
        """Forget the oldest closed files beyond MOST_REMEMBERED; returns them."""
        closed = sorted((file.file_id, file) for file in self.closed_files)
        dropped = [file for _, file in closed[: max(len(closed) - MOST_REMEMBERED, 0)]]
        for file in dropped:
            del self._files[file.file_id]
        return dropped

    def _remembered(self, seen: Seen) -> TailedFile | None:
        """The remembered file that `seen` is, if any."""
        for file in self._files.values():
            is_place_same = file.inode == seen.inode and (
                file.device == seen.device or file.path == seen.path
            )
            if is_place_same and not file.is_open and file.fingerprint.fits(seen.head):
                return file
        return None

    def _added(self, seen: Seen) -> TailedFile:
        file = self._add(seen.path, seen.device, seen.inode)
        file.fingerprint = Fingerprint.of(seen.head)
        return file

    def _add(self, path: str, device: int, inode: int) -> TailedFile:
        file = TailedFile(self._next_id, path, device, inode)
        self._next_id += 1
        self._files[file.file_id] = file
        return file
