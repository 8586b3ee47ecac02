"""DeleteTopics (key 20), versions 1 to 6.

By name, and from version 6 on by name or id. When the answer leaves, the topics are gone for every client and
their files are on the way out. With `delete.topic.enable=false` every topic is refused.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, count_names, in_steps, lazily, with_pauses
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

FIRST_VERSION_WITH_IDS = 6
FIRST_VERSION_THAT_KNOWS_DELETION_DISABLED = 3


@api(ApiKey.DELETE_TOPICS)
async def handle(broker: Broker, request: Request[DeleteTopicsRequest]) -> Steps[DeleteTopicsResponse]:
    message = request.message
    if request.version >= FIRST_VERSION_WITH_IDS:
        asked = message.topics
    else:
        asked = [DeleteTopicState(name=name) async for name in with_pauses(message.topic_names)]
    if not broker.config.bool_("delete.topic.enable"):
        knows_code = request.version >= FIRST_VERSION_THAT_KNOWS_DELETION_DISABLED
        code = ErrorCode.TOPIC_DELETION_DISABLED if knows_code else ErrorCode.INVALID_REQUEST
        error = KafkaError(code, "this broker does not delete topics: delete.topic.enable is false")
        return in_steps(DeleteTopicsResponse(responses=lazily(asked, lambda topic: _failed(topic, error))))

    responses: list[DeletableTopicResult] = []
    names: list[str] = []
    times_named = await count_names(asked, lambda topic: _name_of(broker, topic))
    async for topic in with_pauses(asked):
        try:
            name = _checked_name(broker, topic)
            if times_named[name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"the request names the topic {name} more than once"
                )
            names.append(name)
        except KafkaError as error:
            responses.append(_failed(topic, error))
    results = await broker.cluster.delete_topics(names)
    async for name, result in with_pauses(zip(names, results, strict=True)):
        if isinstance(result, KafkaError):
            responses.append(_failed(DeleteTopicState(name=name), result))
        else:
            responses.append(DeletableTopicResult(name=name, topic_id=result.topic_id))
    return in_steps(DeleteTopicsResponse(responses=responses))


def _name_of(broker: Broker, topic: DeleteTopicState) -> str | None:
    if topic.topic_id != ZERO_TOPIC_ID:
        return broker.cluster.image.topic_names_by_id.get(topic.topic_id)
    return topic.name


def _checked_name(broker: Broker, topic: DeleteTopicState) -> str:
    by_id = topic.topic_id != ZERO_TOPIC_ID
    if by_id == (topic.name is not None):
        problem = "both the name and the id of a topic" if by_id else "neither the name nor the id of a topic"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the request has {problem}")
    name = _name_of(broker, topic)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    return name


def _failed(topic: DeleteTopicState, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
    )
