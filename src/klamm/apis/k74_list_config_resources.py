"""ListConfigResources (key 74), versions 0 and 1.

What DescribeConfigs can be asked about: topics, brokers, and groups that have settings. Version 0 asks for
client metrics, which are not served, so there are none. An empty list of types means all.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, lazily
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
    named = [(each, name) for each in types for name in _names(broker.cluster.image, each)]
    return in_steps(ListConfigResourcesResponse(config_resources=lazily(named, _resource)))


def _resource(named: tuple[int, str]) -> ConfigResource:
    resource_type, name = named
    return ConfigResource(resource_name=name, resource_type=resource_type)


def _names(image: ClusterImage, resource_type: int) -> list[str]:
    if resource_type == ResourceType.TOPIC:
        return sorted(image.topics)
    if resource_type == ResourceType.BROKER:
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    if resource_type == ResourceType.GROUP:
        return sorted(image.group_configs)
    return []
