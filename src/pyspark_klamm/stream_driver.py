"""The state of a stream between triggers: decides where to start and how far the next batch reads.

Invariant: processed offsets are committed to the query's group before the next batch is planned, and after
the last one. If there is nothing to read, the answer to Spark is delayed for a moment, because Spark would
ask again at once; but not while other sources of the same query are busy, and only so long that stopping the
query stays quick.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from klamm.model.ids import TopicPartition
from pyspark_klamm.connections import Connection
from pyspark_klamm.errors import report_losses
from pyspark_klamm.group_offsets import GroupOffsets
from pyspark_klamm.lookup import ClusterLookup
from pyspark_klamm.offsets import Offsets
from pyspark_klamm.options import ReadOptions
from pyspark_klamm.planning import (
    OffsetRange,
    TriggerGate,
    count_records,
    first_start,
    limited,
    plan_ranges,
    plan_tasks,
    unstarted,
)

METADATA_AGE_S = 1.0
"""How old metadata may be: new topics and partitions are seen after this time."""

IDLE_WAIT_S = 0.15
"""How long to wait for new records before answering Spark. Stopping a query waits as long."""

IDLE_GAP_S = 0.05
"""An idle Spark asks again within 15 ms. A longer gap means that it was busy."""

BACKWARD_ATTEMPTS = 3
"""How often to ask again if a log seems to end before what was read: a new leader may be behind."""

BACKWARD_PAUSE_S = 0.2


class StreamDriver:
    """The reader of one streaming query, independent of Spark's API."""

    def __init__(self, connection: Connection, options: ReadOptions) -> None:
        self._connection = connection
        self._options = options
        self._lookup = ClusterLookup(connection, options.subscription)
        self._group = GroupOffsets(
            connection, options.group_id, options.group_id_prefix, makes_group=options.stopping is None
        )
        self._gate: TriggerGate | None = None
        if options.min_offsets_per_trigger is not None:
            self._gate = TriggerGate(options.min_offsets_per_trigger, options.max_trigger_delay_seconds)
        self._initial: Offsets | None = None
        self._last_stop: Offsets | None = None
        """The end of an AvailableNow query."""
        self._answered_at = float("-inf")
        self.latest: Offsets | None = None
        """The ends of the logs when they were last asked for."""

    def initial_offset(self) -> Offsets:
        """The start of a query that has not finished a batch yet."""
        self._initial = self._connection.run(self._lookup.starts(self._options))
        return self._initial

    def stop_at_what_is_there(self) -> None:
        """Make the query end at the present ends of the logs."""
        self._last_stop = self._connection.run(self._lookup.latest(0.0))

    def latest_offset(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """The end of the next batch; `start`, up to which all is processed, if there is no next batch."""
        is_idle = time.monotonic() - self._answered_at < IDLE_GAP_S and self._last_stop is None
        try:
            return self._connection.run(self._latest_offset(start, is_limited, is_idle))
        finally:
            self._answered_at = time.monotonic()

    def plan(self, start: Offsets, end: Offsets) -> list[tuple[OffsetRange, ...]]:
        """The ranges of a batch, those of each task together."""
        if start == self._initial and self.latest is None:  # an earlier process has planned this batch
            start = first_start(start, end, self._options.starting.is_latest)
        earliest: Mapping[TopicPartition, int] = {}
        if new := unstarted(start, end):
            earliest = self._connection.run(self._lookup.earliest(new))
        plan = plan_ranges(start, end, earliest)
        if plan.losses:
            report_losses(plan.losses, self._options.fail_on_data_loss)
        options = self._options
        return plan_tasks(plan.ranges, options.min_partitions, options.max_records_per_partition)

    def meeting_group(self) -> str | None:
        return self._group.meeting_group()

    # ---- on the loop

    async def _latest_offset(self, start: Offsets, is_limited: bool, is_idle: bool) -> Offsets:
        end, _ = await asyncio.gather(self._find_end(start), self._group.commit(start))
        chosen = await self._within_limits(start, self._before_the_stop(start, end), is_limited)
        if chosen == start and is_idle:
            await self._lookup.wait_for_records(end, IDLE_WAIT_S)
            end = await self._find_end(start)
            chosen = await self._within_limits(start, self._before_the_stop(start, end), is_limited)
        return chosen

    async def _find_end(self, start: Offsets) -> Offsets:
        if self._last_stop is not None:
            self.latest = self._last_stop
            return self._last_stop
        self.latest = await self._lookup.latest(METADATA_AGE_S)
        for _ in range(BACKWARD_ATTEMPTS):
            if all(end >= start.get(each, end) for each, end in self.latest.items()):
                break
            await asyncio.sleep(BACKWARD_PAUSE_S)
            self.latest = await self._lookup.latest(0.0)
        return self.latest

    def _before_the_stop(self, start: Offsets, end: Offsets) -> Offsets:
        """The end of what is to be read, for a stream that stops. Partitions without a stop are not read."""
        stop = self._options.stopping
        if stop is None:
            return end
        return {
            each: last if last < start.get(each, 0) else min(last, max(stop.get(each, 0), start.get(each, 0)))
            for each, last in end.items()
            if each in start or each in stop
        }

    async def _within_limits(self, start: Offsets, end: Offsets, is_limited: bool) -> Offsets:
        if not is_limited or start == end:
            return end
        known = {**start, **await self._lookup.earliest(unstarted(start, end))}
        end = {each: last for each, last in end.items() if each in known}
        if self._gate is not None and self._last_stop is None:
            # Deleted partitions are reported at once, without waiting for enough records.
            is_held = end.keys() >= start.keys()
            if is_held and not self._gate.lets_pass(count_records(known, end), time.monotonic()):
                return start
        most = self._options.max_offsets_per_trigger
        return end if most is None else limited(known, end, most)
