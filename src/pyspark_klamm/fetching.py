"""Fetches a range of offsets in a task, as Arrow batches in Spark's schema.

While a batch is decoded and read by Spark, the next fetch is in flight on the connection's thread.
Invariants:
- A range ends at its end offset, even if the last offsets are gaps: control batches, aborted transactions, or
  records that compaction has removed.
- Missing records are never skipped silently: they fail the task, or are logged if failOnDataLoss is false.
- The fetcher waits for a moved leader or a restarting broker, up to kafkaConsumer.pollTimeoutMs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from klamm.client.errors import BrokerError, ClientError, TimedOut
from klamm.client.network.network import Versioned
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from klamm.records.fetched import FetchedRecords, end_offset
from pyspark_klamm.connections import Connection
from pyspark_klamm.errors import report_losses
from pyspark_klamm.lookup import LAST_FETCH_BY_NAME
from pyspark_klamm.offsets import EARLIEST, LATEST
from pyspark_klamm.planning import OffsetRange

FIRST_FETCH_BYTES = 1024 * 1024
"""The size of the first fetch, when the size of records is not known yet."""

MAX_FETCH_BYTES = 4 * 1024 * 1024
"""The largest fetch. Brokers send answers of this size fastest, and a task holds two of them."""

LEAST_FETCH_BYTES = 64 * 1024
"""The smallest fetch: the rest of a range may be larger than estimated."""

SPARE_SHARE = 1.1
"""A fetch asks for this many times the estimated size, as records differ in size."""

MAX_WAIT_MS = 500
"""How long a broker may park a fetch. The records of a range exist already, so this is rare."""

GONE_SECONDS = 5.0
"""How long a topic may be unknown before it counts as deleted: metadata reaches brokers one by one."""

LANE = "fetch"
_EMPTY_ANSWERS = 2
"""After so many empty answers in a row the rest of a range counts as a gap."""


class Fetched(NamedTuple):
    """One answer: its records, if any, and the offset of the next fetch."""

    records: FetchedRecords | None
    next_offset: int


class RangeFetcher:
    """Fetches one range, answer by answer. `fetch` runs on the connection's loop."""

    def __init__(
        self, connection: Connection, wanted: OffsetRange, *, fails_on_loss: bool, patience_seconds: float
    ) -> None:
        self._connection = connection
        self._settings = connection.fetch_settings
        self._wanted = wanted
        self._fails_on_loss = fails_on_loss
        self._patience_seconds = patience_seconds
        self._replica: int | None = None
        """The follower that the leader told us to fetch from (KIP-392)."""
        self._bytes_per_offset = 0.0
        self._empty_answers = 0

    async def fetch(self, offset: int) -> Fetched:
        """Fetch the next records at or after `offset`. At the end of the range, `next_offset` is its end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_seconds
        unknown_since: float | None = None
        failures = 0
        last: ClientError | None = None
        error: ClientError | None
        while True:
            try:
                data = await self._ask(offset)
                error = None if data is None else self._error(data, offset)
            except ClientError as caught:
                if not caught.retriable:
                    raise
                error = caught
            if error is None:
                answer = None if data is None else self._take(data, offset)
                if answer is not None:
                    return answer
                failures = 0
            elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE and self._replica is not None:
                self._replica = None  # a follower may be behind or ahead: ask the leader
            elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                answer = await self._out_of_range(offset)
                if answer is not None:
                    return answer
                failures += 1
                await self._pause(failures)
            elif isinstance(error, BrokerError) and not error.retriable:
                raise error
            else:
                last = error
                failures += 1
                self._replica = None
                if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                    unknown_since = unknown_since or loop.time()
                    if loop.time() - unknown_since > GONE_SECONDS:
                        return self._lost(
                            offset, self._wanted.end, "the topic or the partition no longer exists"
                        )
                self._connection.network.request_refresh()
                await self._pause(failures)
            if loop.time() > deadline:
                what = f"fetching {self._wanted.place} from offset {offset} up to {self._wanted.end}"
                raise TimedOut(what, self._patience_seconds, cause=last) from last

    async def _pause(self, failures: int) -> None:
        await asyncio.sleep(self._settings.backoff.pause(failures, random.random()))

    # ---- one request

    async def _ask(self, offset: int) -> PartitionData | None:
        """The broker's answer for the partition. None if the answer is empty because of a quota: the
        connection delays the next request for as long as the answer says.
        """
        topic, partition = self._wanted.place
        network = self._connection.network
        leader = network.metadata.leader(topic, partition)
        if leader is None:
            network.want_topics([topic])
            await network.request_refresh()
            leader = network.metadata.leader(topic, partition)
            if leader is None:
                known = network.metadata.partition(topic, partition)
                code = ErrorCode.LEADER_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise BrokerError.of(code, f"looking for the leader of {self._wanted.place}")
        node, epoch = leader

        def build(version: int) -> FetchRequest:
            one = FetchPartition(
                partition=partition,
                current_leader_epoch=epoch if self._replica is None else -1,
                fetch_offset=offset,
                partition_max_bytes=self._fetch_bytes(offset),
            )
            return FetchRequest(
                max_wait_ms=MAX_WAIT_MS,
                min_bytes=1,
                max_bytes=self._settings.max_bytes,
                isolation_level=1 if self._settings.is_read_committed else 0,
                topics=[FetchTopic(topic=topic, partitions=[one])],
                rack_id=self._settings.rack,
            )

        response = await network.call(
            node if self._replica is None else self._replica,
            Versioned(FetchRequest, build),
            lane=LANE,
            max_version=LAST_FETCH_BY_NAME,
        )
        if response.error_code != ErrorCode.NONE:
            raise BrokerError.of(response.error_code, f"fetching {self._wanted.place} on broker {node}")
        found: list[PartitionData] = [each for topic in response.responses for each in topic.partitions]
        return found[0] if found else None

    def _fetch_bytes(self, offset: int) -> int:
        if not self._bytes_per_offset:
            return max(FIRST_FETCH_BYTES, self._settings.partition_max_bytes)
        left = self._bytes_per_offset * (self._wanted.end - offset) * SPARE_SHARE
        return max(
            LEAST_FETCH_BYTES, min(int(left), max(MAX_FETCH_BYTES, self._settings.partition_max_bytes))
        )

    # ---- answers

    def _take(self, data: PartitionData, offset: int) -> Fetched | None:
        """The records of an answer; None if there are none yet."""
        if data.preferred_read_replica >= 0 and data.preferred_read_replica != self._replica:
            self._replica = data.preferred_read_replica
            return None
        if data.records:
            aborted = None
            if self._settings.is_read_committed:
                aborted = tuple(
                    (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
                )
            fetched = FetchedRecords(
                *self._wanted.place, memoryview(data.records), offset, aborted, self._settings.check_crcs
            )
            try:
                next_offset = end_offset(fetched)
            except KafkaError:  # the decoder raises the error, after the records before it
                return Fetched(fetched, self._wanted.end)
            if next_offset > offset:
                self._bytes_per_offset = len(data.records) / (next_offset - offset)
                self._empty_answers = 0
                return Fetched(fetched, next_offset)
        visible = data.last_stable_offset if self._settings.is_read_committed else data.high_watermark
        if visible >= self._wanted.end:
            self._empty_answers += 1
            if self._empty_answers >= _EMPTY_ANSWERS:
                return Fetched(None, self._wanted.end)
        return None

    def _error(self, data: PartitionData, offset: int) -> BrokerError | None:
        if data.error_code == ErrorCode.NONE:
            return None
        return BrokerError.of(data.error_code, f"fetching {self._wanted.place} from offset {offset}")

    async def _out_of_range(self, offset: int) -> Fetched | None:
        """Handle an offset outside of the log, which begins later or ends before. None if it is inside by
        now."""
        place = self._wanted.place
        lookup = self._connection.lookup
        seconds = self._connection.timeout_seconds
        earliest = (await lookup.list_offsets({place: EARLIEST}, seconds))[place].offset
        latest = (await lookup.list_offsets({place: LATEST}, seconds))[place].offset
        there = f"the log has the offsets from {earliest} to {latest - 1}"
        if offset < earliest:
            return self._lost(offset, min(earliest, self._wanted.end), there)
        if offset > latest:
            return self._lost(offset, self._wanted.end, there)
        return None

    def _lost(self, first: int, end: int, reason: str) -> Fetched:
        place = self._wanted.place
        loss = (
            f"{place}: the records from offset {first} to {end - 1} no longer exist, of the range "
            f"{self._wanted.start} to {self._wanted.end - 1}; {reason}"
        )
        report_losses([loss], self._fails_on_loss)
        return Fetched(None, end)


def read_range(
    connection: Connection,
    wanted: OffsetRange,
    decode: Any,
    *,
    fails_on_loss: bool,
    patience_seconds: float,
) -> Iterator[Any]:
    """The range as Arrow batches, decoded by `decode`."""
    fetcher = RangeFetcher(connection, wanted, fails_on_loss=fails_on_loss, patience_seconds=patience_seconds)
    in_flight = connection.begin(fetcher.fetch(wanted.start))
    try:
        while True:
            answer = in_flight.result()
            if answer.next_offset < wanted.end:
                in_flight = connection.begin(fetcher.fetch(answer.next_offset))
            if answer.records is not None:
                yield from decode(answer.records, min(answer.next_offset, wanted.end))
            if answer.next_offset >= wanted.end:
                return
    finally:
        in_flight.cancel()
