"""Reads an open file in chunks of whole records. Needs klamm[arrow].

The descriptor stays open while the file is followed, so that the file is read to its end whatever happens to
its name. Memory is bounded by one chunk; of a longer line only the beginning is kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from klamm.ingest.files import FINGERPRINT_BYTES, TailedFile
from klamm.ingest.lines import NEWLINE, LineRules, Split, split
from klamm.ingest.recovery import Block
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np

CHUNK_BYTES = 4 * 1024 * 1024
"""How much is read at once. Larger chunks are not faster."""

MOST_MAX_BYTES = CHUNK_BYTES // 4
"""The largest --max-line-bytes: a chunk must hold a whole record and its end."""

MOST_BLOCK_BYTES = 900 * 1024
"""Blocks of this size fit into a record batch of 1 MiB, unless lines are very short."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of a file; `data` begins at its byte `first_byte`."""

    data: Array
    first_byte: int
    split: Split

    @property
    def end_byte(self) -> int:
        return self.first_byte + self.split.consumed

    def without(self, records: int) -> Chunk:
        """The chunk without its first `count` records."""
        starts = self.split.starts
        offset = int(starts[records]) if records < len(starts) else self.split.consumed
        rest = Split(
            starts[records:] - offset,
            self.split.ends[records:] - offset,
            self.split.consumed - offset,
            self.split.cut_lines,
        )
        return Chunk(self.data[offset:], self.first_byte + offset, rest)

    def cuts(self) -> list[tuple[int, int, int, int]]:
        """Blocks of at most MOST_BLOCK_BYTES, or of one record: first and end record, first and end byte."""
        starts, ends = self.split.starts, self.split.ends
        cuts = []
        first, first_byte = 0, self.first_byte
        while first < len(starts):
            end = max(int(np.searchsorted(ends, starts[first] + MOST_BLOCK_BYTES, "right")), first + 1)
            end_byte = self.first_byte + int(starts[end]) if end < len(starts) else self.end_byte
            cuts.append((first, end, first_byte, end_byte))
            first, first_byte = end, end_byte
        return cuts


class OpenFile:
    """A followed file with its open descriptor."""

    def __init__(self, file: TailedFile, descriptor: int) -> None:
        self.file = file
        self._descriptor = descriptor
        self._searched_to = 0
        """There is no newline between the position and here. Set for lines longer than a chunk."""
        self._written: tuple[int, int] | None = None
        """Size and modification time at the last check."""
        self.is_exhausted = False
        """True if the last read found no complete record."""
        self.size_at_start = os.fstat(descriptor).st_size

    @classmethod
    def open(cls, file: TailedFile) -> OpenFile | None:
        """Open a file; None if there is another file under its name by now."""
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (file.device, file.inode):
            os.close(descriptor)
            return None
        return cls(file, descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def restart(self, successor: TailedFile) -> None:
        """Continue with the file that replaced this truncated one, with the same descriptor."""
        self.file = successor
        self._searched_to = 0

    def status(self) -> tuple[int, int, bool]:
        """Size, number of names, and whether the file was written to since the last call, by its size and its
        modification time: a truncated file may have grown to its old size again."""
        status = os.fstat(self._descriptor)
        written = (status.st_size, status.st_mtime_ns)
        has_changed = written != self._written
        self._written = written
        return status.st_size, status.st_nlink, has_changed

    def head(self) -> bytes:
        return os.pread(self._descriptor, FINGERPRINT_BYTES, 0)

    def last_line_end(self) -> int:
        """The end of the last whole line, if it is near the end of the file; else the end of the file."""
        size = os.fstat(self._descriptor).st_size
        first = max(size - MOST_MAX_BYTES, 0)
        newline = os.pread(self._descriptor, size - first, first).rfind(b"\n")
        return first + newline + 1 if newline >= 0 or first == 0 else size

    def read(self, rules: LineRules, *, closes_group: bool, takes_partial: bool) -> Chunk | None:
        """The next records; None if no record is complete. Does not move the position."""
        position = self.file.position
        data = self._bytes(position, min(self.file.size - position, CHUNK_BYTES))
        is_full = len(data) == CHUNK_BYTES
        at_end = position + len(data) >= self.file.size
        found = split(
            data,
            rules,
            closes_group=closes_group and at_end,
            takes_partial=takes_partial and at_end,
            follows_partial=self._follows_partial(position),
        )
        if is_full and not found.consumed:
            # No record ends within the chunk: an open group before a very long line, or that line itself.
            found = split(data, rules, closes_group=True, follows_partial=self._follows_partial(position))
            if not found.consumed:
                return self._long_line(data, rules, takes_partial)
        return Chunk(data, position, found) if found.consumed else None

    def read_again(self, block: Block, rules: LineRules) -> Chunk | None:
        """Read the records of a noted block again; None if the file no longer has them."""
        data = self._bytes(block.first_byte, min(block.end_byte - block.first_byte, CHUNK_BYTES))
        if len(data) < min(block.end_byte - block.first_byte, CHUNK_BYTES):
            return None
        found = split(
            data,
            rules,
            closes_group=True,
            takes_partial=True,
            follows_partial=self._follows_partial(block.first_byte),
        )
        if block.end_byte - block.first_byte > len(data):  # a line longer than a chunk
            found = Split(found.starts[:1], found.ends[:1], block.end_byte - block.first_byte, 1)
        return Chunk(data, block.first_byte, found)

    def _long_line(self, data: Array, rules: LineRules, takes_partial: bool) -> Chunk | None:
        """The record of a line that is longer than a chunk, once its end is found."""
        position = self.file.position
        place = max(self._searched_to, position + len(data))
        end = None
        while end is None and place < self.file.size:
            more = self._bytes(place, min(self.file.size - place, CHUNK_BYTES))
            newlines = np.flatnonzero(more == NEWLINE)
            if len(newlines):
                end = place + int(newlines[0]) + 1
            elif not len(more):
                break
            place += len(more)
        self._searched_to = place
        if end is None and takes_partial:
            end = place
        if end is None:
            return None
        self._searched_to = 0
        starts, ends = np.zeros(1, np.int64), np.full(1, rules.max_bytes, np.int64)
        return Chunk(data, position, Split(starts, ends, end - position, 1))

    def _bytes(self, position: int, size: int) -> Array:
        data = np.empty(size, np.uint8)
        filled = 0
        while filled < size:
            got = os.preadv(self._descriptor, [data[filled:].data], position + filled)
            if not got:
                break
            filled += got
        return data[:filled]

    def _follows_partial(self, position: int) -> bool:
        """True if the byte before `position` is not a newline."""
        return position > 0 and os.pread(self._descriptor, 1, position - 1) != b"\n"
