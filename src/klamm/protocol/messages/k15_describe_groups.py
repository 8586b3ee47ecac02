"""DescribeGroups, key 15: state and members of groups.

Versions 0-6, flexible from 5. Version 6 answers GROUP_ID_NOT_FOUND, with a sentence, where older versions
describe a dead group.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, byte_string, field, int16, int32, string


class DescribeGroupsRequest(Message, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = field(array(string))
    include_authorized_operations: bool = field(boolean, versions="3+")


class DescribedGroupMember(Struct):
    member_id: str = field(string)
    group_instance_id: str | None = field(string, versions="4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(string)
    client_host: str = field(string)
    member_metadata: bytes = field(byte_string)
    member_assignment: bytes = field(byte_string)


class DescribedGroup(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, versions="6+", nullable="6+", default=None)
    group_id: str = field(string)
    group_state: str = field(string)
    protocol_type: str = field(string)
    protocol_data: str = field(string)
    members: list[DescribedGroupMember] = field(array(DescribedGroupMember))
    authorized_operations: int = field(int32, versions="3+", default=-(2**31))


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    groups: list[DescribedGroup] = field(array(DescribedGroup))
