"""A waiter for coroutines: batches and ledgers call it when they are done; whoever awaits it goes on."""

from __future__ import annotations

import asyncio


class Wakeable:
    """Ends its future when it is called, on the loop. May be called when nobody waits any more."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def __call__(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
