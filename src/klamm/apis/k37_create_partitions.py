"""CreatePartitions (key 37), versions 0 to 3.

Gives topics more partitions, with replicas that the client names or that the controller places. Producers
and consumers find them when they next ask for metadata.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, count_names, in_steps, lazily, with_pauses
from klamm.cluster.controller.topics import NewPartitions
from klamm.cluster.image import TopicImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


@api(ApiKey.CREATE_PARTITIONS)
async def handle(
    broker: Broker, request: Request[CreatePartitionsRequest]
) -> Steps[CreatePartitionsResponse]:
    message = request.message
    times_named = await count_names(message.topics, lambda topic: topic.name)
    wanted = [
        _new_partitions(topic) async for topic in with_pauses(message.topics) if times_named[topic.name] == 1
    ]
    outcomes = await broker.cluster.create_partitions(wanted, validate_only=message.validate_only)
    results: dict[str, TopicImage | KafkaError] = {
        name: KafkaError(ErrorCode.INVALID_REQUEST, f"the request names the topic {name} more than once")
        for name, times in times_named.items()
        if times > 1
    }
    async for each, outcome in with_pauses(zip(wanted, outcomes, strict=True)):
        results[each.topic] = outcome
    return in_steps(CreatePartitionsResponse(results=lazily(results.items(), _result)))


def _result(named: tuple[str, TopicImage | KafkaError]) -> CreatePartitionsTopicResult:
    name, outcome = named
    if isinstance(outcome, KafkaError):
        return CreatePartitionsTopicResult(name=name, error_code=outcome.code, error_message=outcome.message)
    return CreatePartitionsTopicResult(name=name)


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignment = None
    if topic.assignments is not None:
        assignment = [each.broker_ids for each in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignment)
