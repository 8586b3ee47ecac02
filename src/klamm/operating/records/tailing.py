"""Follows a topic live: the newest records, as they come.

Whoever watches cannot read thousands of records a second. A step keeps the newest of what came since the one
before, and counts those that it skipped. A tail that falls far behind jumps to the end, and counts what it
jumped over.

Steps block; the console runs them in threads (`stepping.py`). A tail is paused by taking no steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from time import monotonic

from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.operating.records.rows import MakeRow, Row
from klamm.operating.records.walking import FETCH_OPTIONS, STEP_RECORDS

STEP_S = 0.4
"""How long a step gathers records: a page that changes more often cannot be read."""

MOST_BEHIND = 20_000
"""How many records of all partitions a tail may be behind before it jumps to the end."""

LOOK_S = 2.0
"""How often a tail looks how far it is behind."""


@dataclass(frozen=True)
class TailStep:
    rows: tuple[Row, ...]
    """In the order in which they came."""
    positions: Mapping[int, int]
    """Where to go on."""
    scanned: int
    """How many records came, those that do not pass the filter too."""
    skipped: int = 0
    """How many records were left out, because there were too many."""


def tail(
    consumer: Callable[..., Consumer],
    topic: str,
    positions: Mapping[int, int],
    make_row: MakeRow,
    *,
    passes: Callable[[Record], bool] | None = None,
    most_rows: int = 200,
) -> Generator[TailStep, None, None]:
    """Steps for ever, each within a fraction of a second. `positions` are where to begin."""
    at = dict(positions)
    with consumer(**FETCH_OPTIONS) as made:
        made.assign([TopicPartition(topic, each) for each in at])
        for partition, offset in at.items():
            made.seek((topic, partition), offset)
        looked = -LOOK_S
        while True:
            skipped = 0
            if monotonic() - looked > LOOK_S:
                skipped = _catch_up(made, topic, at, most_rows)
                looked = monotonic()
            rows: deque[Row] = deque(maxlen=most_rows)
            scanned = 0
            until = monotonic() + STEP_S
            while (left := until - monotonic()) > 0:
                records = made.poll(timeout=left, max_records=STEP_RECORDS)
                for record in records:
                    at[record.partition] = record.offset + 1
                    if passes is None or passes(record):
                        skipped += len(rows) == most_rows
                        rows.append(make_row(record))
                scanned += len(records)
            yield TailStep(tuple(rows), dict(at), scanned, skipped)


def _catch_up(consumer: Consumer, topic: str, at: dict[int, int], most_rows: int) -> int:
    """Jump close to the end if the tail is far behind. Returns how many offsets were jumped over."""
    ends = consumer.end_offsets([TopicPartition(topic, each) for each in at])
    if sum(max(0, end - at[each.partition]) for each, end in ends.items()) <= MOST_BEHIND:
        return 0
    skipped = 0
    for each, end in ends.items():
        target = max(at[each.partition], end - most_rows)
        skipped += target - at[each.partition]
        at[each.partition] = target
        consumer.seek(each, target)
    return skipped
