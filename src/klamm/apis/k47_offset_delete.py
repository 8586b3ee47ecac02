"""OffsetDelete (key 47), version 0.

Forgets committed offsets, but not those of topics that a consumer of the group reads: they would come back
with its next commit, and are refused with GROUP_SUBSCRIBED_TO_TOPIC. Groups of other protocols must be empty.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@api(ApiKey.OFFSET_DELETE)
async def handle(broker: Broker, request: Request[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    image = broker.cluster.image
    codes: dict[TopicPartition, ErrorCode] = {}
    wanted: list[TopicPartition] = []
    for topic in request.message.topics:
        known = image.topics.get(topic.name)
        partition_count = 0 if known is None else len(known.partitions)
        for partition in topic.partitions:
            place = TopicPartition(topic.name, partition.partition_index)
            if 0 <= place.partition < partition_count:
                wanted.append(place)
            else:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        codes |= await broker.groups.delete_offsets(request.message.group_id, wanted)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.message.topics
        ],
    )
