"""Which pipeline reads a record that a redrive sent back.

A redriven record is addressed: its headers name the pipeline that wrote the dead-letter record, and the
source if an expectation of a source was broken. All other pipelines and sources have read the original
record, and skip the redriven one, or they would have its rows twice.

The addressed pipeline skips the redriven record too if it has begun a later epoch (by a replay, or because a
batch ran again) that reads the original record: that epoch writes a dead-letter record of its own if the
record is still bad.

A record that came through a retry topic and was rejected again has two places: that of the original
record, and that in the retry topic. An epoch that reads either of them again makes its dead-letter record
void.

Consumers that are not pipelines see all records that a redrive sent to their topic. A consumer that copies
headers to another topic does no harm: an address counts only in the topic that it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from klamm.model.dead_letter_headers import SOURCE as SOURCE
from klamm.pipelines.positions import EARLIEST_OFFSET, Position
from klamm.pipelines.state import Attempt
from pyspark_klamm.retried import OFFSET as OFFSET
from pyspark_klamm.retried import TOPIC as TOPIC

FOR = "klamm.for"
"""The header with the group of the pipeline that a record is addressed to. Records without it are for all."""

EPOCH = "klamm.generation"
"""The header with the epoch of the pipeline that wrote the dead-letter record."""

RETRIED_FROM = "klamm.retry.of"
"""The header of a retried record that was rejected before as a retried record: its place at that time in the
retry topic, as `place_text` writes it."""


def is_for(group: str, attempt: Attempt, source: str, sources: Iterable[str]) -> Column:
    """True for rows that this pipeline and source must read; never null. The rows have the columns of the
    data source. `sources` are all sources of the pipeline."""
    others = [name for name in sources if name != source]
    address = F.when(_text(TOPIC) == F.col("topic"), _text(FOR))
    is_ours = (
        address.eqNullSafe(group)
        & ~F.coalesce(_text(SOURCE).isin(others), F.lit(False))
        & ~F.coalesce(_is_read_anew(attempt, source), F.lit(False))
    )
    return address.isNull() | is_ours


def _is_read_anew(attempt: Attempt, source: str) -> Column:
    """True if an epoch after the one that wrote the dead-letter record reads the original record. A
    dead-letter record with another pipeline id is older than all epochs of this one."""
    name = _text(EPOCH)
    written_in = F.when(
        F.startswith(name, F.lit(f"{attempt.pipeline_id}.")),
        F.substring_index(name, ".", -1).try_cast("int"),
    ).otherwise(F.lit(0))
    retried_from = _text(RETRIED_FROM)
    places = (
        (F.concat_ws("-", "topic", "partition"), _text(OFFSET).try_cast("bigint")),
        (
            F.substring_index(retried_from, "/", 1),
            F.substring_index(retried_from, "/", -1).try_cast("bigint"),
        ),
    )

    def reads_it(epoch: Column) -> Column:
        # An epoch reads a partition that its start does not name from the oldest record.
        begins = [
            F.coalesce(F.try_element_at(epoch["begins"], at), F.lit(EARLIEST_OFFSET)) for at, _ in places
        ]
        reads = [
            F.coalesce(begin <= offset, F.lit(False))
            for begin, (_, offset) in zip(begins, places, strict=True)
        ]
        return (epoch["number"] > written_in) & (reads[0] | reads[1])

    return name.isNotNull() & F.exists(_epochs(attempt, source), reads_it)


def _epochs(attempt: Attempt, source: str) -> Column:
    """The epochs that read this source, as one JSON value: there may be many."""
    epochs = [
        {"number": number, "begins": _by_place(start[source])}
        for number, start in attempt.epochs
        if source in start
    ]
    kind = "ARRAY<STRUCT<number: INT, begins: MAP<STRING, BIGINT>>>"
    return F.from_json(F.lit(json.dumps(epochs)), kind)


def _by_place(start: Position) -> dict[str, int]:
    return {
        f"{topic}-{number}": offset for topic, numbers in start.items() for number, offset in numbers.items()
    }


def _text(name: str) -> Column:
    """The value of the first header of this name, or null."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.get(found, F.lit(0))["value"].cast("string")
