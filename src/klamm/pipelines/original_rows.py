"""Original records of dead-letter records as rows of the data source, with the coordinates that they had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from klamm.pipelines.newest import ARROW_COLUMNS
from klamm.pipelines.originals import Found, of_the_original

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def original_rows(found: Iterable[Found], spark: SparkSession) -> DataFrame:
    """The rows of these records."""
    return spark.createDataFrame(pa.Table.from_pylist([_row(each) for each in found], ARROW_COLUMNS))


def _row(found: Found) -> dict[str, object]:
    dead_letter, original = found
    headers = [{"key": name, "value": value} for name, value in of_the_original(original)]
    return {
        "key": original.key,
        "value": original.value,
        "topic": dead_letter.topic,
        "partition": dead_letter.partition,
        "offset": dead_letter.offset,
        "timestamp": None if dead_letter.timestamp is None else dead_letter.timestamp * 1000,
        "timestampType": 0,
        "headers": headers or None,
    }
