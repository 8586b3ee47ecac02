"""What the asyncio clients have in common: `async with`, `repr`, and a warning if one is never closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from klamm.client.guard import ClientGuard


class AsyncFace(ABC):
    """A client of `klamm.aio`, as PlainFace is one of `klamm`."""

    _guard: ClientGuard

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def close(self, timeout: float | None = None) -> None: ...

    @abstractmethod
    def counters(self) -> dict[str, float]: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<klamm.aio.{type(self).__name__} {self._guard.client_id}{self._guard.state}>"

    def __del__(self) -> None:
        if (guard := getattr(self, "_guard", None)) is not None:
            guard.abandoned()
