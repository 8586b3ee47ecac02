"""SyncGroup, key 14: the leader sends the assignment, and every member receives its partitions.

Versions 0-5, flexible from 4.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, byte_string, field, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    member_id: str = field(string)
    assignment: bytes = field(byte_string)


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = field(string)
    generation_id: int = field(int32)
    member_id: str = field(string)
    group_instance_id: str | None = field(string, versions="3+", nullable="3+", default=None)
    protocol_type: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = field(array(SyncGroupRequestAssignment))


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    error_code: int = field(int16)
    protocol_type: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(string, versions="5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = field(byte_string)
