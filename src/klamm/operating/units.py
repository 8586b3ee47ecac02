"""Sizes and counts as people read them."""

from __future__ import annotations

_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")


def size_text(byte_count: int | None) -> str:
    """1234567 as 1.2 MB; units of 1,000."""
    if byte_count is None:
        return "–"
    size = float(byte_count)
    for unit in _SIZES:
        if size < 1000 or unit == _SIZES[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def count_text(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def several(count: int, noun: str) -> str:
    """1 topic, 2 topics."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def printable(text: str) -> str:
    """A text from the cluster on one line: single spaces, and what would steer a terminal as escapes."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else _escape(each) for each in line)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "surrogatepass").decode()
