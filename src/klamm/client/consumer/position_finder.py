"""Looks up where to read partitions whose position is not known: after an assignment, a reset, a new leader.

There are three look-ups: the group's committed offset; for partitions without one, the offset that `start`
names; and after a change of leader, where the leader's epochs ended. They run at the same time, so that a
coordinator that does not answer delays only the partitions that need it. An error that may pass is tried
again later. Any other error, or one that lasts longer than default.api.timeout.ms, is raised by a poll.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from time import time as wall_clock_seconds
from typing import TypeAlias

from klamm.client.consumer.group.offsets import CommittedFound
from klamm.client.consumer.offsets import EpochEnd, OffsetLookup
from klamm.client.consumer.partition_state import UNKNOWN, Need, PartitionState
from klamm.client.consumer.positions import Positions
from klamm.client.consumer.start import LATEST, StartPolicy
from klamm.client.errors import BrokerError, ClientError, NoOffset, OffsetOutOfRange, TimedOut
from klamm.client.logs import ClientLogger
from klamm.client.network.backoff import Backoff
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode

FetchCommitted: TypeAlias = Callable[[Collection[TopicPartition]], Awaitable[CommittedFound]]
"""One attempt to read committed offsets."""

Asked: TypeAlias = list[tuple[PartitionState, int]]
"""Partitions and their versions."""


class PositionFinder:
    """Looks up the positions of partitions of `positions`, on the loop of `lookup`."""

    def __init__(
        self,
        positions: Positions,
        lookup: OffsetLookup,
        policy: StartPolicy,
        committed: FetchCommitted | None,
        *,
        backoff: Backoff,
        patience_seconds: float,
        clock: Callable[[], float],
        logger: ClientLogger,
    ) -> None:
        self._positions = positions
        self._lookup = lookup
        self._policy = policy
        self._committed = committed
        self._backoff = backoff
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._logger = logger
        self._waiting_since: dict[tuple[PartitionState, int], float] = {}

    async def run(self, need: Need) -> None:
        """One attempt for all partitions that need this."""
        asked = self._positions.needing(need, self._clock())
        if not asked:
            return
        match need:
            case Need.COMMITTED:
                await self._ask_committed(asked)
            case Need.RESET:
                await self._ask_offsets(asked)
            case Need.VALIDATION:
                await self._ask_epochs(asked)

    # ---- committed offsets

    async def _ask_committed(self, asked: Asked) -> None:
        answer = CommittedFound({}, {})
        if self._committed is not None:
            answer = await self._committed([state.partition for state, _ in asked])
        for state, version in asked:
            error = answer.failures.get(state.partition)
            committed = answer.found.get(state.partition)
            if error is not None:
                self._failed(state, version, error)
            elif committed is not None:
                self._succeeded(state, version)
                self._positions.start_at(
                    state, version, committed.offset, committed.leader_epoch, is_committed=True
                )
            else:
                self._positions.reset_if_current(state, version, None)

    # ---- where to start

    async def _ask_offsets(self, asked: Asked) -> None:
        now_ms = int(wall_clock_seconds() * 1000)
        timestamps: dict[TopicPartition, int] = {}
        for state, version in asked:
            timestamp = (state.reset_to or self._policy).timestamp(now_ms)
            if timestamp is None:
                self._positions.fail(state, version, _no_offset(state.partition))
            else:
                timestamps[state.partition] = timestamp
        if not timestamps:
            return
        answer = await self._lookup.try_list_offsets(timestamps)
        # No record is as late as the requested time: start at the end of the log.
        later = {partition: LATEST for partition, found in answer.found.items() if found.offset < 0}
        if later:
            ends = await self._lookup.try_list_offsets(later)
            for partition in later:
                answer.found.pop(partition)
            answer.found.update(ends.found)
            answer.failures.update(ends.failures)
        for state, version in asked:
            if found := answer.found.get(state.partition):
                self._succeeded(state, version)
                self._tell_start(state, version, found.offset)
                self._positions.start_at(state, version, found.offset)
            elif error := answer.failures.get(state.partition):
                self._failed(state, version, error)

    def _tell_start(self, state: PartitionState, version: int, offset: int) -> None:
        before = state.out_of_range_offset
        if before == UNKNOWN or not self._positions.is_current(state, version):
            self._logger.debug("%s starts at offset %d", state.partition, offset)
        else:
            self._logger.warning(
                "%s has no offset %d: reading goes on at offset %d (start=%r) and passes over %d records",
                state.partition,
                before,
                offset,
                self._policy.word,
                max(0, offset - before),
            )

    # ---- new leaders

    async def _ask_epochs(self, asked: Asked) -> None:
        epochs = {state.partition: state.fetch_epoch for state, _ in asked if state.fetch_epoch != UNKNOWN}
        answer = await self._lookup.try_epoch_ends(epochs)
        for state, version in asked:
            error = answer.failures.get(state.partition)
            if error is None:
                self._succeeded(state, version)
                self._compare(state, version, answer.found.get(state.partition))
            elif error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                self._positions.validated(state, version)  # cannot be asked; fetching says what is wrong
            else:
                self._failed(state, version, error)

    def _compare(self, state: PartitionState, version: int, end: EpochEnd | None) -> None:
        """Check that the leader's log still has all records up to the fetch offset; if not, reset or fail."""
        if end is None or end.end_offset >= state.fetch_offset:
            self._positions.validated(state, version)
            return
        is_end_known = end.end_offset >= 0 and end.epoch >= 0
        if self._policy.word == "none":
            self._positions.fail(state, version, _cut_off(state, end.end_offset if is_end_known else None))
            return
        self._logger.warning(
            "the log of %s was cut: offset %d of epoch %d is gone, the new leader has this epoch up to %d",
            state.partition,
            state.fetch_offset,
            state.fetch_epoch,
            end.end_offset,
        )
        if is_end_known:
            self._positions.truncated(state, version, end.end_offset)
        else:
            self._positions.reset_if_current(state, version, None)

    # ---- trying again

    def _succeeded(self, state: PartitionState, version: int) -> None:
        self._waiting_since.pop((state, version), None)

    def _failed(self, state: PartitionState, version: int, error: ClientError) -> None:
        now = self._clock()
        since = self._waiting_since.setdefault((state, version), now)
        if not error.retriable:
            self._waiting_since.pop((state, version))
            self._positions.fail(state, version, error)
        elif now - since > self._patience_seconds:
            self._waiting_since.pop((state, version))
            what = f"finding where to read in {state.partition}"
            self._positions.fail(state, version, TimedOut(what, now - since, cause=error))
        self._positions.back_off(state, version, now, self._backoff, random.random())
        if len(self._waiting_since) > len(self._positions.states):
            self._forget_old()

    def _forget_old(self) -> None:
        current = self._positions.is_current
        self._waiting_since = {key: at for key, at in self._waiting_since.items() if current(*key)}


def _no_offset(partition: TopicPartition) -> NoOffset:
    return NoOffset(
        f"{partition} has no committed offset, and start='none' says not to guess one",
        advice="Seek to where you want to begin, or set `start`",
    )


def _cut_off(state: PartitionState, end_offset: int | None) -> BrokerError:
    to = "to an unknown offset" if end_offset is None else f"to offset {end_offset}"
    return OffsetOutOfRange(
        f"the log of {state.partition} was cut {to}, and offset {state.fetch_offset} was read already",
        code=ErrorCode.OFFSET_OUT_OF_RANGE,
        advice="Seek to where you want to go on, or set `start`",
    )
