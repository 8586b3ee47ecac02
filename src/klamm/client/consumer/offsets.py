"""Asks leaders for offsets: the two ends of partitions, offsets by time, and where leader epochs ended.

All leaders are asked at once, in one request each. The result of an attempt has, for each partition, the
offset or an error; the caller decides what to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from klamm.client.errors import BrokerError, ClientError
from klamm.client.network.network import Network
from klamm.client.results import OffsetAndTime, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which fresh metadata is requested."""


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the requested one, and its end offset; -1, -1 if there is none."""

    epoch: int
    end_offset: int


class OffsetsFound(NamedTuple):
    """Offset -1: there is no record at or after the time."""

    found: dict[TopicPartition, OffsetAndTime]
    failures: dict[TopicPartition, ClientError]


class EpochEndsFound(NamedTuple):
    found: dict[TopicPartition, EpochEnd]
    failures: dict[TopicPartition, ClientError]


class OffsetLookup:
    """Look-ups for one consumer. With read_committed, a log ends at its first open transaction."""

    def __init__(self, network: Network, *, is_read_committed: bool) -> None:
        self._network = network
        self._isolation_level = 1 if is_read_committed else 0

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTime]:
        """The first record at or after each time, for all partitions, trying again until `timeout`.

        Topics that the consumer does not read are in its metadata only until the answer is there: later
        refreshes could bring them back after they were deleted.
        """
        found: dict[TopicPartition, OffsetAndTime] = {}

        async def attempt() -> None:
            left = {partition: time for partition, time in timestamps.items() if partition not in found}
            answer = await self.try_list_offsets(left)
            found.update(answer.found)
            if answer.failures:
                # Raise an error that is not retriable, if there is one: it ends the retries.
                raise min(answer.failures.values(), key=lambda error: error.retriable)

        names = ", ".join(str(partition) for partition in timestamps)
        with self._network.topics_of_call({partition.topic for partition in timestamps}):
            await self._network.retrying(f"looking for the offsets of {names}", timeout, attempt)
        return found

    async def try_list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> OffsetsFound:
        """One attempt, for topics that are wanted in the metadata. Timestamps are those of ListOffsets: -1 is
        the end, -2 the beginning."""
        result = OffsetsFound({}, {})
        by_leader = await self._by_leader(timestamps, result.failures)
        await asyncio.gather(
            *(self._list_at(node_id, group, timestamps, result) for node_id, group in by_leader.items())
        )
        self._refresh_if_moved(result.failures)
        return result

    async def try_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> EpochEndsFound:
        """One attempt to learn where leader epochs ended."""
        result = EpochEndsFound({}, {})
        by_leader = await self._by_leader(epochs, result.failures)
        await asyncio.gather(
            *(self._epochs_at(node_id, group, epochs, result) for node_id, group in by_leader.items())
        )
        self._refresh_if_moved(result.failures)
        return result

    # ---- one leader

    async def _list_at(
        self,
        node_id: int,
        leaders: dict[TopicPartition, int],
        timestamps: Mapping[TopicPartition, int],
        result: OffsetsFound,
    ) -> None:
        topics: dict[str, ListOffsetsTopic] = {}
        for partition, epoch in leaders.items():
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=epoch,
                    timestamp=timestamps[partition],
                )
            )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=self._isolation_level, topics=list(topics.values())
        )
        try:
            response: ListOffsetsResponse = await self._network.call(node_id, request)
        except ClientError as error:
            result.failures.update(dict.fromkeys(leaders, error))
            return
        for answered in response.topics:
            for each in answered.partitions:
                partition = TopicPartition(answered.name, each.partition_index)
                if each.error_code == ErrorCode.NONE:
                    found = OffsetAndTime(each.offset, each.timestamp, each.leader_epoch)
                    result.found[partition] = found
                else:
                    what = f"asking broker {node_id} for an offset of {partition}"
                    result.failures[partition] = BrokerError.of(each.error_code, what)
        _blame_silence(leaders, result.found, result.failures, node_id)

    async def _epochs_at(
        self,
        node_id: int,
        leaders: dict[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        result: EpochEndsFound,
    ) -> None:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for partition, leader_epoch in leaders.items():
            topic = topics.setdefault(partition.topic, OffsetForLeaderTopic(topic=partition.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=partition.partition,
                    current_leader_epoch=leader_epoch,
                    leader_epoch=epochs[partition],
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))
        try:
            response: OffsetForLeaderEpochResponse = await self._network.call(node_id, request)
        except ClientError as error:
            result.failures.update(dict.fromkeys(leaders, error))
            return
        for answered in response.topics:
            for each in answered.partitions:
                partition = TopicPartition(answered.topic, each.partition)
                if each.error_code == ErrorCode.NONE:
                    result.found[partition] = EpochEnd(each.leader_epoch, each.end_offset)
                else:
                    what = f"asking broker {node_id} where epoch {epochs.get(partition)} of {partition} ended"
                    result.failures[partition] = BrokerError.of(each.error_code, what)
        _blame_silence(leaders, result.found, result.failures, node_id)

    # ---- leaders

    async def _by_leader(
        self, partitions: Iterable[TopicPartition], failures: dict[TopicPartition, ClientError]
    ) -> dict[int, dict[TopicPartition, int]]:
        """Partitions with their leader epochs, by leader. Those without a known leader go to `failures`."""
        partitions = list(partitions)
        metadata = self._network.metadata
        if any(metadata.leader(*partition) is None for partition in partitions):
            try:
                await self._network.request_refresh()
            except ClientError as error:
                failures.update(dict.fromkeys(partitions, error))
                return {}
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition in partitions:
            leader = metadata.leader(*partition)
            if leader is None:
                failures[partition] = self._no_leader(partition)
            else:
                by_leader.setdefault(leader[0], {})[partition] = leader[1]
        return by_leader

    def _no_leader(self, partition: TopicPartition) -> ClientError:
        topic = self._network.metadata.topics.get(partition.topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is not None:
            known = self._network.metadata.partition(*partition)
            if known is not None:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            elif not topic.exists and topic.error != ErrorCode.NONE:
                code = topic.error
        return BrokerError.of(code, f"looking for the leader of {partition}")

    def _refresh_if_moved(self, failures: Mapping[TopicPartition, ClientError]) -> None:
        if any(error.code in _MOVED or error.code is None for error in failures.values()):
            self._network.request_refresh()


def _blame_silence(
    asked: Iterable[TopicPartition],
    found: Mapping[TopicPartition, object],
    failures: dict[TopicPartition, ClientError],
    node_id: int,
) -> None:
    """Count a partition that is missing in the answer as failed; the consumer would wait for it forever."""
    for partition in asked:
        if partition not in found and partition not in failures:
            what = f"asking broker {node_id} about {partition}"
            failures[partition] = BrokerError.of(
                ErrorCode.UNKNOWN_SERVER_ERROR, what, "the answer leaves it out"
            )
