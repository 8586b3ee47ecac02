"""Work and answers that can be large, done in steps, so that other connections are served between them.

The rules that keep a request from costing more than its bytes and what exists (docs/adr/0017):

* what a request names twice is answered once, or refused where Kafka refuses it (`distinct`);
* an answer whose size depends on what exists, or on how much was asked, is returned `in_steps`. Its long
  lists are made `lazily`: an element is made when it is encoded, and is not kept;
* a loop of a coroutine that may be long calls `Pauses.pause` in every round, or goes over its elements
  `with_pauses`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
)
from itertools import islice
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
ResultT = TypeVar("ResultT")
NameT = TypeVar("NameT", bound=Hashable)

Steps = Generator[None, None, ResultT]
"""Work that yields after every step, and its result."""

LONGEST_RUN_S = 0.002
"""How long work may keep the event loop before other work goes on. A client hardly notices so little, and it
is long against the cost of an iteration of the loop."""

AT_ONCE = 100
"""Elements that a handler deals with between two steps, where each takes microseconds."""


def in_steps(response: T) -> Steps[T]:
    """Have `response`, which may hold lists made `lazily`, encoded in steps."""
    return response
    yield


def distinct(items: Iterable[T]) -> list[T]:
    """Each item once, in the order in which the items first appear."""
    return list(dict.fromkeys(items))


def lazily(items: Collection[T], make: Callable[[T], ResultT]) -> list[ResultT]:
    """The list `[make(item) for item in items]`, whose elements are made when they are encoded.

    Typed as the list that it stands for. Only the encoder in steps may read it, and only once.
    """
    return cast(list[ResultT], _Lazy(items, make))


class _Lazy(Generic[T, ResultT]):
    __slots__ = ("_items", "_make")

    def __init__(self, items: Collection[T], make: Callable[[T], ResultT]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ResultT]:
        return map(self._make, self._items)


def pieces_of(items: Iterable[T], size: int = AT_ONCE) -> Iterator[list[T]]:
    """`items` in pieces of at most `size`. A piece is taken from `items` when its turn has come."""
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece


class Pauses:
    """For a loop in a coroutine: lets other work of the event loop go on whenever enough time has passed."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s = time.monotonic() + LONGEST_RUN_S

    async def pause(self) -> None:
        """Called once in every round of the loop."""
        if time.monotonic() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.monotonic() + LONGEST_RUN_S


async def with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """The items one after the other, with pauses between them."""
    pauses = Pauses()
    for piece in pieces_of(items):
        await pauses.pause()
        for item in piece:
            yield item


async def count_names(items: Iterable[T], name_of: Callable[[T], NameT]) -> Counter[NameT]:
    """How often each name occurs among `items`, counted with pauses."""
    counts: Counter[NameT] = Counter()
    async for item in with_pauses(items):
        counts[name_of(item)] += 1
    return counts


def run(steps: Steps[Any], until_s: float) -> tuple[bool, Any]:
    """Work until the monotonic clock shows `until_s`: (whether the work is finished, its result)."""
    try:
        while True:
            next(steps)
            if time.monotonic() >= until_s:
                return False, None
    except StopIteration as end:
        return True, end.value
