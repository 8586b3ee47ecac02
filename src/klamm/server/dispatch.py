"""Decodes a frame, finds the handler of its API key and version, and has it answered.

APIs between brokers are served on the listener for brokers only: on the others they are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any, NamedTuple

from klamm.apis.broker import Broker
from klamm.apis.forwarding import FORWARDED, forwarded
from klamm.apis.registry import CloseConnection, ConnectionHandle, Handler, Request
from klamm.apis.steps import Steps
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode, decode_in_steps
from klamm.protocol.errors import TooManyElements
from klamm.protocol.headers import (
    encode_response_frame,
    encode_response_frame_in_steps,
    parse_request_header,
)
from klamm.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.schema import Message
from klamm.server.replies import ReplyLine

MAX_ELEMENTS_AT_ONCE = 1_000
"""Elements of a request that are decoded without a pause: about two milliseconds. Few clients have more."""

MAX_BATCHES_AT_ONCE = 50
"""The same for Produce, whose elements are batches: the first one of a partition makes its files, which takes
up to a millisecond."""

MAX_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Bytes of a request that are handled without a pause: as records, a few milliseconds of checking and
writing. Large frames have a buffer of their own, so that they can wait."""


class LargeRequest(Exception):
    """The request would keep the event loop for too long if it were handled at once."""


class Route(NamedTuple):
    """One (API key, version) that is served."""

    key: int
    version: int
    request_class: type[Message]
    handler: Handler
    max_elements_at_once: int = MAX_ELEMENTS_AT_ONCE

    def frame(self, correlation_id: int, response: Message) -> list[Any]:
        """The chunks of one response frame, its length first."""
        return encode_response_frame(self.key, self.version, correlation_id, response)

    def frame_in_steps(
        self, correlation_id: int, response: Message, count_bytes: Callable[[int], None]
    ) -> Steps[list[Any]]:
        """As `frame`, in steps. `count_bytes` gets the size of each chunk of bytes when it is there."""
        return encode_response_frame_in_steps(self.key, self.version, correlation_id, response, count_bytes)


class Dispatcher:
    """Finds the route of each frame and starts its handler."""

    def __init__(self, broker: Broker, handlers: dict[ApiKey, Handler]) -> None:
        self._broker = broker
        self._handlers = handlers
        self._routes: dict[tuple[int, int], Route] = {}

    def start(self, frame: memoryview, connection: ConnectionHandle, line: ReplyLine) -> None:
        """Decode one request, open its reply in `line`, and run its handler.

        Raises MalformedMessage or CloseConnection when the peer cannot be answered, and LargeRequest, with
        nothing done, when the request should be started in steps.
        """
        api_key, version, correlation_id, client_id, body_offset = parse_request_header(frame)
        route = self._routes.get((api_key, version))
        if route is None:
            if api_key == ApiKey.API_VERSIONS and version not in API_VERSIONS[ApiKey.API_VERSIONS].accepted:
                # A newer client asks what we speak: version 0 is the one answer that it surely reads.
                route = self._add_route(ApiKey.API_VERSIONS, 0)
                line.open(route, correlation_id).complete(_unsupported_version())
                return
            route = self._find_route(api_key, version, client_id, connection)
        if len(frame) > MAX_BYTES_AT_ONCE:
            raise LargeRequest
        try:
            at_once = route.max_elements_at_once
            message, _ = decode(route.request_class, version, frame, body_offset, at_once)
        except TooManyElements:
            raise LargeRequest from None
        reply = line.open(route, correlation_id)
        reply.complete(
            route.handler(self._broker, Request(message, version, client_id, connection, reply, frame))
        )

    def start_in_steps(self, frame: memoryview, connection: ConnectionHandle, line: ReplyLine) -> None:
        """As `start`, for a request that `start` refused as large. `frame` must stay as it is meanwhile."""
        api_key, version, correlation_id, client_id, body_offset = parse_request_header(frame)
        route = self._routes.get((api_key, version))
        if route is None:
            route = self._find_route(api_key, version, client_id, connection)
        reply = line.open(route, correlation_id)

        def steps() -> Steps[Any]:
            message, _ = yield from decode_in_steps(route.request_class, version, frame, body_offset)
            request = Request(message, version, client_id, connection, reply, frame, is_large=True)
            result = route.handler(self._broker, request)
            if isinstance(result, GeneratorType):
                result = yield from result
            return result

        reply.do_steps(steps(), is_large=True)

    def _find_route(
        self, api_key: int, version: int, client_id: str | None, connection: ConnectionHandle
    ) -> Route:
        if api_key not in self._handlers or not self._is_for(api_key, connection):
            raise CloseConnection(f"client {client_id!r} asked for API key {api_key}, which is not served")
        key = ApiKey(api_key)
        accepted = API_VERSIONS[key].accepted
        if version not in accepted:
            raise CloseConnection(
                f"client {client_id!r} asked for {key.title} version {version}, which is not served: "
                f"versions {accepted} are"
            )
        if API_VERSIONS[key].is_inter_broker:
            # Not kept: what is in `_routes` is served on every listener.
            return Route(key.value, version, API_VERSIONS[key].request, self._handlers[key])
        return self._add_route(key, version)

    def _is_for(self, api_key: int, connection: ConnectionHandle) -> bool:
        if not API_VERSIONS[ApiKey(api_key)].is_inter_broker:
            return True
        return connection.listener_name == self._broker.config.inter_broker_listener_name

    def _add_route(self, key: ApiKey, version: int) -> Route:
        handler = self._handlers[key]
        if key in FORWARDED:
            handler = forwarded(handler)
        at_once = MAX_BATCHES_AT_ONCE if key is ApiKey.PRODUCE else MAX_ELEMENTS_AT_ONCE
        route = Route(key.value, version, API_VERSIONS[key].request, handler, at_once)
        self._routes[key.value, version] = route
        return route


def _unsupported_version() -> ApiVersionsResponse:
    spec = API_VERSIONS[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=spec.key, min_version=spec.min_version, max_version=spec.max_version)],
    )
