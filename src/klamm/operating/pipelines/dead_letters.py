"""The dead-letter records of a pipeline, the newest first, each with the reason, and how many each rule has.

Only the newest ones are looked at: a topic may have many, and what was refused lately says what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from klamm.client.admin.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record
from klamm.model.dead_letter_headers import PIPELINE
from klamm.operating.offsets import ends_of
from klamm.operating.records.full import Refusal, refusal_of
from klamm.operating.records.rows import Row, header_texts, row_maker
from klamm.operating.records.spans import Span, chosen_partitions
from klamm.operating.records.stepping import Steps
from klamm.operating.records.walking import walk

MOST_COUNTED = 5_000
"""How many dead-letter records of a pipeline are counted by rule."""
MOST_S = 6.0
"""How long to look for them."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead-letter record: where it lies, the beginning of the original's key and value, why it was refused,
    and where the original lies, if it says so."""

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    rule: str
    error: str
    source: str
    topic: str | None
    topic_partition: int | None
    topic_offset: int | None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The newest dead-letter records of a pipeline. `rules` counts all that were looked at; `scanned` of
    `total` records of the topic were, and `is_whole` says that these are all."""

    records: tuple[DeadLetter, ...]
    rules: Mapping[str, int]
    scanned: int
    total: int
    is_whole: bool


NONE = DeadLetters((), {}, 0, 0, True)


async def newest(
    admin: Admin,
    consumer: Callable[..., Consumer],
    topic: str,
    pipeline: str,
    rule: str = "",
    most: int = 50,
) -> DeadLetters:
    """The newest dead-letter records of a pipeline in a topic, at most `most`: all, or those of a rule."""
    partitions = await chosen_partitions(admin, [topic])
    ends = await ends_of(admin, partitions)
    spans = {each.partition: Span(end.first, end.last) for each, end in ends.items()}
    refusals: dict[tuple[int, int], Refusal] = {}
    make_row = row_maker()

    def make(record: Record) -> Row:
        found = refusal_of(record)
        assert found is not None, "only records with a pipeline pass"
        refusals[record.partition, record.offset] = found
        return make_row(record)

    def passes(record: Record) -> bool:
        return header_texts(record.headers).get(PIPELINE) == pipeline and refusal_of(record) is not None

    rows: list[Row] = []
    scanned, is_whole = 0, not spans
    until = monotonic() + MOST_S
    async with Steps(walk(consumer, topic, spans, make, passes=passes, limit=MOST_COUNTED)) as steps:
        async for step in steps:
            rows += step.rows
            scanned, is_whole = step.passed, step.is_end and not step.unanswered
            if monotonic() > until:
                break
    found = [(row, refusals[row.partition, row.offset]) for row in rows]
    chosen = [_dead_letter(*each) for each in found if rule in ("", each[1].rule)]
    rules = Counter(refusal.rule for _, refusal in found)
    total = sum((span.stop or 0) - span.first for span in spans.values())
    return DeadLetters(tuple(chosen[:most]), dict(rules.most_common()), scanned, total, is_whole)


def _dead_letter(row: Row, refusal: Refusal) -> DeadLetter:
    return DeadLetter(
        row.partition,
        row.offset,
        row.timestamp,
        None if row.key is None else row.key.text,
        None if row.value is None else row.value.text,
        refusal.rule,
        refusal.error,
        refusal.source,
        refusal.topic,
        refusal.partition,
        refusal.offset,
    )
