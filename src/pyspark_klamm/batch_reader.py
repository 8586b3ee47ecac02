"""Reading a topic once: the offsets are settled when the query is planned, the tasks read their ranges.

Planning runs in a process on the driver, tasks run in workers on the executors; what travels between them is
a pickled reader with its options, and a range of offsets for each task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_klamm.connections import Connection, connection_for
from pyspark_klamm.lookup import ClusterLookup
from pyspark_klamm.options import ReadOptions
from pyspark_klamm.planning import OffsetRange, split_ranges
from pyspark_klamm.worker_memory import keep_freed_memory, settle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class RangePartition(InputPartition):
    """The work of one task."""

    wanted: OffsetRange
    meeting_group: str | None = None
    """Where the task of a stream tells the id of its query, see group_offsets."""


class KlammBatchReader(DataSourceReader):
    """A batch query's reader."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        connection = connection_for(self._options.client)
        ranges = connection.run(plan_batch(connection, self._options))
        options = self._options
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, RangePartition):  # Spark makes one of its own where there are no ranges
            return iter(())
        return read_partition(self._options, self._schema, partition.wanted)


async def plan_batch(connection: Connection, options: ReadOptions) -> list[OffsetRange]:
    """The ranges of a batch, from what there is now."""
    lookup = ClusterLookup(connection, options.subscription)
    starts = await lookup.starts(options)
    ends = await lookup.ends(options)
    return [
        OffsetRange(*each, start, ends[each])
        for each, start in sorted(starts.items())
        if each in ends and start < ends[each]
    ]


def read_partition(options: ReadOptions, schema: StructType, wanted: OffsetRange) -> Iterator[Any]:
    """What a task hands to Spark."""
    from pyspark_klamm.fetching import read_range
    from pyspark_klamm.rows import RowDecoder

    keep_freed_memory()
    yield from read_range(
        connection_for(options.client),
        wanted,
        RowDecoder(schema),
        fails_on_loss=options.fail_on_data_loss,
        patience_seconds=options.poll_timeout_seconds,
    )
    settle()
