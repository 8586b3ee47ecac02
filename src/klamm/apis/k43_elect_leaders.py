"""ElectLeaders (key 43), versions 0 to 2.

Gives partitions back to their preferred replica (election type 0), or to any replica that is alive if none of
the ISR is (1, from version 1 on; records may be lost). Null for the partitions means all; those that need no
election are then left out of the answer. The request's timeout is not used: the answer waits for the brokers
a few seconds at most.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, lazily, with_pauses
from klamm.cluster.controller.elections import ElectionType
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_FIRST_VERSION_WITH_ERROR_CODE = 1

_Result = tuple[TopicPartition, KafkaError | None]


@api(ApiKey.ELECT_LEADERS)
async def handle(broker: Broker, request: Request[ElectLeadersRequest]) -> Steps[ElectLeadersResponse]:
    message = request.message
    which: list[TopicPartition] | None = None
    if message.topic_partitions is not None:
        named = ((topic.topic, index) for topic in message.topic_partitions for index in topic.partitions)
        which = list({TopicPartition(*each): None async for each in with_pauses(named)})
    code = ErrorCode.NONE
    try:
        results = await broker.cluster.elect_leaders(_election_type(message.election_type), which)
    except KafkaError as error:
        results = [(each, error.as_result()) for each in which or ()]
        if request.version >= _FIRST_VERSION_WITH_ERROR_CODE:
            code = error.code
    by_topic: dict[str, list[_Result]] = {}
    async for each in with_pauses(results):
        by_topic.setdefault(each[0].topic, []).append(each)
    topics = lazily(list(by_topic), lambda name: _topic(name, by_topic[name]))
    return in_steps(ElectLeadersResponse(error_code=code, replica_election_results=topics))


def _election_type(number: int) -> ElectionType:
    try:
        return ElectionType(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{number} is not a valid election type: expected 0 (preferred) or 1 (unclean)",
        ) from None


def _topic(name: str, results: list[_Result]) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic=name, partition_result=lazily(results, _partition))


def _partition(result: _Result) -> PartitionResult:
    (_, index), error = result
    return PartitionResult(
        partition_id=index,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )
