"""The responses of one connection that are not sent yet, in the order of their requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from klamm.server.dispatch import Route
from klamm.server.sending import held_by
from klamm.server.unsent import ReservedFiles


class PendingResponse:
    """The place in line of a response that is not made yet, or that waits for an earlier response.

    A finished response is kept encoded: the bytes are smaller than the objects, and can be counted.
    """

    __slots__ = (
        "chunks",
        "correlation_id",
        "file_count",
        "future",
        "is_done",
        "memory_bytes",
        "route",
        "size",
    )

    def __init__(self, route: Route, correlation_id: int) -> None:
        self.route = route
        self.correlation_id = correlation_id
        self.future: asyncio.Future[Any] | None = None
        self.chunks: list[Any] = []
        self.size = 0
        self.memory_bytes = 0
        self.file_count = 0
        self.is_done = False


class ResponseLine(deque[PendingResponse]):
    """Finished responses wait here for the earlier ones. The counters say what the finished ones hold,
    `reserved` what is kept for those that are not finished."""

    __slots__ = ("byte_count", "file_count", "memory_bytes", "reserved")

    def __init__(self, reserved: ReservedFiles) -> None:
        super().__init__()
        self.reserved = reserved
        self.byte_count = 0
        self.memory_bytes = 0
        self.file_count = 0

    def add(self, route: Route, correlation_id: int) -> PendingResponse:
        pending = PendingResponse(route, correlation_id)
        self.append(pending)
        return pending

    def finish(self, pending: PendingResponse, chunks: list[Any]) -> None:
        """Keep a finished response until all earlier ones are taken out."""
        pending.chunks = chunks
        pending.size = sum(map(len, chunks))
        pending.memory_bytes, pending.file_count = held_by(chunks)
        pending.is_done = True
        self.byte_count += pending.size
        self.memory_bytes += pending.memory_bytes
        self.file_count += pending.file_count
        if self.reserved and not self._is_being_made(pending.correlation_id):
            self.reserved.release(pending.correlation_id)

    def _is_being_made(self, correlation_id: int) -> bool:
        """True if a response is not finished yet. A client may give one id to several requests."""
        return any(each.correlation_id == correlation_id and not each.is_done for each in self)

    def take_ready(self) -> Iterator[list[Any]]:
        """Take out, in order, the responses that wait for no earlier one."""
        while self and self[0].is_done:
            pending = self.popleft()
            self.byte_count -= pending.size
            self.memory_bytes -= pending.memory_bytes
            self.file_count -= pending.file_count
            yield pending.chunks

    def abandon(self) -> None:
        """Drop all responses, because the connection is closed."""
        for pending in self:
            if pending.future is not None:
                pending.future.cancel()
        self.reserved.release_all()
        self.clear()
