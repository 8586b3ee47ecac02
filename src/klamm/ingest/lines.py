"""Splits a block of bytes into records: lines, or groups of lines. A core; needs klamm[arrow].

A block is a piece of a file that may end anywhere. Rules:

- Only complete records are taken from a block: `consumed` says up to which byte. The rest is in the next
  block. So the records of a file do not depend on how it is divided into blocks.
- The bytes that were taken, [start, start + consumed) of the file, give the same records when they are split
  again as a last block. Sending the rest of a block after a crash depends on that.
- A line ends with a newline, or CR and newline; neither is part of the record. The other bytes can be
  anything, and need not be text.
- No record is longer than `max_bytes`. A longer line is cut there and counted. A group of lines that would be
  longer, or have more than `max_lines` lines, continues in another record.

No Python object is made per line: numpy finds newlines, Arrow's regular expressions (RE2) find groups, and
numba kernels do the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from klamm.records.columns import copy_fields
from klamm.records.kernels import BYTES, INT64, INT64S, Array, kernel
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

NEWLINE = 10
CARRIAGE_RETURN = 13

DEFAULT_MAX_BYTES = 1_000_000
"""With its headers and key a record of this size fits into a request of max.request.size (1 MiB)."""

DEFAULT_MAX_LINES = 500
"""The longest stack traces have some hundreds of lines; with more, the pattern probably does not match."""


class BadPattern(ValueError):
    """A regular expression is not valid in RE2."""


@dataclass(frozen=True, slots=True)
class LineRules:
    """How bytes become records. `multiline_start` matches lines that begin a record; without it every line
    does."""

    max_bytes: int = DEFAULT_MAX_BYTES
    multiline_start: str | None = None
    max_lines: int = DEFAULT_MAX_LINES

    def check(self) -> None:
        """Raises BadPattern if the pattern is not valid."""
        if self.multiline_start is not None:
            _matches(np.zeros(1, np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64), self.multiline_start)


@dataclass(frozen=True, slots=True)
class Split:
    """The records of a block: record i is its bytes [starts[i], ends[i])."""

    starts: Array
    ends: Array
    consumed: int
    """How many bytes of the block are done, with newlines and cut bytes."""
    cut_lines: int
    """How many lines were longer than a record may be."""

    @property
    def count(self) -> int:
        return len(self.starts)


def split(
    data: Array,
    rules: LineRules,
    *,
    closes_group: bool = False,
    takes_partial: bool = False,
    follows_partial: bool = False,
) -> Split:
    """Split a block, an array of uint8.

    `closes_group`: the last group is complete. `takes_partial`: the last line is complete without its
    newline. `follows_partial`: the bytes before this block were taken without their newline, so a newline at
    its beginning does not end a record. A last block is split with both of the first two.
    """
    ends = np.flatnonzero(data == NEWLINE).astype(np.int64, copy=False)
    starts = np.zeros(len(ends), np.int64)
    np.add(ends[:-1], 1, out=starts[1:])
    whole = int(ends[-1]) + 1 if len(ends) else 0
    ends -= (data[np.maximum(ends - 1, 0)] == CARRIAGE_RETURN) & (ends > starts)
    if follows_partial and len(ends) and ends[0] == 0:
        starts, ends = starts[1:], ends[1:]
    if takes_partial and whole < len(data):
        starts, ends = np.append(starts, whole), np.append(ends, len(data))
        whole = len(data)
    if rules.multiline_start is None:
        cut = int(_cut_long(starts, ends, rules.max_bytes))
        return Split(starts, ends, whole, cut)
    return _grouped(data, starts, ends, whole, rules, closes_group)


def _grouped(
    data: Array, starts: Array, ends: Array, whole: int, rules: LineRules, closes_group: bool
) -> Split:
    """Join the lines of each group into a record; an open group at the end is left for the next block."""
    lines = len(starts)
    if not lines:
        return Split(starts, ends, whole, 0)
    assert rules.multiline_start is not None
    is_start = _matches(data, starts, ends, rules.multiline_start)
    group_starts = np.empty(lines, np.int64)
    group_ends = np.empty(lines, np.int64)
    groups = int(
        _group_lines(starts, ends, is_start, rules.max_bytes, rules.max_lines, group_starts, group_ends)
    )
    consumed = whole
    if not closes_group:
        groups -= 1
        consumed = int(group_starts[groups])
    cut = int(_cut_long(group_starts[:groups], group_ends[:groups], rules.max_bytes))
    return Split(group_starts[:groups], group_ends[:groups], consumed, cut)


def _matches(data: Array, starts: Array, ends: Array, pattern: str) -> Array:
    """1 for every line that matches, else 0."""
    import pyarrow.compute

    try:
        matched = pyarrow.compute.match_substring_regex(binary_array(data, starts, ends), pattern)
    except pa.ArrowInvalid as error:
        raise BadPattern(f"{pattern!r} is not a valid regular expression (RE2): {error}") from None
    return np.frombuffer(matched.cast(pa.uint8()).buffers()[1], np.uint8, len(starts)).copy()


def binary_array(data: Array, starts: Array, ends: Array) -> Any:
    """The records as an Arrow array. Their bytes are moved together, since Arrow allows no gaps."""
    count = len(starts)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    packed = np.empty(int(offsets[-1]), np.uint8)
    data = data.view()
    data.flags.writeable = False  # the kernel is compiled for read-only arrays
    copy_fields(data, starts, offsets, 0, count, packed)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


# ---- kernels


@kernel(INT64, INT64S, INT64S, INT64)
def _cut_long(starts: Array, ends: Array, max_bytes: int) -> int:
    """Cut records that are too long; returns how many were."""
    cut = 0
    for index in range(len(starts)):
        if ends[index] - starts[index] > max_bytes:
            ends[index] = starts[index] + max_bytes
            cut += 1
    return cut


@kernel(INT64, INT64S, INT64S, BYTES, INT64, INT64, INT64S, INT64S)
def _group_lines(
    starts: Array,
    ends: Array,
    is_start: Array,
    max_bytes: int,
    max_lines: int,
    group_starts: Array,
    group_ends: Array,
) -> int:
    """Join lines into groups; returns how many. The last group may be open."""
    groups = 0
    lines = 0
    for index in range(len(starts)):
        if (
            groups == 0
            or is_start[index]
            or lines >= max_lines
            or ends[index] - group_starts[groups - 1] > max_bytes
        ):
            group_starts[groups] = starts[index]
            groups += 1
            lines = 0
        group_ends[groups - 1] = ends[index]
        lines += 1
    return groups
