"""UnregisterBroker, key 64: forget a broker that will not come back.

Version 0, flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, field, int16, int32, string


class UnregisterBrokerRequest(Message, api_key=64, versions="0", flexible="0+"):
    broker_id: int = field(int32)


class UnregisterBrokerResponse(Message, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
