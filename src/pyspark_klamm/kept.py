"""Clients that a process keeps: a Python worker of Spark runs many short tasks, and connecting takes time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class KeptClients(Generic[T]):
    """The clients of this process, one per set of settings. A forked child makes its own.

    With more than `most` clients, the least recently used one is closed. Workers run one task at a time, so
    it is not in use then.
    """

    def __init__(
        self, most: int, make: Callable[[Mapping[str, str]], T], close: Callable[[T], object]
    ) -> None:
        self._most = most
        self._make = make
        self._close = close
        self._kept: dict[tuple[int, frozenset[tuple[str, str]]], T] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, settings: Mapping[str, str]) -> T:
        found = self.take(settings)
        if found is None:
            found = self._make(settings)
        self._kept[_key(settings)] = found  # the most recently used is the last
        if len(self._kept) > self._most:
            self._close(self._kept.pop(next(iter(self._kept))))
        return found

    def take(self, settings: Mapping[str, str]) -> T | None:
        """Remove a client from the kept ones. The caller closes it."""
        return self._kept.pop(_key(settings), None)

    def close_all(self) -> None:
        """Close all clients of this process, for example because their broker is about to end."""
        while self._kept:
            (process, _), client = self._kept.popitem()
            if process == os.getpid():
                self._close(client)


def _key(settings: Mapping[str, str]) -> tuple[int, frozenset[tuple[str, str]]]:
    return os.getpid(), frozenset(settings.items())
