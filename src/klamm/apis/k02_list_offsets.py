"""ListOffsets (key 2), versions 1 to 11.

Special timestamps: -1 latest, -2 earliest, -3 the record with the largest timestamp (version 7), -4 earliest
local (8), -5 latest tiered (9), -6 earliest pending upload (11). There is no tiered storage, so earliest
local is earliest, and the last two answer -1. A real timestamp finds the first record that is not older; the
look-up runs in a thread, because it reads indexes and opens one batch. A partition that the request names
more than once is refused with INVALID_REQUEST, as Kafka does. A new leader that does not know its high
watermark yet answers OFFSET_NOT_AVAILABLE, and before version 5, whose clients do not know this error,
LEADER_NOT_AVAILABLE, as Kafka does.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, count_names, in_steps
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.replication.partition import Partition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_FIRST_VERSION_OF = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED = 1
_FIRST_VERSION_WITH_LEADER_EPOCH = 4
_FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5
_NOT_FOUND = (-1, -1, -1)


@api(ApiKey.LIST_OFFSETS)
async def handle(broker: Broker, request: Request[ListOffsetsRequest]) -> Steps[ListOffsetsResponse]:
    is_read_committed = request.message.isolation_level == _READ_COMMITTED
    named = (
        (topic.name, asked.partition_index) for topic in request.message.topics for asked in topic.partitions
    )
    times_named = await count_names(named, lambda each: each)
    pauses = Pauses()
    topics = []
    for topic in request.message.topics:
        partitions = []
        for asked in topic.partitions:
            await pauses.pause()
            if times_named[topic.name, asked.partition_index] > 1:
                partitions.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=ErrorCode.INVALID_REQUEST
                    )
                )
            else:
                partitions.append(
                    await _look_up(broker, topic.name, asked, request.version, is_read_committed)
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return in_steps(ListOffsetsResponse(topics=topics))


async def _look_up(
    broker: Broker, topic: str, asked: ListOffsetsPartition, version: int, is_read_committed: bool
) -> ListOffsetsPartitionResponse:
    response = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    try:
        if asked.timestamp < 0 and version < _FIRST_VERSION_OF.get(asked.timestamp, 2**15):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"timestamp {asked.timestamp} is not supported in ListOffsets version {version}",
            )
        partition = broker.partitions.led(topic, asked.partition_index)
        partition.check_online()
        partition.check_leader_epoch(asked.current_leader_epoch)
        response.offset, response.timestamp, leader_epoch = await _find(
            broker, partition, asked.timestamp, is_read_committed
        )
        if version >= _FIRST_VERSION_WITH_LEADER_EPOCH:
            response.leader_epoch = leader_epoch
    except KafkaError as error:
        response.error_code = error.code
        is_old = version < _FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE
        if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and is_old:
            response.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return response


async def _find(
    broker: Broker, partition: Partition, timestamp: int, is_read_committed: bool
) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) of what was asked for."""
    log = partition.log
    if timestamp == LATEST:
        partition.check_high_watermark_known()
        end = partition.last_stable_offset if is_read_committed else partition.high_watermark
        return end, -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1, log.epochs.epoch_at(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    if timestamp == MAX_TIMESTAMP:
        found = await broker.partitions.run_in_thread(log.offset_of_max_timestamp)
    else:
        found = await broker.partitions.run_in_thread(log.offset_for_timestamp, timestamp)
    if found is None or found[0] >= partition.high_watermark:
        partition.check_high_watermark_known()
        return _NOT_FOUND
    return found
