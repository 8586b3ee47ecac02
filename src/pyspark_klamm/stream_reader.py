"""The reader of streaming queries: Spark's API over `stream_driver`.

On the driver, the reader runs in a process of its own as long as its query runs, and keeps the state of
`stream_driver`. Tasks get copies that only read. Offsets in Spark's checkpoint have the form of Kafka's
connector, {"topic": {"0": 23}}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_klamm.batch_reader import RangePartition, read_partition
from pyspark_klamm.connections import connection_for
from pyspark_klamm.group_offsets import tell_query_id
from pyspark_klamm.offsets import JsonOffsets, from_json, to_json
from pyspark_klamm.options import ReadOptions
from pyspark_klamm.stream_driver import StreamDriver

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KlammStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> JsonOffsets:
        return to_json(self._driving().initial_offset())

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark has no limit with both a minimum and a maximum; `latestOffset` applies ours. Spark passes
        # ReadAllAvailable for triggers that read everything, which turns all limits off.
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        self._driving().stop_at_what_is_there()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        is_limited = not isinstance(limit, ReadAllAvailable)
        return to_json(self._driving().latest_offset(from_json(start), is_limited=is_limited))

    def reportLatestOffset(self) -> JsonOffsets | None:
        latest = self._driving().latest
        return None if latest is None else to_json(latest)

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        tasks = self._driving().plan(from_json(start), from_json(end))
        # One task tells the reader the query's id, after which the group of its offsets is named.
        meeting_group = self._driving().meeting_group() if tasks else None
        return [
            RangePartition(each, meeting_group if index == 0 else None) for index, each in enumerate(tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        if partition.meeting_group is not None:
            connection = connection_for(self._options.client)
            tell_query_id(connection, partition.meeting_group, partition.ranges[0])
        return read_partition(self._options, self._schema, partition.ranges)

    def _driving(self) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(connection_for(self._options.client), self._options)
        return self._driver
