"""SaslHandshake, key 17: the SASL mechanism that a client wants to log in with.

Versions 0-1, never flexible. After version 0 the mechanism's bytes follow as bare frames, after version 1 as
SaslAuthenticate. An unknown mechanism is refused with the list of known ones.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, array, field, int16, string


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = field(string)


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = field(int16)
    mechanisms: list[str] = field(array(string))
