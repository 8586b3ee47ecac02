"""DescribeConfigs (key 32), versions 1 to 4.

Topics, brokers and groups. The broker with the empty name stands for all of them and has only what was set
for all at run time. A broker can be described only by itself. No keys, null or an empty list, mean all keys;
a key that is not known is left out. Loggers and client metrics are not served.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, lazily
from klamm.cluster.controller.partitions import find_topic
from klamm.cluster.image import ALL_BROKERS
from klamm.cluster.topic_names import check_topic_name
from klamm.config.describe import (
    DescribedKey,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from klamm.config.rows import ResourceType
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


@api(ApiKey.DESCRIBE_CONFIGS)
def handle(broker: Broker, request: Request[DescribeConfigsRequest]) -> Steps[DescribeConfigsResponse]:
    message = request.message
    resources: dict[tuple[int, str], DescribeConfigsResource] = {}
    for resource in message.resources:
        resources.setdefault((resource.resource_type, resource.resource_name), resource)
    return in_steps(
        DescribeConfigsResponse(
            results=lazily(list(resources.values()), lambda each: _describe(broker, message, each))
        )
    )


def _describe(
    broker: Broker, message: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    wanted = frozenset(resource.configuration_keys or ())
    try:
        result.configs = [
            _key(message, key)
            for key in _keys_of(broker, resource.resource_type, resource.resource_name)
            if not wanted or key.row.name in wanted
        ]
    except KafkaError as error:
        result.error_code = error.code
        result.error_message = error.message
    return result


def _keys_of(broker: Broker, resource_type: int, name: str) -> Iterable[DescribedKey]:
    image = broker.cluster.image
    if resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        return describe_topic(broker.config, find_topic(image, name).config)
    if resource_type == ResourceType.BROKER:
        if name == ALL_BROKERS:
            return describe_broker_default(broker.config)
        if name != str(broker.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {broker.node_id}: it cannot describe broker {name!r}",
            )
        return describe_broker(broker.config)
    if resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the name of the group is empty")
        return describe_group(broker.config, image.group_configs.get(name, {}))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource_type} cannot be described; topics (2), brokers (4) and groups (32) can",
    )


def _key(message: DescribeConfigsRequest, key: DescribedKey) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=key.row.name,
        value=key.text,
        read_only=key.read_only,
        config_source=key.source,
        is_sensitive=key.row.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.text, source=each.source)
            for each in (key.synonyms if message.include_synonyms else ())
        ],
        config_type=key.row.type,
        documentation=key.row.doc if message.include_documentation else None,
    )
