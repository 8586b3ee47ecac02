"""Names and passwords as SASL compares them (RFC 4013): the same text typed on two keyboards is the same.

Letters that look alike and mean the same become one, odd spaces become plain ones, and characters that nobody
can see or type are refused.
"""

from __future__ import annotations

import stringprep
import unicodedata
from collections.abc import Callable

_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str) -> str:
    """The prepared text; ValueError for what is prohibited. Characters that are not assigned yet may pass."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each for each in text if not stringprep.in_table_b1(each)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for each in prepared:
        if any(is_prohibited(each) for is_prohibited in _PROHIBITED):
            raise ValueError(f"the character U+{ord(each):04X} is not allowed in names and passwords")
    _check_directions(prepared)
    return prepared


def _check_directions(text: str) -> None:
    """Text with right-to-left characters starts and ends with one and has no left-to-right ones."""
    if not any(map(stringprep.in_table_d1, text)):
        return
    if any(map(stringprep.in_table_d2, text)) or not (
        stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    ):
        raise ValueError("right-to-left and left-to-right characters are mixed")
