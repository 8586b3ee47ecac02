"""How many records to redrive are older than the watermark of their pipeline, so that they may be dropped.

The records go through the pipeline's functions as a batch, up to each place at which a function sets a
watermark: there the rows have their event time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from klamm.pipelines import frames
from klamm.pipelines.definitions import Definitions, Pipeline
from klamm.pipelines.original_rows import original_rows
from klamm.pipelines.originals import Found
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("klamm.pipelines")


class Watermarked(NamedTuple):
    """Rows for which a function sets a watermark, and their column with the event time."""

    rows: DataFrame
    column: str


def count_late(
    project: Project,
    pipeline: Pipeline,
    definitions: Definitions,
    originals: Mapping[str, Sequence[Found]],
    watermark_ms: int,
    spark: SparkSession,
) -> int | None:
    """How many of the original records, by source, are older than the watermark; None if that cannot be
    known, as the functions fail. Sends no dead-letter records."""
    try:
        with noted_watermarks() as found:
            records = {name: original_rows(some, spark) for name, some in originals.items()}
            frames.build(
                pipeline, definitions, project, spark, streaming=False, records=records, explains=True
            )
        return _late_rows(found, watermark_ms)
    except Exception as error:  # the functions are users' own; the redrive goes on without the count
        logger.warning("the records of %s cannot be compared with its watermark: %s", pipeline.name, error)
        return None


@contextmanager
def noted_watermarks() -> Iterator[list[Watermarked]]:
    """Note the watermarks that functions set in this block. In a batch Spark itself ignores them."""
    from pyspark.sql.classic.dataframe import DataFrame as Classic

    found: list[Watermarked] = []
    original = Classic.withWatermark

    def noting(rows: Classic, eventTime: str, delayThreshold: str) -> DataFrame:
        found.append(Watermarked(rows, eventTime))
        return original(rows, eventTime, delayThreshold)

    Classic.withWatermark = noting  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        Classic.withWatermark = original  # type: ignore[method-assign]


def _late_rows(found: Sequence[Watermarked], watermark_ms: int) -> int:
    """How many records have a row that is late at one of these places; rows that no longer name their record
    count one by one."""
    from pyspark.sql import functions as F

    watermark = F.timestamp_millis(F.lit(watermark_ms))
    named = ("_topic", "_partition", "_offset")
    records: DataFrame | None = None
    others = 0
    for rows, column in found:
        late = rows.filter(F.col(column).cast("timestamp") < watermark)
        if not all(name in rows.columns for name in named):
            others += late.count()
            continue
        late = late.select(*named)
        records = late if records is None else records.union(late)
    return others + (records.distinct().count() if records is not None else 0)
