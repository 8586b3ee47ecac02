"""SaslAuthenticate, key 36: one step of the mechanism that SaslHandshake chose.

Versions 0-2, flexible from 2. From 1 the answer says how long the login lasts.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, byte_string, field, int16, int64, string


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = field(byte_string)


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    auth_bytes: bytes = field(byte_string)
    session_lifetime_ms: int = field(int64, versions="1+", ignorable=True)
