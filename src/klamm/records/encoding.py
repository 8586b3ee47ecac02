"""Turning records into the payload of a batch, as a producer's `send` needs it: many small parts, one join.

The deltas count from the first record: its timestamp is the batch's base timestamp, its offset delta 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.records.decoding import Headers

_TABLE_SIZE = 8192
"""Numbers below this have one or two bytes: lengths of common keys and values, offsets, short times."""


def encode_varint(number: int) -> bytes:
    """A signed number of up to 64 bits in zigzag form."""
    zigzag = (number << 1) ^ (number >> 63)
    output = bytearray()
    while zigzag > 0x7F:
        output.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    output.append(zigzag)
    return bytes(output)


_VARINTS = tuple(encode_varint(number) for number in range(_TABLE_SIZE))
_NULL = encode_varint(-1)


def encode_records(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    headers: Sequence[Headers] | None = None,
    *,
    offset_deltas: Iterable[int] | None = None,
) -> bytes:
    """The payload of a batch of these records. No keys, or no headers, means that no record has any.

    The records of a producer follow each other; compaction leaves gaps and brings `offset_deltas`.
    """
    parts: list[bytes] = []
    base_timestamp = timestamps[0]
    for index, offset_delta in enumerate(offset_deltas or range(len(values))):
        body = b"".join(
            (
                b"\0",
                _varint(timestamps[index] - base_timestamp),
                _varint(offset_delta),
                *_nullable(keys[index] if keys else None),
                *_nullable(values[index]),
                *_headers(headers[index] if headers else ()),
            )
        )
        parts += (_varint(len(body)), body)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < _TABLE_SIZE else encode_varint(number)


def _nullable(data: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if data is None else (_varint(len(data)), data)


def _headers(headers: Headers) -> Iterable[bytes]:
    yield _varint(len(headers))
    for name, value in headers:
        yield from _nullable(name.encode())
        yield from _nullable(value)
