"""What a URL asks for: which records of a topic, in which order, from which place on. Without IO.

range        start:end, 5:9, -100:end, @-1h:end … as `klamm topic consume --from` has it
partitions   0,3; all of them without it
order        newest (the default) or oldest
filter       a condition, see operating/records/filters.py
at           where to go on, as an answer named it
limit        how many records; 50 by default
format       how values are decoded: auto, json, text, hex, avro, protobuf
schema       the id of a schema that was given to the console, for avro and protobuf
committed    yes: without the records of transactions that are open or were aborted
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from klamm.operating.errors import CannotDo
from klamm.operating.ranges import Bound, Kind, Range, parse_range, present
from klamm.operating.records.cursors import parse_cursor
from klamm.operating.records.filters import Term, parse_filter
from klamm.operating.records.matching import Decode, Matcher
from klamm.operating.records.rows import MakeRow, row_maker
from klamm.operating.records.views.view import Format, Schema, document_of
from klamm.operating.records.walking import Order

EVERYTHING = "start:end"
ROWS = 50
MOST_ROWS = 1_000
MOST_PARTITIONS_CHOSEN = 10_000
ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


@dataclass(frozen=True)
class Question:
    topic: str
    range_text: str
    range: Range
    partitions: tuple[int, ...]
    """None of them means all."""
    order: Order
    filter_text: str
    term: Term | None
    at: Mapping[int, int]
    limit: int
    format: Format
    schema: Schema | None
    read_committed: bool

    def decode(self) -> Decode | None:
        """For values that are neither text nor JSON."""
        if self.format is not Format.PROTOBUF and self.schema is None:
            return None
        format_, schema = self.format, self.schema

        def decode(data: bytes) -> Any:
            return document_of(data, format_, schema)

        return decode

    def passes(self) -> Matcher | None:
        return None if self.term is None else Matcher(self.term, self.decode())

    def make_row(self) -> MakeRow:
        return row_maker(self.decode())


def question_of(topic: str, given: Mapping[str, str], schema: Schema | None) -> Question:
    """Raises CannotDo for what cannot be meant."""
    range_text = given.get("range", "").strip() or EVERYTHING
    range_ = parse_range(range_text, present())
    if range_.last is None:
        range_ = range_._replace(last=Bound(Kind.END))
    filter_text = given.get("filter", "").strip()
    return Question(
        topic,
        range_text,
        range_,
        _partitions(given.get("partitions", "")),
        _choice(Order, given, "order", Order.NEWEST),
        filter_text,
        parse_filter(filter_text),
        parse_cursor(given.get("at", "")),
        _limit(given.get("limit", str(ROWS))),
        _choice(Format, given, "format", Format.AUTO),
        schema,
        given.get("committed", "") == "yes",
    )


def _partitions(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for piece in filter(None, text.split(",")):
        if not piece.strip().isdecimal() or len(piece) > 9 or len(found) >= MOST_PARTITIONS_CHOSEN:
            raise CannotDo(f"partitions={text[:40]} is not valid: expected numbers such as 0,3")
        found.append(int(piece))
    return tuple(dict.fromkeys(found))


def _choice(kind: type[ChoiceT], given: Mapping[str, str], name: str, default: ChoiceT) -> ChoiceT:
    text = given.get(name, "") or default.value
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise CannotDo(f"{name}={text[:40]} is not valid: expected {known}") from None


def _limit(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not 0 < int(text) <= MOST_ROWS:
        raise CannotDo(f"limit={text[:40]} is not a number from 1 to {MOST_ROWS:,}")
    return int(text)
