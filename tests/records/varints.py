"""Reading signed numbers of records one by one, as slowly and plainly as possible."""

from __future__ import annotations

from klamm.records.decoding import read_zigzag


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """A signed number, and where it ends. Past the end of `data` this raises IndexError."""
    number, position = read_zigzag(data, position)
    return (number >> 1) ^ -(number & 1), position
