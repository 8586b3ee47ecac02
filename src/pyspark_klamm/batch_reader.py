"""The reader of batch queries: the offsets are chosen when the query is planned, and tasks read their ranges.

Planning runs in a process on the driver, tasks run in workers on the executors. Spark pickles the reader with
its options, and a range of offsets for each task, from one to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_klamm.connections import Connection, connection_for
from pyspark_klamm.lookup import ClusterLookup
from pyspark_klamm.options import ReadOptions
from pyspark_klamm.planning import OffsetRange, plan_tasks
from pyspark_klamm.worker_memory import freeze_loaded_objects, keep_freed_memory

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class RangePartition(InputPartition):
    """What one task reads."""

    ranges: tuple[OffsetRange, ...]
    meeting_group: str | None = None
    """The group in which the task of a stream leaves the id of its query, see group_offsets."""


class KlammBatchReader(DataSourceReader):
    """The reader of a batch query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        connection = connection_for(self._options.client)
        ranges = connection.run(plan_batch(connection, self._options))
        options = self._options
        tasks = plan_tasks(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(
            partition, RangePartition
        ):  # if there are no ranges, Spark adds a partition of its own
            return iter(())
        return read_partition(self._options, self._schema, partition.ranges)


async def plan_batch(connection: Connection, options: ReadOptions) -> list[OffsetRange]:
    """The ranges of a batch query, from the offsets that brokers have now."""
    lookup = ClusterLookup(connection, options.subscription)
    starts = await lookup.starts(options)
    ends = await lookup.ends(options)
    return [
        OffsetRange(*each, start, ends[each])
        for each, start in sorted(starts.items())
        if each in ends and start < ends[each]
    ]


def read_partition(options: ReadOptions, schema: StructType, ranges: Iterable[OffsetRange]) -> Iterator[Any]:
    """The Arrow batches that a task returns to Spark."""
    from pyspark_klamm.fetching import read_range
    from pyspark_klamm.retried import as_originals
    from pyspark_klamm.rows import RowDecoder

    keep_freed_memory()
    for wanted in ranges:
        batches = read_range(
            connection_for(options.client),
            wanted,
            RowDecoder(schema),
            fails_on_loss=options.fail_on_data_loss,
            patience_seconds=options.poll_timeout_seconds,
        )
        is_retried = wanted.topic == options.subscription.retry_topic
        yield from map(as_originals, batches) if is_retried else batches
    freeze_loaded_objects()
