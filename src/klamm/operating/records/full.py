"""One record in full, as it is shown beside the list: key, value, headers, and why it was refused if it is
a dead-letter record. A core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from klamm.client.results import Record
from klamm.model.dead_letter_headers import ERROR, OFFSET, PARTITION, PIPELINE, RULE, SOURCE, TOPIC
from klamm.operating.records.rows import header_texts
from klamm.operating.records.views.text import decoded, visible
from klamm.operating.records.views.view import Format, Schema, View, view

MOST_HEADERS = 200
MOST_HEADER_CHARACTERS = 10_000


class HeaderText(NamedTuple):
    name: str
    text: str | None
    """None is null."""
    is_binary: bool = False
    """The text is in hexadecimal."""


@dataclass(frozen=True)
class Refusal:
    """Why a record is in a dead-letter topic, and where the original record is."""

    rule: str
    error: str
    pipeline: str
    source: str
    topic: str | None
    partition: int | None
    offset: int | None


@dataclass(frozen=True)
class FullRecord:
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    leader_epoch: int
    key: View
    value: View
    headers: tuple[HeaderText, ...]
    more_headers: int = 0
    refusal: Refusal | None = None

    def as_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        refusal = None if self.refusal is None else vars(self.refusal)
        return found | {
            "key": self.key.as_json(),
            "value": self.value.as_json(),
            "headers": [each._asdict() for each in self.headers],
            "refusal": refusal,
        }


def full_record(
    record: Record,
    value_format: Format = Format.AUTO,
    schema: Schema | None = None,
    key_format: Format = Format.AUTO,
) -> FullRecord:
    return FullRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.leader_epoch,
        view(record.key, key_format),
        view(record.value, value_format, schema),
        tuple(_header(name, value) for name, value in record.headers[:MOST_HEADERS]),
        max(0, len(record.headers) - MOST_HEADERS),
        refusal_of(record),
    )


def refusal_of(record: Record) -> Refusal | None:
    told = header_texts(record.headers)
    if RULE not in told or PIPELINE not in told:
        return None
    partition, offset = _number(told.get(PARTITION)), _number(told.get(OFFSET))
    topic = told.get(TOPIC) if partition is not None and offset is not None else None
    rule, error, pipeline, source = (
        visible(told.get(name, ""))[:MOST_HEADER_CHARACTERS] for name in (RULE, ERROR, PIPELINE, SOURCE)
    )
    return Refusal(rule, error, pipeline, source, topic, partition, offset)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None


def _header(name: str, value: bytes | None) -> HeaderText:
    name = visible(name)[:MOST_HEADER_CHARACTERS]
    if value is None:
        return HeaderText(name, None)
    text = decoded(value)
    if text is None:
        return HeaderText(name, value[: MOST_HEADER_CHARACTERS // 3].hex(" "), True)
    return HeaderText(name, visible(text[:MOST_HEADER_CHARACTERS]))
