"""Raises an error if a client is used after it was closed, in a child process that was forked after the
client was made, or on another event loop than that of its first call.

Each client has one guard; a plain face shares the guard of the asyncio client inside it. `send` and `poll`
test one attribute (`guard.unusable`) and call `check` only if it is set. If a user drops a client without
closing it, the client warns once (`abandoned`, called by the face's `__del__`).

After a fork the child has a copy of the client without its thread, and with sockets that the parent still
uses. So the copy must do nothing: every call raises ClientForked, and `close` returns at once.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from weakref import WeakSet

from klamm.client.errors import ClientClosed, ClientForked, ClientMisused


class ForkAware:
    """An object whose `forked` becomes True in a forked child process."""

    forked: bool = False

    def __init__(self) -> None:
        _FORK_AWARE.add(self)

    def after_fork(self) -> None:
        """Called in the child, before any other code runs there."""
        self.forked = True


_FORK_AWARE: WeakSet[ForkAware] = WeakSet()


def _tell_child() -> None:
    for one in _FORK_AWARE:
        one.after_fork()


os.register_at_fork(after_in_child=_tell_child)


class ClientGuard(ForkAware):
    """The guard of one client. `kind` and `client_id` name the client in errors: "producer klamm-1"."""

    def __init__(self, kind: str, client_id: str) -> None:
        super().__init__()
        self.kind = kind
        self.client_id = client_id
        self.unusable = False
        self.started = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the first call. `send` compares it and calls `check_on_loop` only if it differs."""
        self._warned = False

    @property
    def state(self) -> str:
        """The part of a client's `repr` after its name."""
        return ", forked" if self.forked else ", closed" if self.unusable else ""

    def check(self) -> None:
        """Raise ClientClosed or ClientForked if the client may not be used any more."""
        if not self.unusable:
            return
        if self.forked:
            raise self.forked_error()
        raise ClientClosed(f"{self.kind} {self.client_id} is closed", advice=f"Make a new {self.kind}")

    def check_not_forked(self) -> None:
        """Raise ClientForked in a forked child. For calls that may be made after `close`."""
        if self.forked:
            self.check()

    def check_on_loop(self) -> None:
        """As `check`. Also raises ClientMisused on another loop than that of the first call, where no answer
        would arrive."""
        self.check()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ClientMisused(
                f"{self.kind} {self.client_id} of klamm.aio is used outside of an event loop",
                advice=f"Call it in a coroutine, or take klamm.{self.kind.capitalize()}",
            ) from None
        if self.loop is None:
            self.loop = loop
        elif self.loop is not loop:
            raise ClientMisused(
                f"{self.kind} {self.client_id} is used on another event loop than before",
                advice="Make it, use it and close it within one asyncio.run()",
            )

    def forked_error(self) -> ClientForked:
        return ClientForked(
            f"{self.kind} {self.client_id} was made before this process was forked",
            advice=f"Make another {self.kind} in the child",
        )

    def begin_close(self) -> bool:
        """True for the first caller, who then closes the client; False for later ones, and in a forked
        child."""
        first = not self.unusable
        self.unusable = True
        return first

    def after_fork(self) -> None:
        super().after_fork()
        self.unusable = True

    def abandoned(self) -> None:
        """Warn, once, if the client was started and nobody closed it. For the `__del__` of a face."""
        if self.started and not self.unusable and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.kind} {self.client_id} was never closed; use `with` or `async with`, or call close()",
                ResourceWarning,
                stacklevel=3,
            )
