"""What the records of a retry topic say about the redrives that wrote them. A core.

A retry topic is the only state of redrives through it. Its partition has in this order, again and again:

    opening     a redrive begins: its name, and the producer id and epoch that it writes under
    record      an original record with its address and the place of its dead-letter record
    marks       a redrive is done: which dead-letter records are redriven now

Each names the offset of the newest marks before it (`since`). So the last record leads to the marks, and the
records from there on say which dead-letter records were sent since: by a redrive that was killed, or by one
that runs.

Offsets of dead-letter records count for one dead-letter topic only, which is known by its id: a topic that
was deleted and created again has other records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from klamm.client.results import Record
from klamm.pipelines.dead_letters import LETTER

NOTE = "klamm.note"
"""The header of openings and marks: which of the two it is."""
OPENING, MARKS = b"opening", b"marks"

SINCE = "klamm.since"
"""The header with the offset of the newest marks. All records of a retry topic have it."""

ALL_RULES = "*"

MOST_EPOCH = 2**15 - 1

Headers = list[tuple[str, bytes | None]]
Place = tuple[int, int]
"""The partition and offset of a dead-letter record."""


class Identity(NamedTuple):
    """Under which producer id and epoch a redrive writes. A broker takes no record of an earlier epoch once
    it has one of a later epoch."""

    producer_id: int
    epoch: int

    def next(self) -> Identity | None:
        """The identity that shuts this one out; None if all epochs are used."""
        return Identity(self.producer_id, self.epoch + 1) if self.epoch < MOST_EPOCH else None


@dataclass(frozen=True)
class Marks:
    """Which dead-letter records are redriven: by rule all below an offset per partition, but not those that
    are `left` as the broker refused them."""

    topic_id: str = ""
    below: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    left: frozenset[Place] = frozenset()

    def have(self, rule: str, place: Place) -> bool:
        return place not in self.left and place[1] < self._below(rule, place[0])

    def start(self, rule: str, partition: int) -> int:
        """The first offset at which there may be a record of this rule, or of any, that is not redriven."""
        left = [offset for number, offset in self.left if number == partition]
        return min([self._below(rule, partition), *left])

    def advanced(self, rule: str, ends: Mapping[int, int], left: Iterable[Place]) -> Marks:
        """The marks after a redrive of a rule, or of all, up to `ends`; it has left these."""
        known = self.below.get(rule, {})
        reached = {number: max(end, known.get(number, 0)) for number, end in ends.items()}
        return replace(self, below={**self.below, rule: {**known, **reached}}, left=frozenset(left))

    def _below(self, rule: str, partition: int) -> int:
        return max(self.below.get(name, {}).get(partition, 0) for name in (ALL_RULES, rule))

    def to_json(self) -> dict[str, Any]:
        return {
            "topic_id": self.topic_id,
            "below": {
                rule: {str(key): end for key, end in ends.items()} for rule, ends in self.below.items()
            },
            "left": sorted(self.left),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Marks:
        below = {
            str(rule): {int(key): int(end) for key, end in ends.items()}
            for rule, ends in value["below"].items()
        }
        left = frozenset((int(number), int(offset)) for number, offset in value["left"])
        return cls(str(value["topic_id"]), below, left)


class Opening(NamedTuple):
    """The beginning of a redrive."""

    redrive: str
    """A random name."""
    identity: Identity
    topic_id: str


class RetryLog:
    """What the records of a retry topic say. `take` gets them in order, from the newest marks on."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.since = 0
        self.sent: set[Place] = set()
        """Dead-letter records sent since the marks."""
        self.openings: list[Opening] = []
        """Those since the marks, and the one that wrote the marks."""

    def take(self, record: Record) -> None:
        headers = dict(record.headers)
        note = headers.get(NOTE)
        if note is None:
            if (place := letter_place(headers.get(LETTER))) is not None:
                self.sent.add(place)
            return
        value = json.loads(record.value or b"")
        opening = Opening(
            str(value["redrive"]),
            Identity(int(value["producer_id"]), int(value["epoch"])),
            str(value["topic_id"]),
        )
        if note == MARKS:
            self.marks, self.since = Marks.from_json(value), record.offset
            self.sent, self.openings = set(), [opening]
        else:
            if self.openings and self.openings[-1].topic_id != opening.topic_id:
                self.sent = set()
            self.openings.append(opening)

    def of(self, topic_id: str) -> RetryLog:
        """The log without what it says of dead-letter records of another topic."""
        if self.marks.topic_id != topic_id:
            self.marks = Marks(topic_id)
        if self.openings and self.openings[-1].topic_id != topic_id:
            self.sent = set()
        return self

    def has(self, rule: str, place: Place) -> bool:
        """True if a dead-letter record is redriven."""
        return place in self.sent or self.marks.have(rule, place)

    def newest_but(self, redrive: str) -> Identity | None:
        """Under which identity the last redrive wrote, other than this one."""
        others = [opening.identity for opening in self.openings if opening.redrive != redrive]
        return others[-1] if others else None


# ---- records


def note(kind: bytes, opening: Opening, since: int, marks: Marks | None = None) -> tuple[bytes, Headers]:
    """The value and the headers of an opening, or of marks."""
    value = {
        "redrive": opening.redrive,
        "producer_id": opening.identity.producer_id,
        "epoch": opening.identity.epoch,
        "topic_id": opening.topic_id,
        **(marks.to_json() if marks is not None else {}),
    }
    return json.dumps(value).encode(), [(NOTE, kind), (SINCE, str(since).encode())]


def letter_text(place: Place) -> bytes:
    return f"{place[0]}/{place[1]}".encode()


def letter_place(text: bytes | None) -> Place | None:
    """The place of a dead-letter record from the header of a retried record; None if it is not one."""
    partition, _, offset = (text or b"").decode(errors="replace").partition("/")
    return (int(partition), int(offset)) if partition.isdecimal() and offset.isdecimal() else None


def since_of(record: Record) -> int | None:
    """The offset of the newest marks before a record, or the record's own if it is marks; None if it does not
    say so."""
    headers = dict(record.headers)
    if headers.get(NOTE) == MARKS:
        return record.offset
    text = (headers.get(SINCE) or b"").decode(errors="replace")
    return int(text) if text.isdecimal() else None
