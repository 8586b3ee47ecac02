"""A record from what a person typed: key, value and headers as text, JSON, base64 or hexadecimal. A core."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from enum import StrEnum

from klamm.operating.errors import CannotDo
from klamm.operating.records.as_json import NewRecord

MOST_HEADERS = 1_000


class Encoding(StrEnum):
    TEXT = "text"
    JSON = "json"
    BASE64 = "base64"
    HEX = "hex"
    NULL = "null"


def typed_record(
    *,
    value: str,
    value_encoding: Encoding = Encoding.TEXT,
    key: str = "",
    key_encoding: Encoding = Encoding.NULL,
    headers: Iterable[tuple[str, str]] = (),
    partition: int | None = None,
    timestamp: int | None = None,
) -> NewRecord:
    """Raises CannotDo for a text that is not what its encoding says."""
    named = tuple((name, text.encode(errors="surrogateescape")) for name, text in headers)
    if any(not name for name, _ in named):
        raise CannotDo("a header has no name", advice="Give it one, or remove it")
    if len(named) > MOST_HEADERS:
        raise CannotDo(f"the record has {len(named):,} headers: {MOST_HEADERS:,} at most")
    return NewRecord(
        typed_bytes("value", value, value_encoding),
        typed_bytes("key", key, key_encoding),
        named,
        partition,
        timestamp,
    )


def typed_bytes(what: str, text: str, encoding: Encoding) -> bytes | None:
    """The bytes that a text stands for; None for null."""
    match encoding:
        case Encoding.NULL:
            return None
        case Encoding.TEXT:
            return text.encode(errors="replace")
        case Encoding.JSON:
            try:
                json.loads(text)
            except json.JSONDecodeError as error:
                place = f"line {error.lineno}, column {error.colno}"
                raise CannotDo(f"the {what} is not JSON: {error.msg}, {place}") from None
            except (ValueError, RecursionError):
                raise CannotDo(f"the {what} is not JSON that can be read") from None
            return text.encode(errors="replace")
        case Encoding.BASE64:
            try:
                return base64.b64decode("".join(text.split()), validate=True)
            except ValueError:
                raise CannotDo(f"the {what} is not base64", advice="Choose text, or correct it") from None
        case Encoding.HEX:
            try:
                return bytes.fromhex(text.removeprefix("0x"))
            except ValueError:
                raise CannotDo(f"the {what} is not hexadecimal", advice="Give it as 00 ff 1a") from None
