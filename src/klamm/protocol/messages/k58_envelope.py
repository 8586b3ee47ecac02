"""Envelope, key 58: a broker forwards a request of a client to the controller, with its principal.

Version 0, flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, byte_string, field, int16


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = field(byte_string)
    request_principal: bytes | None = field(byte_string, nullable="0+")
    client_host_address: bytes = field(byte_string)


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = field(byte_string, nullable="0+", default=None)
    error_code: int = field(int16)
