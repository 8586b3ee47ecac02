"""Finds files on disk: by patterns, and renamed files that no pattern matches."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from klamm.ingest.files import FINGERPRINT_BYTES, Seen, TailedFile

PACKED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz", ".zip", ".lz4")
"""Suffixes of compressed old logs. They were read before they were compressed."""

MOST_REPORTED = 10_000
"""How many paths with reported errors are remembered. With more, errors may be reported again."""


class Listing:
    """The files that match the patterns. An error of a single file is reported once."""

    def __init__(
        self, patterns: Sequence[str], is_followed: Callable[[int, int], bool], report: Callable[[str], None]
    ) -> None:
        self._patterns = patterns
        self._is_followed = is_followed
        self._report = report
        self._reported: set[str] = set()
        self.unreadable: set[str] = set()

    def seen(self) -> list[Seen]:
        """All regular files that match, the least recently written first."""
        found: dict[str, tuple[int, Seen]] = {}
        for pattern in self._patterns:
            for path in glob.iglob(pattern, recursive=True):
                if path in found:
                    continue
                if path.endswith(PACKED_SUFFIXES):
                    self._say_once(path, f"{path} is compressed and is not read")
                elif (one := self._look_at(path)) is not None:
                    found[path] = one
        return [one for _, one in sorted(found.values(), key=lambda pair: (pair[0], pair[1].path))]

    def strays(self, files: Iterable[TailedFile]) -> Iterator[Seen]:
        """Files that were renamed within their folder."""
        folders: dict[str, set[int]] = {}
        for file in files:
            folders.setdefault(os.path.dirname(file.path) or ".", set()).add(file.inode)
        for folder, inodes in folders.items():
            try:
                paths = [entry.path for entry in os.scandir(folder) if entry.inode() in inodes]
            except OSError:
                continue  # the folder no longer exists
            for path in paths:
                one = self._look_at(path)
                if one is not None:
                    yield one[1]

    def _look_at(self, path: str) -> tuple[int, Seen] | None:
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                return None
            head = b""
            if not self._is_followed(status.st_dev, status.st_ino):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    status = os.fstat(descriptor)
                    head = os.pread(descriptor, FINGERPRINT_BYTES, 0)
                finally:
                    os.close(descriptor)
        except FileNotFoundError:
            return None  # renamed or deleted at this moment
        except OSError as error:
            self.unreadable.add(path)
            self._say_once(path, f"{path} cannot be read: {error.strerror}")
            return None
        self.unreadable.discard(path)
        return status.st_mtime_ns, Seen(path, status.st_dev, status.st_ino, status.st_size, head)

    def _say_once(self, path: str, text: str) -> None:
        if path not in self._reported:
            if len(self._reported) >= MOST_REPORTED:
                self._reported.clear()
            self._reported.add(path)
            self._report(text)
