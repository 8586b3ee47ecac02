"""Envelope (key 58), version 0, between brokers only: a client's request that another broker sent on.

The request is answered here as if the client had asked this broker, and the answer goes back as it is. If
this broker is not the controller, the envelope is answered with NOT_CONTROLLER and the request is not looked
at: then the other broker looks for the controller again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType, GeneratorType
from typing import Any

from klamm.apis.broker import Broker
from klamm.apis.forwarding import FORWARDED
from klamm.apis.registry import HANDLERS, Request, Shortcut, api
from klamm.apis.steps import Pauses, Steps
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode_in_steps
from klamm.protocol.headers import encode_response_frame_in_steps, parse_request_header
from klamm.protocol.messages.k58_envelope import EnvelopeRequest, EnvelopeResponse

FRAME_LENGTH_BYTES = 4


class _ClientElsewhere:
    """The connection of a client to another broker, as far as a handler may know it."""

    files_left = 0

    def __init__(self, client_host: str, listener_name: str) -> None:
        self.client_host = client_host
        self.listener_name = listener_name
        self.shortcut: Shortcut | None = None

    def on_close(self, callback: Callable[[], None]) -> None:
        """What is forwarded is done whole, also if the client leaves."""

    def let_send_buffer_grow(self) -> None:
        """Fetches are not forwarded."""


class _NoReply:
    """In place of a reply: what is forwarded is answered by what its handler returns."""

    is_open = True
    on_drop: Callable[[], None] | None = None

    def complete(self, response: Any) -> None:
        raise AssertionError("the handler of a forwarded request returns its answer")

    def complete_encoded(self, chunks: list[Any]) -> None:
        self.complete(chunks)

    def fail(self, error: BaseException) -> None:
        raise error

    def reserve_files(self, wanted: int) -> int:
        return 0


@api(ApiKey.ENVELOPE)
async def handle(broker: Broker, request: Request[EnvelopeRequest]) -> EnvelopeResponse:
    if not broker.cluster.is_controller:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = memoryview(bytes(request.message.request_data))
    api_key, version, correlation_id, client_id, body_offset = parse_request_header(frame)
    if api_key not in FORWARDED or version not in API_VERSIONS[ApiKey(api_key)].accepted:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    key = ApiKey(api_key)
    message, _ = await _finish(decode_in_steps(API_VERSIONS[key].request, version, frame, body_offset))
    client_host = bytes(request.message.client_host_address).decode(errors="replace")
    connection = _ClientElsewhere(client_host, request.listener_name)
    inner: Request[Any] = Request(message, version, client_id, connection, _NoReply(), frame)
    response = await _finish(HANDLERS[key](broker, inner))
    steps = encode_response_frame_in_steps(api_key, version, correlation_id, response, lambda size: None)
    chunks = await _finish(steps)
    return EnvelopeResponse(response_data=b"".join(chunks)[FRAME_LENGTH_BYTES:])


async def _finish(outcome: Any) -> Any:
    """What steps and coroutines lead to."""
    while True:
        if isinstance(outcome, GeneratorType):
            outcome = await _do(outcome)
        elif isinstance(outcome, CoroutineType):
            outcome = await outcome
        else:
            return outcome


async def _do(steps: Steps[Any]) -> Any:
    pauses = Pauses()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await pauses.pause()
