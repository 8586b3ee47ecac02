"""Bytes as people read them: text with its control characters made visible, hexadecimal, and previews of one
line. A core.

What is shown of a record was written by anybody. Characters that would hide or reorder others, or drive a
terminal, become visible signs. Escaping for HTML is the page's own task.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PREVIEW_CHARACTERS = 240
PREVIEW_BYTES = 4 * PREVIEW_CHARACTERS
"""A character has at most four bytes."""

HEX_ROW_BYTES = 16

_LEAST_PRINTABLE = 0.85
"""The share of printable characters from which bytes that are UTF-8 are shown as text."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_CONTROL_NAMES = [
    *(
        "NUL",
        "SOH",
        "STX",
        "ETX",
        "EOT",
        "ENQ",
        "ACK",
        "BEL",
        "BS",
        "TAB",
        "LF",
        "VT",
        "FF",
        "CR",
        "SO",
        "SI",
    ),
    *(
        "DLE",
        "DC1",
        "DC2",
        "DC3",
        "DC4",
        "NAK",
        "SYN",
        "ETB",
        "CAN",
        "EM",
        "SUB",
        "ESC",
        "FS",
        "GS",
        "RS",
        "US",
    ),
]
_JOINER, _VARIATION = "\u200d", "\ufe0f"
"""Emoji are made with these, and they cannot hide anything."""


class Preview(NamedTuple):
    """The beginning of a key or a value in one line."""

    text: str
    size: int
    """How many bytes the whole has."""
    is_binary: bool = False
    is_cut: bool = False


def visible(text: str) -> str:
    """The text with signs in place of characters that cannot be seen, except line ends and tabs."""
    return _HIDDEN.sub(_sign, text)


def one_line(text: str) -> str:
    return visible(text).replace("\n", "↵").replace("\t", "→")


def decoded(data: bytes) -> str | None:
    """Bytes as a text; None if they are not UTF-8, or hardly any of it can be printed."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    controls = len(_CONTROLS.findall(text))
    return None if text and controls > len(text) * (1 - _LEAST_PRINTABLE) else text


_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Not ESC: colours of terminals are common in logs."""


def preview(data: bytes | None) -> Preview | None:
    """None for null."""
    if data is None:
        return None
    head = data[:PREVIEW_BYTES]
    is_cut = len(data) > len(head)
    text = decoded(head)
    if text is None and is_cut:
        text = decoded(_whole_characters(head))
    if text is None:
        shown = head[: PREVIEW_CHARACTERS // 3]
        return Preview(shown.hex(" "), len(data), True, len(shown) < len(data))
    line = one_line(text[: PREVIEW_CHARACTERS + 1])
    return Preview(line[:PREVIEW_CHARACTERS], len(data), False, is_cut or len(text) > PREVIEW_CHARACTERS)


class HexRow(NamedTuple):
    at: int
    hex: str
    text: str


def hex_rows(data: bytes, start: int = 0, rows: int = 1_000) -> list[HexRow]:
    """Rows of sixteen bytes from `start` on."""
    stop = min(len(data), start + rows * HEX_ROW_BYTES)
    return [
        HexRow(at, piece.hex(" "), "".join(chr(each) if 32 <= each < 127 else "·" for each in piece))
        for at in range(start, stop, HEX_ROW_BYTES)
        if (piece := data[at : min(at + HEX_ROW_BYTES, stop)])
    ]


def _whole_characters(head: bytes) -> bytes:
    """Without the last character, if the end of `head` cuts it."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte >= 0xC0:
            return head[:-back]
        if byte < 0x80:
            break
    return head


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if found[0] in (_JOINER, _VARIATION):
        return found[0]
    if code < len(_CONTROL_NAMES):
        return f"‹{_CONTROL_NAMES[code]}›"
    return f"‹U+{code:04X}›"
