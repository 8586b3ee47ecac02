"""DescribeConfigs, key 32: the configuration of topics, brokers and groups, and where each value comes from.

Versions 1-4, flexible from 4. Version 1 brings synonyms and sources, 3 types and documentation.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    resource_type: int = field(int8)
    resource_name: str = field(string)
    configuration_keys: list[str] | None = field(array(string), nullable="0+")


class DescribeConfigsRequest(Message, api_key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = field(array(DescribeConfigsResource))
    include_synonyms: bool = field(boolean, versions="1+")
    include_documentation: bool = field(boolean, versions="3+")


class DescribeConfigsSynonym(Struct):
    name: str = field(string, versions="1+")
    value: str | None = field(string, versions="1+", nullable="0+")
    source: int = field(int8, versions="1+")


class DescribeConfigsResourceResult(Struct):
    name: str = field(string)
    value: str | None = field(string, nullable="0+")
    read_only: bool = field(boolean)
    config_source: int = field(int8, versions="1+", default=-1, ignorable=True)
    is_sensitive: bool = field(boolean)
    synonyms: list[DescribeConfigsSynonym] = field(
        array(DescribeConfigsSynonym), versions="1+", ignorable=True
    )
    config_type: int = field(int8, versions="3+", ignorable=True)
    documentation: str | None = field(string, versions="3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    resource_type: int = field(int8)
    resource_name: str = field(string)
    configs: list[DescribeConfigsResourceResult] = field(array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(Message, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = field(int32)
    results: list[DescribeConfigsResult] = field(array(DescribeConfigsResult))
