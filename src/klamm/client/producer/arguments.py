"""Checks and converts the arguments of `send`. A core.

Keys, values and headers are bytes. Text is refused, with advice, and not encoded: only the caller knows the
encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from klamm.client.arguments import TimeLike, time_ms
from klamm.client.errors import ClientMisused, NotSerializable
from klamm.records.decoding import Headers

BytesLike: TypeAlias = bytes | bytearray | memoryview

HeadersGiven: TypeAlias = Mapping[str, BytesLike | None] | Iterable[tuple[str, BytesLike | None]]
"""Headers as users give them: pairs, since a name may come twice, or a mapping."""

_TIMESTAMP_LIMIT = 2**62
"""Half of the largest number that fits, so that the difference of two timestamps fits, too."""


def as_bytes(data: object, what: str, topic: str) -> bytes:
    """A copy of bytes, a bytearray or a memoryview. Raises NotSerializable for anything else."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, str):
        advice = "Encode it: text.encode()"
    else:
        advice = "Turn it into bytes first, for example with json.dumps(...).encode()"
    raise NotSerializable(
        f"the {what} of a record to {topic} is {type(data).__name__}, not bytes", advice=advice
    )


def as_headers(headers: HeadersGiven, topic: str) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    taken = []
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise NotSerializable(
                    f"the header {name!r} of a record to {topic} has a name that is not text",
                    advice='Headers are pairs of a str and bytes: [("trace", b"...")]',
                )
            if value is not None and not isinstance(value, bytes):
                value = as_bytes(value, f"header {name!r}", topic)
            taken.append((name, value))
    except (TypeError, ValueError) as error:
        if isinstance(error, NotSerializable):
            raise
        raise NotSerializable(
            f"the headers of a record to {topic} are not pairs: {error}",
            advice='Give [("trace", b"...")] or {"trace": b"..."}',
        ) from None
    return tuple(taken)


def as_timestamp_ms(timestamp: TimeLike) -> int:
    """A timestamp that fits into a batch."""
    milliseconds = time_ms(timestamp)
    if milliseconds >= _TIMESTAMP_LIMIT:
        raise ClientMisused(f"{timestamp!r} is not a valid time", advice="Give milliseconds since 1970")
    return milliseconds


def as_partition(partition: object, topic: str) -> int:
    """A partition number. Does not check whether the topic has this partition."""
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < 2**31:
        raise ClientMisused(
            f"partition {partition!r} of {topic} is not a number from 0 on",
            advice="Give a number from 0 on, or leave it out: then the key decides",
        )
    return partition
