"""DescribeAcls, key 29: the access control entries that match a filter.

Versions 1-3, flexible from 2. Version 1 brings pattern types, 3 users as resources.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, string


class DescribeAclsRequest(Message, api_key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = field(int8)
    resource_name_filter: str | None = field(string, nullable="0+")
    pattern_type_filter: int = field(int8, default=3)
    principal_filter: str | None = field(string, nullable="0+")
    host_filter: str | None = field(string, nullable="0+")
    operation: int = field(int8)
    permission_type: int = field(int8)


class AclDescription(Struct):
    principal: str = field(string)
    host: str = field(string)
    operation: int = field(int8)
    permission_type: int = field(int8)


class DescribeAclsResource(Struct):
    resource_type: int = field(int8)
    resource_name: str = field(string)
    pattern_type: int = field(int8, default=3)
    acls: list[AclDescription] = field(array(AclDescription))


class DescribeAclsResponse(Message, api_key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    resources: list[DescribeAclsResource] = field(array(DescribeAclsResource))
