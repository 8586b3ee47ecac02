"""A request on its way, who waits for its answer, and requests that are made before they are sent. A core."""

from __future__ import annotations

from typing import Any, Protocol


class AnswerWaiter(Protocol):
    """Who waits for an answer: a future, or something of its kind. What it is told must not make it raise."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class PreparedRequest(Protocol):
    """A request whose bytes are made already, all but the correlation id and the records."""

    @property
    def api_key(self) -> int: ...

    @property
    def version(self) -> int: ...

    def frame(self, correlation_id: int, records: bytearray | memoryview, /) -> bytes:
        """The whole request."""

    def read(self, correlation_id: int, frame: memoryview, /) -> Any | None:
        """What the answer to this request says, if it asks for no pause; None if it must be decoded to know,
        or answers another request."""


class PendingRequest:
    """A request that has no answer yet."""

    __slots__ = (
        "api_key",
        "correlation_id",
        "dead_at",
        "deadline",
        "prepared",
        "sent_at",
        "timeout",
        "version",
        "waiter",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        waiter: AnswerWaiter,
        sent_at: float,
        timeout: float,
        longest: float,
        prepared: PreparedRequest | None = None,
    ) -> None:
        self.prepared = prepared
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.waiter = waiter
        self.sent_at = sent_at
        self.timeout = timeout
        self.deadline = sent_at + timeout
        self.dead_at = sent_at + (timeout if timeout > longest else longest)
