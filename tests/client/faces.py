"""The two faces of the client behind one way to call them, so that one suite holds both.

A test is an ordinary function and calls `face.producer(...)`, `face.consumer(...)`, `face.admin(...)`. What
it gets is the plain client itself, or the asyncio client on a loop of its own in a thread, where every call
is run to its end. The bridge translates and nothing more: no retries, no waiting, no repairs.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import klamm
import klamm.aio

T = TypeVar("T")

CALL_LIMIT_S = 90.0
"""A call that takes longer hangs."""


class PlainFace:
    """`klamm`: blocking calls from any thread."""

    name = "plain"
    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self) -> None:
        self._made: list[Any] = []

    def producer(self, *arguments: Any, **options: Any) -> Any:
        return self._keep(klamm.Producer(*arguments, **options))

    def consumer(self, *arguments: Any, **options: Any) -> Any:
        return self._keep(klamm.Consumer(*arguments, **options))

    def admin(self, *arguments: Any, **options: Any) -> Any:
        return self._keep(klamm.Admin(*arguments, **options))

    def send_all(self, producer: Any, records: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Send as fast as it goes, and wait where there is no room."""
        return [producer.send(**record) for record in records]

    def _keep(self, client: Any) -> Any:
        self._made.append(client)
        return client

    def close_clients(self) -> None:
        """What a test left open."""
        while self._made:
            self._made.pop().close()

    def close(self) -> None:
        self.close_clients()


class AioFace:
    """`klamm.aio`, on the loop that asyncio itself brings: the plain face runs on uvloop already."""

    name = "aio"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="aio-face", daemon=True)
        self._thread.start()
        self._made: list[Bridge] = []

    def run(self, work: Coroutine[Any, Any, T], timeout: float = CALL_LIMIT_S) -> T:
        """Run a coroutine on the loop of the clients."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise AssertionError(f"{work} hangs: it took longer than {timeout:.0f} s") from None

    def producer(self, *arguments: Any, **options: Any) -> Any:
        return self._make(klamm.aio.Producer, arguments, options)

    def consumer(self, *arguments: Any, **options: Any) -> Any:
        return self._make(klamm.aio.Consumer, arguments, options)

    def admin(self, *arguments: Any, **options: Any) -> Any:
        return self._make(klamm.aio.Admin, arguments, options)

    def send_all(self, producer: Bridge, records: Iterable[Mapping[str, Any]]) -> list[Any]:
        async def send() -> list[Any]:
            deliveries = []
            for record in records:
                try:
                    delivery = producer.target.send(**record)
                except klamm.BufferFull:
                    await producer.target.drain()
                    delivery = producer.target.send(**record)
                deliveries.append(BridgedDelivery(self, delivery))
            return deliveries

        return self.run(send())

    def _make(self, kind: Callable[..., Any], arguments: Any, options: Any) -> Bridge:
        async def make() -> Any:
            return kind(*arguments, **options)

        bridge = Bridge(self, self.run(make()))
        self._made.append(bridge)
        return bridge

    def close_clients(self) -> None:
        while self._made:
            self._made.pop().close()

    def close(self) -> None:
        self.close_clients()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_LIMIT_S)
        self.loop.close()


Face = PlainFace | AioFace


class Bridge:
    """An asyncio object whose methods are called from another thread, and awaited there."""

    def __init__(self, face: AioFace, target: Any) -> None:
        self._face = face
        self.target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        if not callable(attribute):
            return attribute

        async def run(arguments: Any, options: Any) -> Any:
            result = attribute(*arguments, **options)
            if hasattr(result, "add_done_callback") and hasattr(result, "exception"):
                return BridgedDelivery(self._face, result)
            return await result if inspect.isawaitable(result) else result

        return lambda *arguments, **options: self._face.run(run(arguments, options))

    def __enter__(self) -> Bridge:
        self._face.run(self.target.__aenter__())
        return self

    def __exit__(self, *exception: Any) -> None:
        self._face.run(self.target.__aexit__(*exception))

    def __iter__(self) -> Iterator[Any]:
        iterator = self.target.__aiter__()

        async def following() -> tuple[bool, Any]:
            try:
                return True, await iterator.__anext__()
            except StopAsyncIteration:
                return False, None

        while True:
            is_there, item = self._face.run(following())
            if not is_there:
                return
            yield item


class BridgedDelivery:
    """What the asyncio `send` gives, awaited from another thread."""

    def __init__(self, face: AioFace, delivery: Any) -> None:
        self._face = face
        self._delivery = delivery

    async def _outcome(self) -> Any:
        return await self._delivery

    def result(self, timeout: float = CALL_LIMIT_S) -> Any:
        return self._face.run(self._outcome(), timeout)

    def exception(self, timeout: float = CALL_LIMIT_S) -> BaseException | None:
        try:
            self.result(timeout)
        except klamm.ClientError as error:
            return error
        return None

    def done(self) -> bool:
        return bool(self._delivery.done())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        async def add() -> None:
            self._delivery.add_done_callback(callback)

        self._face.run(add())


FACES: dict[str, Callable[[], Face]] = {"plain": PlainFace, "aio": AioFace}
