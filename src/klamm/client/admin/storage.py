"""Data on the disks of brokers: delete records, describe log directories and idempotent producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.client.admin.calls import AdminCalls, Outcome
from klamm.client.admin.types import ActiveProducer, LogDirectory, ReplicaSize
from klamm.client.arguments import by_topic
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from klamm.protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicRequest,
)


async def delete_records(
    calls: AdminCalls, before: Mapping[TopicPartition, int], timeout: float | None
) -> dict[TopicPartition, int]:
    async def ask(broker: int, pending: list[TopicPartition]) -> dict[TopicPartition, Outcome[int]]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=number, offset=before[TopicPartition(name, number)]
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(pending).items()
            ],
            timeout_ms=round(calls.limit(timeout) * 1000),
        )
        outcomes: dict[TopicPartition, Outcome[int]] = {}
        for topic in (await calls.call(broker, request)).topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                outcomes[partition] = one.low_watermark
                if one.error_code != ErrorCode.NONE:
                    what = f"deleting records of {partition} before {before[partition]}"
                    outcomes[partition] = calls.failure(one.error_code, what)
        return outcomes

    return await calls.ask_about(
        "deleting records", before, lambda pending: calls.ask_leaders(pending, ask), timeout
    )


async def describe_log_dirs(
    calls: AdminCalls,
    brokers: Sequence[int] | None,
    partitions: Sequence[TopicPartition] | None,
    timeout: float | None,
) -> dict[int, list[LogDirectory]]:
    what = "describing log directories"
    topics = None
    if partitions is not None:
        topics = [
            DescribableLogDirTopic(topic=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ]

    async def ask(broker: int) -> Outcome[list[LogDirectory]]:
        response = await calls.call(broker, DescribeLogDirsRequest(topics=topics))
        if response.error_code != ErrorCode.NONE:
            return calls.failure(response.error_code, f"{what} of broker {broker}")
        return [log_directory(calls, one) for one in response.results]

    known = await calls.network.retrying(what, calls.limit(timeout), calls.brokers)
    missing = {
        broker: calls.failure(ErrorCode.BROKER_NOT_AVAILABLE, f"{what} of broker {broker}")
        for broker in brokers or ()
        if broker not in known
    }

    async def ask_all(pending: list[int]) -> dict[int, Outcome[list[LogDirectory]]]:
        there = [broker for broker in pending if broker not in missing]
        return {**missing, **await calls.ask_brokers(there, ask)}

    return await calls.ask_about(what, known if brokers is None else brokers, ask_all, timeout)


def log_directory(calls: AdminCalls, one: DescribeLogDirsResult) -> LogDirectory:
    error = None
    if one.error_code != ErrorCode.NONE:
        error = calls.failure(one.error_code, f"reading log directory {one.log_dir}")
    return LogDirectory(
        one.log_dir,
        error,
        one.total_bytes,
        one.usable_bytes,
        one.is_cordoned,
        {
            TopicPartition(topic.name, replica.partition_index): ReplicaSize(
                replica.partition_size, replica.offset_lag, replica.is_future_key
            )
            for topic in one.topics
            for replica in topic.partitions
        },
    )


async def describe_producers(
    calls: AdminCalls, partitions: Sequence[TopicPartition], timeout: float | None
) -> dict[TopicPartition, list[ActiveProducer]]:
    async def ask(
        broker: int, pending: list[TopicPartition]
    ) -> dict[TopicPartition, Outcome[list[ActiveProducer]]]:
        request = DescribeProducersRequest(
            topics=[
                TopicRequest(name=name, partition_indexes=numbers)
                for name, numbers in by_topic(pending).items()
            ]
        )
        outcomes: dict[TopicPartition, Outcome[list[ActiveProducer]]] = {}
        for topic in (await calls.call(broker, request)).topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                outcomes[partition] = _producers(one)
                if one.error_code != ErrorCode.NONE:
                    what = f"describing the producers of {partition}"
                    outcomes[partition] = calls.failure(one.error_code, what, one.error_message)
        return outcomes

    return await calls.ask_about(
        "describing producers", partitions, lambda pending: calls.ask_leaders(pending, ask), timeout
    )


def _producers(partition: PartitionResponse) -> list[ActiveProducer]:
    return [
        ActiveProducer(
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.last_timestamp,
            one.coordinator_epoch,
            one.current_txn_start_offset if one.current_txn_start_offset >= 0 else None,
        )
        for one in partition.active_producers
    ]
