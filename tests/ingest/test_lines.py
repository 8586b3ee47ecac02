"""Splitting bytes into records, wherever the blocks are cut, against plain Python that does the same."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from klamm.ingest.lines import BadPattern, LineRules, Split, binary_array, split

PATTERN = "^S"
PIECES = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b"S", b"a", b"\xff\x00", b"Sbc", b"defghijkl"]), max_size=40
)


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()


def values(data: bytes, found: Split) -> list[bytes]:
    assert np.all(found.starts <= found.ends)
    records = binary_array(array(data), found.starts, found.ends).to_pylist()
    assert records == [data[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    return records


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """Whole lines and a partial one at the end, with where they begin."""
    lines, place = [], 0
    for line in data.split(b"\n")[:-1]:
        lines.append((place, line.removesuffix(b"\r")))
        place += len(line) + 1
    if place < len(data):
        lines.append((place, data[place:]))
    return lines


def expected(data: bytes, rules: LineRules) -> list[bytes]:
    """What a whole file holds, one line at a time."""
    records: list[tuple[int, int, int]] = []  # begin, end, lines
    for begin, line in lines_of(data):
        end = begin + len(line)
        goes_on = (
            rules.multiline_start is not None
            and records
            and not re.search(rules.multiline_start.encode(), line)
            and records[-1][2] < rules.max_lines
            and end - records[-1][0] <= rules.max_bytes
        )
        if goes_on:
            records[-1] = (records[-1][0], end, records[-1][2] + 1)
        else:
            records.append((begin, end, 1))
    return [data[begin : min(end, begin + rules.max_bytes)] for begin, end, _ in records]


RULES = st.builds(
    LineRules,
    max_bytes=st.sampled_from([3, 10, 1000]),
    multiline_start=st.sampled_from([None, PATTERN]),
    max_lines=st.sampled_from([1, 2, 100]),
)


@given(PIECES, RULES, st.lists(st.integers(0, 100)))
@example([b"a\r", b"\n"], LineRules(), [1])
def test_records_do_not_depend_on_where_blocks_are_cut(
    pieces: list[bytes], rules: LineRules, cuts: list[int]
) -> None:
    data = b"".join(pieces)
    found: list[bytes] = []
    position = 0
    for end in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        block = data[position:end]
        taken = split(array(block), rules)
        found += values(block, taken)
        position += taken.consumed
    rest = data[position:]
    last = split(array(rest), rules, closes_group=True, takes_partial=True)
    assert last.consumed == len(rest)
    assert found + values(rest, last) == expected(data, rules)


@given(PIECES, RULES, st.booleans(), st.booleans())
def test_what_was_taken_is_the_same_when_it_is_split_again(
    pieces: list[bytes], rules: LineRules, closes: bool, partial: bool
) -> None:
    data = b"".join(pieces)
    once = split(array(data), rules, closes_group=closes or partial, takes_partial=partial)
    records = values(data, once)
    taken = data[: once.consumed]
    again = split(array(taken), rules, closes_group=True, takes_partial=True)
    assert values(taken, again) == records
    assert again.consumed == once.consumed
    for first in range(len(records)):  # and from each of its records on
        rest = taken[int(once.starts[first]) :]
        assert (
            values(rest, split(array(rest), rules, closes_group=True, takes_partial=True)) == records[first:]
        )


def test_a_partial_line_waits_for_its_newline_unless_it_is_taken() -> None:
    data = b"one\ntwo"
    assert values(data, split(array(data), LineRules())) == [b"one"]
    assert split(array(data), LineRules()).consumed == 4
    assert values(data, split(array(data), LineRules(), takes_partial=True)) == [b"one", b"two"]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_newline_after_a_partial_line_that_was_taken_ends_nothing(ending: bytes) -> None:
    data = ending + b"next\n"
    found = split(array(data), LineRules(), follows_partial=True)
    assert values(data, found) == [b"next"]
    assert found.consumed == len(data)
    data = b"rest\n\n"
    assert values(data, split(array(data), LineRules(), follows_partial=True)) == [b"rest", b""]


def test_long_lines_are_cut_and_counted() -> None:
    data = b"12345\n1234\n123456789\n"
    found = split(array(data), LineRules(max_bytes=4))
    assert values(data, found) == [b"1234", b"1234", b"1234"]
    assert found.cut_lines == 2
    assert found.consumed == len(data)


def test_a_pattern_that_cannot_be_used_is_named() -> None:
    with pytest.raises(BadPattern, match=r"\(oops"):
        LineRules(multiline_start="(oops").check()
    LineRules(multiline_start=r"^\d{4}-").check()
