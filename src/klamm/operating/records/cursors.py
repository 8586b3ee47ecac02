"""Where a walk through partitions goes on, as a text that fits into a URL. A core.

`0.120-3.120-4.7` means: partitions 0 to 3 at offset 120, and partition 4 at offset 7. Partitions at the
same offset that follow each other are written once: `0_3.120`. Digits are those of base 36.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from klamm.operating.errors import CannotDo

MOST_PARTITIONS = 100_000
_PIECE = re.compile(r"([0-9a-z]{1,5})(?:_([0-9a-z]{1,5}))?\.([0-9a-z]{1,13})")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def cursor_text(positions: Mapping[int, int]) -> str:
    """From the next offset of each partition; empty for none."""
    pieces: list[tuple[int, int, int]] = []
    for partition, offset in sorted(positions.items()):
        if pieces and pieces[-1][1] == partition - 1 and pieces[-1][2] == offset:
            pieces[-1] = (pieces[-1][0], partition, offset)
        else:
            pieces.append((partition, partition, offset))
    return "-".join(
        f"{_base36(first)}{'' if first == last else '_' + _base36(last)}.{_base36(offset)}"
        for first, last, offset in pieces
    )


def parse_cursor(text: str) -> dict[int, int]:
    """The positions in a text. Raises CannotDo."""
    positions: dict[int, int] = {}
    for piece in text.split("-") if text else ():
        match = _PIECE.fullmatch(piece)
        first = int(match[1], 36) if match else 0
        last = int(match[2], 36) if match and match[2] else first
        if match is None or last < first or last - first + len(positions) >= MOST_PARTITIONS:
            raise CannotDo(f"{text[:40]!r} is not a place in a topic", advice="Begin again without it")
        positions.update(dict.fromkeys(range(first, last + 1), int(match[3], 36)))
    return positions


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits
