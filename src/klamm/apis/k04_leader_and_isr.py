"""LeaderAndIsr (key 4), version 7, between brokers only.

The controller says which role this broker has in partitions: leader or follower, and with which replicas.
A full request names all partitions of this broker: it deletes its replicas of others, which were moved away
while it could not be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from klamm.apis.broker import Broker
from klamm.apis.controller_requests import check_sender
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, lazily, with_pauses
from klamm.cluster.announcing import FULL
from klamm.cluster.image import OFFSETS_TOPIC, PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k04_leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)

Roles = dict[str, tuple[TopicId, dict[int, PartitionImage]]]


@api(ApiKey.LEADER_AND_ISR)
async def handle(
    broker: Broker, request: Request[LeaderAndIsrRequest]
) -> LeaderAndIsrResponse | Steps[LeaderAndIsrResponse]:
    message = request.message
    # Before the sender is checked: another controller may be heard of in a pause.
    roles = await _roles(message)
    try:
        check_sender(broker, message.controller_epoch, message.broker_epoch)
    except KafkaError as error:
        return LeaderAndIsrResponse(error_code=error.code)
    if message.type == FULL:
        await broker.partitions.stop_replicas(dict.fromkeys(_moved_away(broker), True))
    errors = await broker.partitions.take_roles(roles)
    if any(topic.topic_name == OFFSETS_TOPIC for topic in message.topic_states):
        broker.groups.update_leadership()
    return in_steps(LeaderAndIsrResponse(topics=lazily(message.topic_states, partial(_answer, errors))))


async def _roles(message: LeaderAndIsrRequest) -> Roles:
    roles: Roles = {topic.topic_name: (TopicId(topic.topic_id), {}) for topic in message.topic_states}
    named = ((topic, state) for topic in message.topic_states for state in topic.partition_states)
    async for topic, state in with_pauses(named):
        _, states = roles[topic.topic_name]
        states[state.partition_index] = _partition(state)
    return roles


def _answer(
    errors: Mapping[TopicPartition, KafkaError], topic: LeaderAndIsrTopicState
) -> LeaderAndIsrTopicError:
    def answer(state: LeaderAndIsrPartitionState) -> LeaderAndIsrPartitionError:
        index = state.partition_index
        code = _code_of(errors.get(TopicPartition(topic.topic_name, index)))
        return LeaderAndIsrPartitionError(partition_index=index, error_code=code)

    return LeaderAndIsrTopicError(
        topic_id=topic.topic_id, partition_errors=lazily(topic.partition_states, answer)
    )


def _partition(state: LeaderAndIsrPartitionState) -> PartitionImage:
    return PartitionImage(
        tuple(state.replicas),
        tuple(state.isr),
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
        tuple(state.adding_replicas),
        tuple(state.removing_replicas),
    )


def _moved_away(broker: Broker) -> list[TopicPartition]:
    """Partitions that are here and, as the controller has said before, have no replica on this broker."""
    topics = broker.cluster.image.topics
    moved = []
    for partition in broker.partitions:
        topic = topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id or partition.index >= len(topic.partitions):
            continue
        if broker.node_id not in topic.partitions[partition.index].replicas:
            moved.append(TopicPartition(partition.topic, partition.index))
    return moved


def _code_of(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code
