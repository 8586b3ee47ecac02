"""CreateTopics (key 19), versions 2 to 7.

Each topic is created whole or answered with its own error; when the answer leaves, the topic can be used.
-1 partitions or replicas take the broker's defaults. From version 5 on the answer has the topic's size and
configuration, from version 7 on its id. `validate_only` does everything but create. The request's timeout is
not used: creating takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, count_names, in_steps, lazily
from klamm.cluster.controller.topics import NewTopic
from klamm.cluster.image import TopicImage
from klamm.config.describe import describe_topic
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_FIRST_VERSION_WITH_CONFIGS = 5


@api(ApiKey.CREATE_TOPICS)
async def handle(broker: Broker, request: Request[CreateTopicsRequest]) -> Steps[CreateTopicsResponse]:
    validate_only = request.message.validate_only
    times_named = await count_names(request.message.topics, lambda topic: topic.name)
    results: dict[str, TopicImage | KafkaError] = {}
    wanted: list[NewTopic] = []
    pauses = Pauses()
    for topic in request.message.topics:
        await pauses.pause()
        try:
            if times_named[topic.name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"the request names the topic {topic.name} more than once"
                )
            wanted.append(_new_topic(topic))
        except KafkaError as error:
            results[topic.name] = error.as_result()
    created = await broker.cluster.create_topics(wanted, validate_only=validate_only)
    results.update(zip((topic.name for topic in wanted), created, strict=True))
    described = _DescribedConfigs(broker, request.version)
    return in_steps(
        CreateTopicsResponse(
            topics=lazily(
                list(times_named), lambda name: _result(name, results[name], described, validate_only)
            )
        )
    )


class _DescribedConfigs:
    """The settings of new topics, described once for all topics in a row that set the same."""

    def __init__(self, broker: Broker, version: int) -> None:
        self._broker = broker
        self._are_told = version >= _FIRST_VERSION_WITH_CONFIGS
        self._last: Mapping[str, str] | None = None
        self._last_described: list[CreatableTopicConfigs] = []

    def of(self, config: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        if self._are_told and config != self._last:
            self._last = config
            self._last_described = [
                CreatableTopicConfigs(
                    name=key.row.name,
                    value=key.text,
                    read_only=key.read_only,
                    config_source=key.source,
                    is_sensitive=key.row.sensitive,
                )
                for key in describe_topic(self._broker.config, config)
            ]
        return self._last_described


def _new_topic(topic: CreatableTopic) -> NewTopic:
    config: dict[str, str] = {}
    for setting in topic.configs:
        if setting.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{setting.name} of {topic.name} has no value")
        config[setting.name] = setting.value
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, each.broker_ids) for each in topic.assignments],
        config,
    )


def _result(
    name: str, result: TopicImage | KafkaError, described: _DescribedConfigs, validate_only: bool
) -> CreatableTopicResult:
    if isinstance(result, KafkaError):
        return CreatableTopicResult(name=name, error_code=result.code, error_message=result.message)
    return CreatableTopicResult(
        name=name,
        topic_id=ZERO_TOPIC_ID if validate_only else result.topic_id,
        error_message=None,
        num_partitions=len(result.partitions),
        replication_factor=result.replication_factor,
        configs=described.of(result.config),
    )
