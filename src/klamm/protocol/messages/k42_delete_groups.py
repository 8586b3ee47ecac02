"""DeleteGroups, key 42: delete groups without members, and their offsets.

Versions 0-2, flexible from 2.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string


class DeleteGroupsRequest(Message, api_key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = field(array(string))


class DeletableGroupResult(Struct):
    group_id: str = field(string)
    error_code: int = field(int16)


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(int32)
    results: list[DeletableGroupResult] = field(array(DeletableGroupResult))
