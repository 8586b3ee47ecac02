"""Records that a redrive has sent back: which pipeline takes them, and which have had them.

A dead letter goes back for the pipeline that had refused it: the others have had the record, and would have
its rows twice. And a pipeline that is replayed reads the records anew that it had refused: it passes over
what came back of them in an earlier generation. Consumers that are no pipelines see all such records.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from klamm.pipelines.positions import Position
from klamm.pipelines.state import FIRST_GENERATION

FOR = "klamm.for"
"""The header with the group of the pipeline that a record is for; a record without it is for all."""

GENERATION, OFFSET = "klamm.generation", "klamm.offset"
"""Headers: the generation of the pipeline that had refused the record, and where the record was then."""


def is_for(group: str, generation: int, start: Position) -> Column:
    """Whether a row of Spark's schema for records is for this generation of a pipeline, which has begun at
    `start`. Never null."""
    address = _header(FOR).cast("string")
    return address.isNull() | (address.eqNullSafe(group) & ~_is_read_anew(generation, start))


def _is_read_anew(generation: int, start: Position) -> Column:
    """Whether the record that this one came back for is among those that the generation reads itself."""
    begins = [
        (F.lit(f"{topic}-{partition}"), F.lit(offset))
        for topic, partitions in start.items()
        for partition, offset in partitions.items()
    ]
    if generation == FIRST_GENERATION or not begins:
        return F.lit(False)
    begin = F.try_element_at(
        F.create_map(*[part for pair in begins for part in pair]), F.concat_ws("-", "topic", "partition")
    )
    is_older = _header(GENERATION).cast("string").try_cast("int") < generation
    return F.coalesce(is_older & (_header(OFFSET).cast("string").try_cast("bigint") >= begin), F.lit(False))


def _header(name: str) -> Column:
    """The value of the first header of this name, or null."""
    return F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
