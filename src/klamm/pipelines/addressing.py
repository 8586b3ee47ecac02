"""Records that a redrive has sent back: which pipeline takes them, and when.

A dead letter goes back for the pipeline that had refused it, and if it was a source's rule, for that source:
the others have had the record, and would have its rows twice. And a pipeline that is replayed, or makes a
batch again that was not done, reads the records anew that it had refused. So it takes what came back of a
record exactly if it has not begun a life since, the present one included, that reads the record itself: what
that life refuses again has a letter of its own.

Consumers that are no pipelines see all such records. One that passes headers on to another topic does no
harm: an address counts in the topic that it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from klamm.pipelines.positions import EARLIEST_OFFSET, Position
from klamm.pipelines.state import Generation

FOR = "klamm.for"
"""The header with the group of the pipeline that a record is for; a record without it is for all."""

TOPIC, OFFSET, GENERATION, SOURCE = "klamm.topic", "klamm.offset", "klamm.generation", "klamm.source"
"""Headers: where the record was that was refused (its partition is the same), in which life of the pipeline,
and by the rule of which function."""


def is_for(group: str, generation: Generation, source: str, sources: Iterable[str]) -> Column:
    """Whether a row of Spark's schema for records is for this pipeline and source. Never null. `sources` are
    all of the pipeline."""
    others = [name for name in sources if name != source]
    address = F.when(_text(TOPIC) == F.col("topic"), _text(FOR))
    is_ours = (
        address.eqNullSafe(group)
        & ~F.coalesce(_text(SOURCE).isin(others), F.lit(False))
        & ~F.coalesce(_is_read_anew(generation, source), F.lit(False))
    )
    return address.isNull() | is_ours


def _is_read_anew(generation: Generation, source: str) -> Column:
    """Whether a life later than the one that had refused the record has read it, or will. A record of
    another lineage was refused before all lives of this one."""
    name = _text(GENERATION)
    refused_in = F.when(
        F.startswith(name, F.lit(f"{generation.lineage}.")),
        F.substring_index(name, ".", -1).try_cast("int"),
    ).otherwise(F.lit(0))
    offset = _text(OFFSET).try_cast("bigint")
    place = F.concat_ws("-", "topic", "partition")

    def reads_it(life: Column) -> Column:
        # What a life does not name it reads from the oldest on.
        begin = F.coalesce(F.try_element_at(life["begins"], place), F.lit(EARLIEST_OFFSET))
        return (life["number"] > refused_in) & (begin <= offset)

    return name.isNotNull() & F.exists(_lives(generation, source), reads_it)


def _lives(generation: Generation, source: str) -> Column:
    """The lives that read this source, as one value: they may be many."""
    lives = [
        {"number": number, "begins": _by_place(start[source])}
        for number, start in generation.lives
        if source in start
    ]
    kind = "ARRAY<STRUCT<number: INT, begins: MAP<STRING, BIGINT>>>"
    return F.from_json(F.lit(json.dumps(lives)), kind)


def _by_place(start: Position) -> dict[str, int]:
    return {
        f"{topic}-{number}": offset for topic, numbers in start.items() for number, offset in numbers.items()
    }


def _text(name: str) -> Column:
    """The value of the first header of this name, or null."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.get(found, F.lit(0))["value"].cast("string")
