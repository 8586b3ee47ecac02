"""DeleteRecords (key 21), versions 0 to 2.

Moves a partition's log start offset up; -1 means the high watermark. The new start is on disk before the
answer leaves, so that deleted records do not come back after a crash. Segments that lie wholly below it are
removed. Topics that are only compacted, and internal ones, are refused, as Kafka does. Of a partition that is
named more than once the last offset counts.
"""

from __future__ import annotations

import logging

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
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

logger = logging.getLogger("klamm.apis")


@api(ApiKey.DELETE_RECORDS)
async def handle(broker: Broker, request: Request[DeleteRecordsRequest]) -> Steps[DeleteRecordsResponse]:
    asked_of: dict[str, dict[int, DeleteRecordsPartition]] = {}
    async for topic in with_pauses(request.message.topics):
        asked_of.setdefault(topic.name, {}).update((each.partition_index, each) for each in topic.partitions)
    pauses = Pauses()
    topics = []
    for name, asked in asked_of.items():
        partitions = []
        for each in asked.values():
            await pauses.pause()
            partitions.append(_delete(broker, name, each))
        topics.append(DeleteRecordsTopicResult(name=name, partitions=partitions))
    try:
        await broker.partitions.run_in_thread(broker.log_dirs.write_log_start_checkpoints)
    except OSError as error:
        logger.error("the new log start offsets cannot be written: %s", error)
        for topic_result in topics:
            for result in topic_result.partitions:
                result.error_code = result.error_code or ErrorCode.KAFKA_STORAGE_ERROR
                result.low_watermark = -1
    return in_steps(DeleteRecordsResponse(topics=topics))


def _delete(broker: Broker, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
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
        result.low_watermark = partition.delete_records_before(asked.offset)
    except KafkaError as error:
        result.error_code = error.code
    return result
