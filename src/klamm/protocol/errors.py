"""Errors of decoding (the fault of the peer) and of encoding (a bug of ours)."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of the errors of this package."""


class MalformedMessage(ProtocolError):
    """The peer's bytes are not the message they claim to be. The connection is of no further use."""


class TooManyElements(MalformedMessage):
    """The request holds more elements than its reader allows."""


class UnencodableMessage(ProtocolError):
    """Our own message does not fit the version it is to be written in. A bug of the caller."""
