"""CreateAcls, key 30: add access control entries.

Versions 1-3, flexible from 2. Version 1 brings pattern types, 3 users as resources.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, string


class AclCreation(Struct):
    resource_type: int = field(int8)
    resource_name: str = field(string)
    resource_pattern_type: int = field(int8, default=3)
    principal: str = field(string)
    host: str = field(string)
    operation: int = field(int8)
    permission_type: int = field(int8)


class CreateAclsRequest(Message, api_key=30, versions="1-3", flexible="2+"):
    creations: list[AclCreation] = field(array(AclCreation))


class AclCreationResult(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")


class CreateAclsResponse(Message, api_key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int = field(int32)
    results: list[AclCreationResult] = field(array(AclCreationResult))
