"""JoinGroup, key 11: a member joins a group, and waits for the other members.

Versions 0-9, flexible from 6. Version 4 makes a new member come back with the id it was given, 5 brings
static members, 9 lets the leader skip the assignment.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, byte_string, field, int16, int32, string


class JoinGroupRequestProtocol(Struct):
    name: str = field(string)
    metadata: bytes = field(byte_string)


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = field(string)
    session_timeout_ms: int = field(int32)
    rebalance_timeout_ms: int = field(int32, versions="1+", default=-1, ignorable=True)
    member_id: str = field(string)
    group_instance_id: str | None = field(string, versions="5+", nullable="5+", default=None)
    protocol_type: str = field(string)
    protocols: list[JoinGroupRequestProtocol] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(string, versions="8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = field(string)
    group_instance_id: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = field(byte_string)


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = field(int32, versions="2+", ignorable=True)
    error_code: int = field(int16)
    generation_id: int = field(int32, default=-1)
    protocol_type: str | None = field(string, versions="7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(string, nullable="7+")
    leader: str = field(string)
    skip_assignment: bool = field(boolean, versions="9+")
    member_id: str = field(string)
    members: list[JoinGroupResponseMember] = field(array(JoinGroupResponseMember))
