"""DeleteRecords (key 21), versions 0 to 2.

Moves a partition's log start offset up; -1 means the high watermark. The new start is on disk before the
answer leaves, so that deleted records do not come back after a crash. As in Kafka the answer waits until the
replicas on all living brokers have followed, and tells the lowest of their log starts; those that have not
followed within timeout_ms are answered with REQUEST_TIMED_OUT. Segments that lie wholly below it are
removed. Topics that are only compacted, and internal ones, are refused, as Kafka does. Of a partition that is
named more than once the last offset counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from klamm.apis.broker import Broker
from klamm.apis.registry import LATER, Later, Request, api
from klamm.apis.steps import Pauses, Steps, in_steps, with_pauses
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from klamm.replication.partition import Partition

logger = logging.getLogger("klamm.apis")


@api(ApiKey.DELETE_RECORDS)
async def handle(
    broker: Broker, request: Request[DeleteRecordsRequest]
) -> Steps[DeleteRecordsResponse] | Later:
    asked_of: dict[str, dict[int, DeleteRecordsPartition]] = {}
    async for topic in with_pauses(request.message.topics):
        asked_of.setdefault(topic.name, {}).update((each.partition_index, each) for each in topic.partitions)
    pauses = Pauses()
    deletions: list[_Deletion] = []
    topics = []
    for name, asked in asked_of.items():
        partitions = []
        for each in asked.values():
            await pauses.pause()
            partitions.append(_delete(broker, name, each, deletions))
        topics.append(DeleteRecordsTopicResult(name=name, partitions=partitions))
    try:
        await broker.partitions.run_in_thread(broker.log_dirs.write_log_start_checkpoints)
    except OSError as error:
        logger.error("the new log start offsets cannot be written: %s", error)
        for topic_result in topics:
            for result in topic_result.partitions:
                result.error_code = result.error_code or ErrorCode.KAFKA_STORAGE_ERROR
        deletions.clear()
    return _Deletions(request, topics).wait_for(broker, deletions)


class _Deletions:
    """One request whose answer waits for other replicas."""

    def __init__(
        self, request: Request[DeleteRecordsRequest], topics: list[DeleteRecordsTopicResult]
    ) -> None:
        self.request = request
        self._topics = topics
        self._unfinished = 0

    def wait_for(
        self, broker: Broker, deletions: Iterable[_Deletion]
    ) -> Steps[DeleteRecordsResponse] | Later:
        waiting: list[_Deletion] = []
        for deletion in deletions:
            if deletion.partition.low_watermark >= deletion.end_offset:
                deletion.take_low_watermark()
            else:
                waiting.append(deletion)
        self._unfinished = len(waiting)
        timeout_ms = self.request.message.timeout_ms
        for deletion in waiting:
            deletion.whole = self
            broker.partitions.waiting_produces.add_to(deletion.partition.deletions(), deletion, timeout_ms)
        return LATER if waiting else self._answer()

    def _answer(self) -> Steps[DeleteRecordsResponse]:
        return in_steps(DeleteRecordsResponse(topics=self._topics))

    def finish_one(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self.request.reply.complete(self._answer())


class _Deletion:
    """Of the records of one partition: waits until all living replicas have deleted them."""

    def __init__(self, partition: Partition, offset: int, result: DeleteRecordsPartitionResult) -> None:
        self.partition = partition
        self.end_offset = offset
        self.deadline_s = 0.0
        self.whole: _Deletions | None = None
        self._result = result

    @property
    def is_open(self) -> bool:
        return self.whole is not None and self.whole.request.reply.is_open

    def acknowledge(self, error: KafkaError | None) -> None:
        if error is None:
            self.take_low_watermark()
        else:
            self._result.error_code = error.code
        assert self.whole is not None
        self.whole.finish_one()

    def take_low_watermark(self) -> None:
        self._result.low_watermark = self.partition.low_watermark


def _delete(
    broker: Broker, topic: str, asked: DeleteRecordsPartition, deletions: list[_Deletion]
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition = broker.partitions.led(topic, asked.partition_index)
        topic_image = broker.cluster.image.topics.get(topic)
        if topic_image is not None and topic_image.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic")
        if not partition.log.config.cleanup_delete:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{topic} is compacted: set cleanup.policy=compact,delete first"
            )
        offset = partition.delete_records_before(asked.offset)
        deletions.append(_Deletion(partition, offset, result))
    except KafkaError as error:
        result.error_code = error.code
    return result
