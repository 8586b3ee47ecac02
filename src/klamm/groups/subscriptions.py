"""Reads from the metadata of a consumer to which topics it subscribes; all else in it is opaque to us."""

from __future__ import annotations

from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.consumer_protocol import decode_subscription


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a member's metadata; None when it is not a subscription we can read."""
    try:
        return frozenset(decode_subscription(metadata).topics)
    except MalformedMessage:
        return None
