"""A reply that a test awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class FakeReply:
    """Keeps the answer as it was given. `answer` is done with it, or with the error that it failed with."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.on_drop: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return not self.answer.done()

    def complete(self, response: Any) -> None:
        if self.is_open:
            self.on_drop = None
            self.answer.set_result(response)

    def complete_encoded(self, chunks: list[Any]) -> None:
        self.complete(chunks)

    def fail(self, error: BaseException) -> None:
        if self.is_open:
            self.on_drop = None
            self.answer.set_exception(error)

    def reserve_files(self, wanted: int) -> int:
        return wanted

    def drop(self) -> None:
        """The connection goes away."""
        self.answer.cancel()
        on_drop, self.on_drop = self.on_drop, None
        if on_drop is not None:
            on_drop()
