"""Heartbeat, key 12: a member keeps its session, and learns of a rebalance.

Versions 0-4, flexible from 4.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, field, int16, int32, string


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = field(string)
    generation_id: int = field(int32)
    member_id: str = field(string)
    group_instance_id: str | None = field(string, versions="3+", nullable="3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    error_code: int = field(int16)
