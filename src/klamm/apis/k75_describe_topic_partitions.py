"""DescribeTopicPartitions (key 75), version 0: Metadata in pages.

Topics come sorted by name; no topics means all. A page ends after as many partitions as the client or
`max.request.partition.size.limit` allows and then says where the next one begins. Never creates a topic.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, lazily
from klamm.cluster.controller.partitions import find_topic
from klamm.cluster.image import NO_LEADER, PartitionImage
from klamm.cluster.permissions import TOPIC_OPERATIONS
from klamm.cluster.topic_names import check_topic_name
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


@api(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
def handle(
    broker: Broker, request: Request[DescribeTopicPartitionsRequest]
) -> Steps[DescribeTopicPartitionsResponse]:
    message = request.message
    image = broker.cluster.image
    names = sorted({topic.name for topic in message.topics} or image.topics)
    cursor = message.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            return DescribeTopicPartitionsResponse(
                topics=lazily(names, lambda name: _failed(name, ErrorCode.INVALID_REQUEST))
            )
        names = [name for name in names if name >= cursor.topic_name]
    most = broker.config.int_("max.request.partition.size.limit")
    room = max(1, min(most, message.response_partition_limit))

    response = DescribeTopicPartitionsResponse()
    for name in names:
        yield
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        answer, is_whole = _topic(broker, name, first, room)
        response.topics.append(answer)
        room -= len(answer.partitions)
        if not is_whole:
            response.next_cursor = Cursor(topic_name=name, partition_index=first + len(answer.partitions))
            break
    return response


def _topic(
    broker: Broker, name: str, first: int, room: int
) -> tuple[DescribeTopicPartitionsResponseTopic, bool]:
    """Partitions of a topic from `first` on, as many as there is room for, and whether those are the last."""
    try:
        check_topic_name(name)
        topic = find_topic(broker.cluster.image, name)
    except KafkaError as error:
        return _failed(name, error.code), True
    shown = topic.partitions[first : first + room]
    answer = DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(broker, name, first + index, each) for index, each in enumerate(shown)],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    return answer, first + room >= len(topic.partitions)


def _failed(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _partition(
    broker: Broker, topic: str, index: int, partition: PartitionImage
) -> DescribeTopicPartitionsResponsePartition:
    offline = broker.partitions.offline_replicas(broker.cluster.image, topic, index)
    is_led = partition.leader != NO_LEADER and partition.leader not in offline
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if is_led else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible_replicas),
        last_known_elr=[],  # not null: Kafka's own client does not expect null here
        offline_replicas=offline,
    )
