"""AlterConfigs, key 33: set the whole configuration of a resource.

Versions 0-2, flexible from 2. Keys that are not in the request go back to their defaults.
IncrementalAlterConfigs replaces this API.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = field(string)
    value: str | None = field(string, nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = field(int8)
    resource_name: str = field(string)
    configs: list[AlterableConfig] = field(array(AlterableConfig))


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsResource] = field(array(AlterConfigsResource))
    validate_only: bool = field(boolean)


class AlterConfigsResourceResponse(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    resource_type: int = field(int8)
    resource_name: str = field(string)


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(int32)
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse))
