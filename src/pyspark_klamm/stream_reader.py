"""Reading topics without end: Spark asks how far there are records, and has tasks read up to there.

The reader lives in a process on the driver for as long as its query runs; tasks get copies that only read.
Offsets in Spark's checkpoint are those of Kafka's connector, {"topic": {"0": 23}}.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from klamm.model.ids import TopicPartition
from pyspark_klamm.batch_reader import RangePartition, read_partition
from pyspark_klamm.connections import Connection, connection_for
from pyspark_klamm.errors import data_loss
from pyspark_klamm.group_offsets import GroupOffsets, tell_query_id
from pyspark_klamm.lookup import ClusterLookup
from pyspark_klamm.offsets import JsonOffsets, Offsets, from_json, to_json
from pyspark_klamm.options import ReadOptions
from pyspark_klamm.planning import (
    TriggerGate,
    count_records,
    limited,
    plan_ranges,
    split_ranges,
    unstarted,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("pyspark_klamm")

METADATA_AGE_S = 1.0
"""How soon a stream sees new topics and partitions."""


class KlammStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's reader: Spark's calls, in its words."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> JsonOffsets:
        return to_json(self._driving().initial_offset())

    def getDefaultReadLimit(self) -> ReadLimit:
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
        return self._driving().partitions(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        if partition.meeting_group is not None:
            tell_query_id(connection_for(self._options.client), partition.meeting_group, partition.wanted)
        return read_partition(self._options, self._schema, partition.wanted)

    def _driving(self) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(self._options)
        return self._driver


class StreamDriver:
    """What a stream's reader remembers from trigger to trigger."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection: Connection = connection_for(options.client)
        self._lookup = ClusterLookup(self._connection, options.subscription)
        self._group = GroupOffsets(self._connection, options.group_id, options.group_id_prefix)
        self._gate: TriggerGate | None = None
        if options.min_offsets_per_trigger is not None:
            self._gate = TriggerGate(options.min_offsets_per_trigger, options.max_trigger_delay_seconds)
        self._last_stop: Offsets | None = None
        """Where an AvailableNow query ends."""
        self.latest: Offsets | None = None
        """Where the logs ended when they were last looked at."""

    def initial_offset(self) -> Offsets:
        return self._connection.run(self._initial_offset())

    async def _initial_offset(self) -> Offsets:
        options = self._options
        partitions = await self._lookup.all_partitions()
        return await self._lookup.resolve(options.starting, partitions, options.latest_if_no_record)

    def stop_at_what_is_there(self) -> None:
        self._last_stop = self._connection.run(self._lookup.latest(0.0))

    def latest_offset(self, start: Offsets, *, is_limited: bool) -> Offsets:
        return self._connection.run(self._latest_offset(start, is_limited))

    async def _latest_offset(self, start: Offsets, is_limited: bool) -> Offsets:
        end, _ = await asyncio.gather(self._find_end(start), self._group.commit(start))
        return await self._within_limits(start, end) if is_limited else end

    async def _find_end(self, start: Offsets) -> Offsets:
        if self._last_stop is not None:
            self.latest = self._last_stop
            return self._last_stop
        self.latest = await self._lookup.latest(METADATA_AGE_S)
        return self.latest

    async def _within_limits(self, start: Offsets, end: Offsets) -> Offsets:
        known = {**start, **await self._lookup.earliest(unstarted(start, end))}
        end = {each: last for each, last in end.items() if each in known}
        if self._gate is not None and self._last_stop is None:
            available = count_records(known, end)
            if not self._gate.lets_pass(available, time.monotonic()):
                return start
        most = self._options.max_offsets_per_trigger
        return end if most is None else limited(known, end, most)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        earliest: Mapping[TopicPartition, int] = {}
        if new := unstarted(start, end):
            earliest = self._connection.run(self._lookup.earliest(new))
        plan = plan_ranges(start, end, earliest)
        if plan.losses:
            if self._options.fail_on_data_loss:
                raise data_loss(plan.losses)
            logger.warning("%s; going on without", "; ".join(plan.losses))
        options = self._options
        parts = split_ranges(plan.ranges, options.min_partitions, options.max_records_per_partition)
        meeting_group = self._group.meeting_group() if parts else None
        return [
            RangePartition(each, meeting_group if index == 0 else None) for index, each in enumerate(parts)
        ]
