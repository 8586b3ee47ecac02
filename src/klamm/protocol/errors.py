"""Errors of decoding (the fault of the peer) and of encoding (a bug of ours)."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of the errors of this package."""


class MalformedMessage(ProtocolError):
    """The peer's bytes are not the message they claim to be. The connection must be closed."""


class TooManyElements(MalformedMessage):
    """The request holds more elements than its reader allows."""


class UnencodableMessage(ProtocolError):
    """A message has a value that its version cannot encode. A bug of the caller."""
