"""ElectLeaders (key 43), versions 0 to 2.

Gives partitions back to their preferred replica (election type 0), or to any replica that is alive if none of
the ISR is (1, from version 1 on; records may be lost). Null for the partitions means all; those that need no
election are then left out of the answer. The request's timeout is not used: the answer waits for the brokers
a few seconds at most.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
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


@api(ApiKey.ELECT_LEADERS)
async def handle(broker: Broker, request: Request[ElectLeadersRequest]) -> Steps[ElectLeadersResponse]:
    message = request.message
    which: list[TopicPartition] | None = None
    if message.topic_partitions is not None:
        named = (
            TopicPartition(topic.topic, index)
            for topic in message.topic_partitions
            for index in topic.partitions
        )
        which = list(dict.fromkeys(named))
    try:
        results = await broker.cluster.elect_leaders(_election_type(message.election_type), which)
    except KafkaError as error:
        results = [(each, error) for each in which or ()]
        code = error.code if request.version >= _FIRST_VERSION_WITH_ERROR_CODE else ErrorCode.NONE
        return in_steps(ElectLeadersResponse(error_code=code, replica_election_results=_by_topic(results)))
    return in_steps(ElectLeadersResponse(replica_election_results=_by_topic(results)))


def _election_type(number: int) -> ElectionType:
    try:
        return ElectionType(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{number} is not a valid election type: expected 0 (preferred) or 1 (unclean)",
        ) from None


def _by_topic(results: list[tuple[TopicPartition, KafkaError | None]]) -> list[ReplicaElectionResult]:
    topics: dict[str, ReplicaElectionResult] = {}
    for (name, index), error in results:
        topic = topics.setdefault(name, ReplicaElectionResult(topic=name, partition_result=[]))
        topic.partition_result.append(
            PartitionResult(
                partition_id=index,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )
    return list(topics.values())
