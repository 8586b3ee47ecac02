"""What every engine keeps for its callers, on their event loop: calls without an answer, watches, the state.

A call that has waited for the timeout is given up as Unavailable. One timer serves all calls, because all of
them wait equally long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from klamm.coordination.store import State, StoreError, Unavailable, check_path, is_under

# A call that has waited this long is given up. Writes take milliseconds; the rest is room for a slow disk.
DEFAULT_TIMEOUT_S = 15.0
# The most calls that may wait; more are a bug of the caller.
MAX_WAITING_CALLS = 200_000


class PrefixWatch:
    """A callback for a prefix; alive until cancelled."""

    def __init__(self, watches: dict[PrefixWatch, None], prefix: str, callback: Callable[[], None]) -> None:
        self._watches = watches
        self.prefix = prefix
        self.callback = callback

    def cancel(self) -> None:
        self._watches.pop(self, None)


class Callers:
    """The callers of one store, which the texts of errors call `name`."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # A dict and not a set: watches are called in the order in which they were made.
        self._watches: dict[PrefixWatch, None] = {}
        self._on_state: list[Callable[[State], None]] = []
        self._refusal: Callable[[], StoreError] | None = None
        self.state = State.SUSPENDED

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the store is not open"
        return self._loop

    @property
    def prefixes(self) -> set[str]:
        return {watch.prefix for watch in self._watches}

    def begin(self) -> None:
        assert self._loop is None, "a store is opened once"
        self._loop = asyncio.get_running_loop()

    def refuse(self, make_error: Callable[[], StoreError]) -> None:
        """Every call from now on fails with such an error."""
        self._refusal = make_error

    def new_call(self) -> asyncio.Future[Any]:
        """A future for an answer; done already if the call cannot be made."""
        future: asyncio.Future[Any] = self.loop.create_future()
        if self._refusal is not None:
            future.set_exception(self._refusal())
        elif len(self._waiting) >= MAX_WAITING_CALLS:
            future.set_exception(Unavailable(f"{self._name} has {MAX_WAITING_CALLS} calls waiting"))
        else:
            self._waiting.append((self.loop.time() + self._timeout_s, future))
            if self._timer is None:
                self._timer = self.loop.call_later(self._timeout_s, self._give_up)
        return future

    def forget_answered(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()

    async def all_answered(self) -> None:
        await asyncio.gather(*(future for _, future in self._waiting), return_exceptions=True)

    def fail_all(self, error: StoreError) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def on_state(self, callback: Callable[[State], None]) -> None:
        self._on_state.append(callback)

    def change_state(self, state: State) -> None:
        self.state = state
        for callback in tuple(self._on_state):
            callback(state)

    def watch(self, prefix: str, callback: Callable[[], None]) -> PrefixWatch:
        watch = PrefixWatch(self._watches, check_path(prefix), callback)
        self._watches[watch] = None
        return watch

    def fire(self, changed_paths: Iterable[str]) -> None:
        """Call the watches of these paths, each once."""
        paths = tuple(changed_paths)
        for watch in tuple(self._watches):
            if watch in self._watches and any(is_under(watch.prefix, path) for path in paths):
                watch.callback()

    def fire_all(self) -> None:
        for watch in tuple(self._watches):
            if watch in self._watches:
                watch.callback()

    def end(self) -> None:
        """The store is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.fail_all(Unavailable(f"{self._name} was closed"))
        self._watches.clear()
        self._on_state.clear()

    def _give_up(self) -> None:
        """Give up calls that have waited too long, and come back when the next one will have."""
        self._timer = None
        now = self.loop.time()
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= now):
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(Unavailable(f"{self._name} did not answer in {self._timeout_s:g} s"))
        if self._waiting:
            self._timer = self.loop.call_at(self._waiting[0][0], self._give_up)


def ignore_failure(future: asyncio.Future[Any]) -> None:
    """For a call whose failure shows elsewhere."""
    if not future.cancelled():
        future.exception()
