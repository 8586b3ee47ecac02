"""OffsetDelete (key 47), version 0.

Deletes committed offsets. Those of topics that a consumer of the group reads are refused with
GROUP_SUBSCRIBED_TO_TOPIC: the next commit of the consumer would bring them back. Groups of other
protocols must be empty.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, in_steps, lazily, pieces_of
from klamm.groups.writer import MOST_AT_ONCE
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
async def handle(
    broker: Broker, request: Request[OffsetDeleteRequest]
) -> OffsetDeleteResponse | Steps[OffsetDeleteResponse]:
    image = broker.cluster.image
    codes: dict[str, dict[int, ErrorCode]] = {}
    wanted: list[TopicPartition] = []
    pauses = Pauses()
    for topic in request.message.topics:
        known = image.topics.get(topic.name)
        partition_count = 0 if known is None else len(known.partitions)
        codes_of_topic = codes.setdefault(topic.name, {})
        for partition in topic.partitions:
            await pauses.pause()
            index = partition.partition_index
            if index not in codes_of_topic and 0 <= index < partition_count:
                wanted.append(TopicPartition(topic.name, index))
            codes_of_topic[index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        # Also a deletion of nothing is checked: the group may not exist.
        for places in list(pieces_of(wanted, MOST_AT_ONCE)) or [[]]:
            deleted = await broker.groups.delete_offsets(request.message.group_id, places)
            for place, code in deleted.items():
                codes[place.topic][place.partition] = code
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return in_steps(OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=lazily(codes.items(), _topic)))


def _topic(outcome: tuple[str, dict[int, ErrorCode]]) -> OffsetDeleteResponseTopic:
    name, codes = outcome
    return OffsetDeleteResponseTopic(name=name, partitions=lazily(codes.items(), _partition))


def _partition(outcome: tuple[int, ErrorCode]) -> OffsetDeleteResponsePartition:
    index, code = outcome
    return OffsetDeleteResponsePartition(partition_index=index, error_code=code)
