"""What all plain faces have in common: the asyncio client inside, on a loop in a thread of its own.

A face has references to its client and its thread; neither has a reference to the face. So a face that its
user drops without closing it is collected: it warns, and its thread ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from klamm.client.guard import ClientGuard
from klamm.client.plain.runner import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
FaceT = TypeVar("FaceT", bound=type)


class AsyncClient(Protocol):
    """What a face needs of the client inside it."""

    _guard: ClientGuard

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def counters(self) -> dict[str, float]: ...


class PlainFace:
    """A client for plain threads. Every method may be called from any thread, and from several at once."""

    _client: AsyncClient

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._guard = client._guard
        self._closing = threading.Lock()
        self._thread = LoopThread(f"klamm-{self._guard.kind}-{self._guard.client_id}")
        try:
            self._thread.run(client.start())
        except BaseException:
            self._thread.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call of the client on its loop, and wait for it."""
        try:
            self._guard.check()
        except BaseException:
            work.close()
            raise
        return self._thread.run(work)

    def start(self) -> None:
        """Nothing to do: a plain client is started when it is made."""
        self._guard.check()

    def close(self) -> None:
        """Close the client and end its thread. Idempotent; any other call raises ClientClosed afterwards."""
        self._close(self._client.close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._guard.forked:
            return
        self._thread.check_not_current()
        with self._closing:  # a second thread waits here until the client is closed
            if self._guard.unusable:
                return
            try:
                self._thread.run(close())
            finally:
                self._thread.close()

    def counters(self) -> dict[str, float]:
        """The counters of this client so far, by name."""
        self._guard.check_not_forked()
        return self._client.counters()

    def __repr__(self) -> str:
        return f"<klamm.{type(self).__name__} {self._guard.client_id}{self._guard.state}>"

    def __enter__(self) -> Self:
        self._guard.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if (guard := getattr(self, "_guard", None)) is not None:
            guard.abandoned()


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method of a plain face that runs `method` of the asyncio client inside, and waits for its result.

    Type checkers, editors and `help` see the arguments, the result and the docstring of `method`.
    """

    @wraps(method)
    def call(self: PlainFace, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._run(method(self._client, *arguments, **options))

    return call


def documented_by(client: type) -> Callable[[FaceT], FaceT]:
    """Give the methods of a plain face the docstrings of the asyncio client: they say the same."""

    def give(face: FaceT) -> FaceT:
        for name, method in vars(face).items():
            original = getattr(client, name, None)
            if callable(method) and original is not None and method.__doc__ is None:
                method.__doc__ = original.__doc__
        return face

    return give
