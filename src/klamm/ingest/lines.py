"""Records out of a block of bytes: lines, or groups of lines. A core; needs klamm[arrow].

A block is whatever was read from a file, cut anywhere. What holds:

- Of a block as much is taken as is complete: `consumed` says up to where. The rest comes again with more
  bytes behind it. So the records of a file do not depend on how it was cut into blocks.
- What was taken, [start, start + consumed) of the file, gives the same records when it is split again by
  itself as a last block. Sending the rest of a block after a crash rests on that.
- A line ends with a newline, or CR and newline; neither is part of the record. Bytes are not looked at
  otherwise, so they need not be text.
- No record is longer than `max_bytes`. A longer line is cut there and counted. A group of lines that would
  be longer, or have more lines than `max_lines`, goes on in another record.

No Python object is made per line: newlines are found by numpy, groups by Arrow's regular expressions (RE2),
and the rest is kernels.
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
"""The longest stack traces have some hundreds of lines; more than this is a pattern that does not match."""


class BadPattern(ValueError):
    """A regular expression that RE2 does not take."""


@dataclass(frozen=True, slots=True)
class LineRules:
    """How bytes become records. `multiline_start` matches lines that begin a record; without it all do."""

    max_bytes: int = DEFAULT_MAX_BYTES
    multiline_start: str | None = None
    max_lines: int = DEFAULT_MAX_LINES

    def check(self) -> None:
        """Raises BadPattern for a pattern that cannot be used."""
        if self.multiline_start is not None:
            _matches(np.zeros(1, np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64), self.multiline_start)


@dataclass(frozen=True, slots=True)
class Split:
    """Records of a block: bytes [starts[i], ends[i]) of it."""

    starts: Array
    ends: Array
    consumed: int
    """So much of the block is dealt with, dropped bytes and newlines included."""
    cut_lines: int
    """Lines that were longer than a record may be."""

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

    `closes_group`: no more lines of the last group are waited for. `takes_partial`: nor is the newline of the
    last line. `follows_partial`: the bytes before were taken without their newline, so that a newline at the
    beginning ends nothing. A last block is split with both of the first two.
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
    """Lines that belong together as one record each; an open group at the end is left, unless closed."""
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
    """For every line 1 if it matches."""
    import pyarrow.compute

    try:
        matched = pyarrow.compute.match_substring_regex(binary_array(data, starts, ends), pattern)
    except pa.ArrowInvalid as error:
        raise BadPattern(f"{pattern!r} is not a regular expression that RE2 knows: {error}") from None
    return np.frombuffer(matched.cast(pa.uint8()).buffers()[1], np.uint8, len(starts)).copy()


def binary_array(data: Array, starts: Array, ends: Array) -> Any:
    """The records as an Arrow array: their bytes moved together, since Arrow knows no gaps."""
    count = len(starts)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    packed = np.empty(int(offsets[-1]), np.uint8)
    data = data.view()
    data.flags.writeable = False  # as the kernel wants it
    copy_fields(data, starts, offsets, 0, count, packed)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


# ---- kernels


@kernel(INT64, INT64S, INT64S, INT64)
def _cut_long(starts: Array, ends: Array, max_bytes: int) -> int:
    """Shorten what is too long; returns how many were."""
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
    """Gather lines into groups; returns how many. The last of them may be open."""
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
