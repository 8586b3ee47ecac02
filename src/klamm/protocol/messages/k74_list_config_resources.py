"""ListConfigResources, key 74: the names of resources that have a configuration.

Versions 0-1, all flexible. Version 0 lists client metrics subscriptions only, 1 any type.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, string


class ListConfigResourcesRequest(Message, api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = field(array(int8), versions="1+")


class ConfigResource(Struct):
    resource_name: str = field(string)
    resource_type: int = field(int8, versions="1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    config_resources: list[ConfigResource] = field(array(ConfigResource))
