"""Requests that only the controller can answer, which clients may send to any broker.

A broker that is not the controller sends such a request on in an Envelope and gives the answer back as it
came. If no controller answers in time, the handler answers here: with NOT_CONTROLLER, which clients repeat.
"""

from __future__ import annotations

import struct
from typing import Any

from klamm.apis.broker import Broker
from klamm.apis.registry import LATER, Handler, Request
from klamm.protocol.apis import ApiKey

FORWARDED = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
    }
)

_LENGTH = struct.Struct(">i")


def forwarded(handler: Handler) -> Handler:
    """`handler`, for a broker that may not be the controller."""

    def handle(broker: Broker, request: Request[Any]) -> Any:
        # A broker that asks has looked for the controller itself: it is told, and looks again.
        is_of_broker = request.listener_name == broker.config.inter_broker_listener_name
        if broker.cluster.is_controller or is_of_broker:
            return handler(broker, request)
        # The frame may not be read when this has returned.
        return _forward(broker, request, bytes(request.frame), handler)

    return handle


async def _forward(broker: Broker, request: Request[Any], frame: bytes, handler: Handler) -> Any:
    answer = await broker.forward(frame, request.client_host)
    if answer is None:
        return handler(broker, request)
    request.reply.complete_encoded([_LENGTH.pack(len(answer)) + answer])
    return LATER
