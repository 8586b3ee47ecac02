"""Records as JSON, one record a line: what `klamm topic consume -o jsonl` and the console's export write, and
what `klamm topic produce --jsonl` reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from klamm.client.results import Record


class NewRecord(NamedTuple):
    """A record that is to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


def as_json(record: Record) -> dict[str, Any]:
    """A record as JSON has it. Keys and values that are not UTF-8 are in `key_base64` and `value_base64`."""
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put(found, "key", record.key)
    _put(found, "value", record.value)
    headers = []
    for name, value in record.headers:
        header: dict[str, Any] = {"name": name}
        _put(header, "value", value)
        headers.append(header)
    found["headers"] = headers
    return found


def json_lines(records: Iterable[Record]) -> bytes:
    return b"".join([json.dumps(as_json(each), ensure_ascii=False).encode() + b"\n" for each in records])


def _put(target: dict[str, Any], name: str, value: bytes | None) -> None:
    try:
        target[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        assert value is not None
        target[f"{name}_base64"] = base64.b64encode(value).decode()


def record_of_json(found: Any) -> NewRecord:
    """A record from `as_json`, to be sent again; topic, partition and offset do not count. Keys and values
    may be any JSON. Raises ValueError, TypeError or KeyError for what is not a record."""
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return NewRecord(
        _bytes(found, "value"),
        _bytes(found, "key"),
        tuple(_headers(found.get("headers") or ())),
        timestamp=found.get("timestamp"),
    )


def _bytes(found: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(found: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(found, dict):
        found = [{"name": name, "value": value} for name, value in found.items()]
    for header in found:
        yield str(header["name"]), _bytes(header, "value") or b""
