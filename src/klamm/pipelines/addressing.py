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

from collections.abc import Iterable
from functools import reduce
from operator import or_

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
    reads = [
        (F.lit(number) > refused_in) & (_begin(start[source]) <= _text(OFFSET).try_cast("bigint"))
        for number, start in generation.lives
        if source in start
    ]
    return name.isNotNull() & reduce(or_, reads, F.lit(False))


def _begin(start: Position) -> Column:
    """Where a life begins in the partition of a row; what it does not name it reads from the oldest on."""
    pairs = [
        (F.lit(f"{topic}-{partition}"), F.lit(offset))
        for topic, partitions in start.items()
        for partition, offset in partitions.items()
    ]
    begins = F.create_map(*[part for pair in pairs for part in pair])
    found = F.try_element_at(begins, F.concat_ws("-", "topic", "partition"))
    return F.coalesce(found, F.lit(EARLIEST_OFFSET)) if pairs else F.lit(EARLIEST_OFFSET)


def _text(name: str) -> Column:
    """The value of the first header of this name, or null."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.get(found, F.lit(0))["value"].cast("string")
