"""Places in a topic as texts of URLs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.operating.errors import CannotDo
from klamm.operating.records.cursors import cursor_text, parse_cursor


@given(st.dictionaries(st.integers(0, 9_999), st.integers(0, 5) | st.integers(0, 2**63 - 1)))
def test_a_cursor_comes_back_as_it_was(positions: dict[int, int]) -> None:
    text = cursor_text(positions)
    assert parse_cursor(text) == positions
    assert re.fullmatch(r"[0-9a-z._-]*", text), "it needs no escaping in a URL"


def test_cursors_are_short() -> None:
    assert cursor_text({0: 120, 1: 120, 2: 120, 4: 7}) == "0_2.3c-4.7"
    assert len(cursor_text({each: 10_000_000 + each for each in range(1_000)})) < 10_000


@pytest.mark.parametrize("text", ["x", "0", "0.1-", "0.-1", "5_3.1", "0_zzzzz.1", "0.1;", "0." + "z" * 14])
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(CannotDo, match="is not a place in a topic"):
        parse_cursor(text)
