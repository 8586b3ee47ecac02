"""ListConfigResources (key 74), versions 0 and 1.

What DescribeConfigs can be asked about: topics, brokers, and groups that have settings. Version 0 asks for
client metrics, which are not served, so there are none. An empty list of types means all. The names are in no
order: to sort very many would keep the event loop for long.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, lazily, pieces_of
from klamm.cluster.image import ClusterImage
from klamm.config.rows import ResourceType
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KNOWN_TYPES = [int(each) for each in ResourceType]


@api(ApiKey.LIST_CONFIG_RESOURCES)
def handle(
    broker: Broker, request: Request[ListConfigResourcesRequest]
) -> ListConfigResourcesResponse | Steps[ListConfigResourcesResponse]:
    if request.version == 0:
        return ListConfigResourcesResponse()
    types = sorted(set(request.message.resource_types or KNOWN_TYPES))
    if any(each not in KNOWN_TYPES for each in types):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return _list(broker.cluster.image, types)


def _list(image: ClusterImage, types: list[int]) -> Steps[ListConfigResourcesResponse]:
    named: list[tuple[int, str]] = []
    for resource_type in types:
        for names in pieces_of(_names(image, resource_type)):
            named += [(resource_type, name) for name in names]
            yield
    return ListConfigResourcesResponse(config_resources=lazily(named, _resource))


def _resource(named: tuple[int, str]) -> ConfigResource:
    resource_type, name = named
    return ConfigResource(resource_name=name, resource_type=resource_type)


def _names(image: ClusterImage, resource_type: int) -> Iterable[str]:
    if resource_type == ResourceType.TOPIC:
        return image.topics
    if resource_type == ResourceType.BROKER:
        return map(str, image.brokers)
    if resource_type == ResourceType.GROUP:
        return image.group_configs
    return ()
