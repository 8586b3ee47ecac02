"""IncrementalAlterConfigs, key 44: set, delete, append to and subtract from single configuration keys.

Versions 0-1, flexible from 1.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = field(string)
    config_operation: int = field(int8)
    value: str | None = field(string, nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = field(int8)
    resource_name: str = field(string)
    configs: list[AlterableConfig] = field(array(AlterableConfig))


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    resources: list[AlterConfigsResource] = field(array(AlterConfigsResource))
    validate_only: bool = field(boolean)


class AlterConfigsResourceResponse(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    resource_type: int = field(int8)
    resource_name: str = field(string)


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = field(int32)
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse))
