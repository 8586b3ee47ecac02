"""FindCoordinator, key 10: which broker coordinates a group or a transactional id.

Versions 0-6, flexible from 3. Up to 3 one key and an answer at the top of the message, from 4 a list of
both.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, string


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    key: str = field(string, versions="0-3")
    key_type: int = field(int8, versions="1+")
    coordinator_keys: list[str] = field(array(string), versions="4+")


class Coordinator(Struct):
    key: str = field(string, versions="4+")
    node_id: int = field(int32, versions="4+")
    host: str = field(string, versions="4+")
    port: int = field(int32, versions="4+")
    error_code: int = field(int16, versions="4+")
    error_message: str | None = field(string, versions="4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    error_code: int = field(int16, versions="0-3")
    error_message: str | None = field(string, versions="1-3", nullable="1-3", ignorable=True)
    node_id: int = field(int32, versions="0-3")
    host: str = field(string, versions="0-3")
    port: int = field(int32, versions="0-3")
    coordinators: list[Coordinator] = field(array(Coordinator), versions="4+")
