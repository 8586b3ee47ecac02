"""How an API module makes itself known, and what a handler is given and may return.

A module `kNN_name.py` registers one handler for its API key:

    @api(ApiKey.HEARTBEAT)
    def handle(broker: Broker, request: Request[HeartbeatRequest]) -> HeartbeatResponse: ...

There is one way to answer: whoever has the answer completes `request.reply` (model/reply.py), now or later.
Answers leave in request order. The handler itself returns

* `LATER`: somebody completes the reply, or has done so. Later requests of the connection may start meanwhile
  (a produce that waits for replicas, a fetch, a join);

or, where the handler has the answer itself, something that completes the reply (server/replies.py):

* a response message: answered at once, so it must be small, whatever the request asks for;
* a coroutine (an `async def` handler): nothing further of this connection is handled until it is done, so
  that effects happen in request order (administration, commits);
* a generator (see steps.py): as a coroutine, but it yields after every short step of its work, and its
  answer is encoded in steps too;
* `NO_RESPONSE`: the client asked for no answer (acks=0).

The result of a coroutine or a generator may be any of these again.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from klamm.model.reply import Reply
from klamm.protocol.apis import ApiKey

MessageT = TypeVar("MessageT")
Handler = Callable[[Any, Any], Any]


class NoResponse:
    """The type of `NO_RESPONSE`."""


NO_RESPONSE = NoResponse()


class Later:
    """The type of `LATER`."""


LATER = Later()


class Replies(Protocol):
    """The replies of one connection, in the order of its requests."""

    def open_encoded(self, api_key: int, correlation_id: int) -> Reply:
        """The reply to the request that is being handled, to be completed with an encoded answer."""


class Shortcut(Protocol):
    """Answers requests that repeat earlier ones without decoding them: produce_shortcut, fetch_shortcut."""

    @property
    def api_key(self) -> int: ...

    def take(self, frame: memoryview, replies: Replies) -> Sequence[Any] | Later | None:
        """Handle a request whole and return the chunks of its response frame, or do nothing and return None.

        LATER if the request's reply was opened, and is completed later.
        """


class ConnectionHandle(Protocol):
    """What a handler may know of the connection a request came by."""

    client_host: str
    listener_name: str
    shortcut: Shortcut | None

    @property
    def files_left(self) -> int:
        """How many segment files an answer may hold open until it is sent, if it is made at once."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once, when the connection is gone."""

    def let_send_buffer_grow(self) -> None:
        """Let the kernel take more than socket.send.buffer.bytes, as far as the peer keeps up."""


_NO_FRAME = memoryview(b"")


class Request(Generic[MessageT]):
    """One decoded request, and the reply that it still lacks.

    `frame` is the receive buffer's: it may be read until the handler returns. A large request is one of very
    many elements or bytes. What is done for each of its elements must be done in steps. Its frame stays until
    the last of them.
    """

    __slots__ = ("client_id", "connection", "frame", "is_large", "message", "reply", "version")

    def __init__(
        self,
        message: MessageT,
        version: int,
        client_id: str | None,
        connection: ConnectionHandle,
        reply: Reply,
        frame: memoryview = _NO_FRAME,
        *,
        is_large: bool = False,
    ) -> None:
        self.frame = frame
        self.is_large = is_large
        self.message = message
        self.version = version
        self.client_id = client_id
        self.connection = connection
        self.reply = reply

    @property
    def client_host(self) -> str:
        return self.connection.client_host

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name


class CloseConnection(Exception):
    """Raised by a handler where Kafka's only answer is to hang up; the text goes to the log."""


HANDLERS: dict[ApiKey, Handler] = {}

HandlerT = TypeVar("HandlerT", bound=Handler)


def api(key: ApiKey) -> Callable[[HandlerT], HandlerT]:
    """Register the decorated function as the handler of `key`."""

    def register(handler: HandlerT) -> HandlerT:
        assert key not in HANDLERS, f"two handlers for {key.name}"
        HANDLERS[key] = handler
        return handler

    return register


def load_handlers() -> dict[ApiKey, Handler]:
    """Import every API module of this folder, which registers it, and return them all."""
    package = importlib.import_module("klamm.apis")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("k") and module.name[1:3].isdigit():
            importlib.import_module(f"klamm.apis.{module.name}")
    return HANDLERS
