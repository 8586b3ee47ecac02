"""LeaveGroup, key 13: members leave a group.

Versions 0-5, flexible from 4. Up to 2 one member at the top of the message, from 3 a list.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string


class MemberIdentity(Struct):
    member_id: str = field(string, versions="3+")
    group_instance_id: str | None = field(string, versions="3+", nullable="3+", default=None)
    reason: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    group_id: str = field(string)
    member_id: str = field(string, versions="0-2")
    members: list[MemberIdentity] = field(array(MemberIdentity), versions="3+")


class MemberResponse(Struct):
    member_id: str = field(string, versions="3+")
    group_instance_id: str | None = field(string, versions="3+", nullable="3+")
    error_code: int = field(int16, versions="3+")


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    error_code: int = field(int16)
    members: list[MemberResponse] = field(array(MemberResponse), versions="3+")
