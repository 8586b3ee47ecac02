"""Sends what comes in on stdin for `klamm topic produce`: lines, lines with keys, or records as JSON."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from klamm.cli.errors import CommandError
from klamm.client.plain.producer import Producer
from klamm.operating.records.as_json import NewRecord, record_of_json

READ_BYTES = 256 * 1024

CHECKED_LATER = 100_000
"""Deliveries that are looked at so many records later: a failure ends the command soon, and nobody waits."""


class Stream(Protocol):
    """A stream of bytes, such as stdin."""

    def read1(self, size: int, /) -> bytes:
        """What is there, at most `size` bytes; nothing at the end."""


@dataclass(frozen=True)
class LineRules:
    """How a line becomes a record."""

    key_delimiter: bytes | None = None
    """Divides key and value."""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    timestamp: int | None = None
    empty_is_null: bool = False
    """An empty value, or key, is null: a tombstone in compacted topics."""


@dataclass
class Sent:
    """What has been sent so far."""

    records: int = 0
    bytes: int = 0
    last_offsets: dict[int, int] = field(default_factory=dict)


def split(stream: Stream, delimiter: bytes) -> Iterator[bytes]:
    """The pieces of a stream between delimiters. The last one needs none; an empty rest is none."""
    rest = b""
    while chunk := stream.read1(READ_BYTES):  # what is there: someone may be typing
        *whole, rest = (rest + chunk).split(delimiter)
        yield from whole
    if rest:
        yield rest


def records_of_lines(lines: Iterable[bytes], rules: LineRules) -> Iterator[NewRecord]:
    """Raises CommandError for a line without the delimiter of keys."""
    for number, line in enumerate(lines, 1):
        key, value = rules.key, line
        if rules.key_delimiter is not None:
            key, found, value = line.partition(rules.key_delimiter)
            if not found:
                shown = rules.key_delimiter.decode(errors="replace")
                text = line[:60].decode(errors="replace")
                raise CommandError(f"line {number} has no {shown!r} between key and value: {text!r}")
        if rules.empty_is_null:
            yield NewRecord(value or None, key or None, rules.headers, rules.partition, rules.timestamp)
        else:
            yield NewRecord(value, key, rules.headers, rules.partition, rules.timestamp)


def records_of_json(lines: Iterable[bytes], rules: LineRules) -> Iterator[NewRecord]:
    """Records as `klamm topic consume -o jsonl` writes them. Topic and offset do not count, and the partition
    and the time count only where `rules` say so. Raises CommandError for a line that is not one."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            record = record_of_json(found)
            yield NewRecord(
                record.value,
                rules.key if rules.key is not None else record.key,
                (*record.headers, *rules.headers),
                rules.partition,
                rules.timestamp if rules.timestamp is not None else record.timestamp,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise CommandError(f"line {number} is not a record as JSON: {error}") from None


def send_all(producer: Producer, topic: str, records: Iterable[NewRecord], sent: Sent) -> None:
    """Send the records, and wait until the brokers have them. Raises the error of the first that failed."""
    waiting: deque[Any] = deque()

    def check() -> None:
        done = waiting.popleft().result()
        sent.records += 1
        sent.last_offsets[done.partition] = max(done.offset, sent.last_offsets.get(done.partition, -1))

    for record in records:
        waiting.append(
            producer.send(topic, record.value, record.key, record.headers, record.partition, record.timestamp)
        )
        sent.bytes += len(record.value or b"") + len(record.key or b"")
        while waiting and (len(waiting) > CHECKED_LATER or waiting[0].done()):
            check()
    producer.flush()
    while waiting:
        check()
