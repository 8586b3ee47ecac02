"""CreatePartitions (key 37), versions 0 to 3.

Gives topics more partitions, with replicas that the client names or that the controller places. Producers
and consumers find them when they next ask for metadata.
"""

from __future__ import annotations

from collections import Counter

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, in_steps
from klamm.cluster.controller import NewPartitions
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
    times_named = Counter(topic.name for topic in message.topics)
    results = [
        CreatePartitionsTopicResult(
            name=name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"the request names the topic {name} more than once",
        )
        for name, times in times_named.items()
        if times > 1
    ]
    wanted = [_new_partitions(topic) for topic in message.topics if times_named[topic.name] == 1]
    outcomes = await broker.cluster.create_partitions(wanted, validate_only=message.validate_only)
    pauses = Pauses()
    for each, outcome in zip(wanted, outcomes, strict=True):
        await pauses.pause()
        result = CreatePartitionsTopicResult(name=each.topic)
        if isinstance(outcome, KafkaError):
            result.error_code = outcome.code
            result.error_message = outcome.message
        results.append(result)
    return in_steps(CreatePartitionsResponse(results=results))


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignment = None
    if topic.assignments is not None:
        assignment = [each.broker_ids for each in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignment)
