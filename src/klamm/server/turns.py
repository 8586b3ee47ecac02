"""How the connections of a server share the event loop: those whose requests take long go on by turns.

A connection whose requests took long waits for its turn in one line with all others like it, and in an
iteration of the loop only the first in line has its turn. So a client with short requests waits for one of
them and not for all of them. When many connections that are not in line yet bring long requests in one
iteration, its time is used up after a few, and the rest joins the line before anything is read from it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

LONG_S = 0.002
"""Requests that take longer than this send their connection into the line."""

ITERATION_LIMIT_S = 0.02
"""How much time the long requests of all connections may take in one iteration of the loop, not counting the
last of them."""


class Turns:
    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()
        self._used_s = 0.0
        self._is_scheduled = False
        self.is_used_up = False
        """Nothing more should be read from any connection in this iteration of the loop."""

    def wait(self, used_s: float, go_on: Callable[[], None]) -> None:
        """Count the `used_s` that a connection has taken of this iteration, and call `go_on` at its turn."""
        self._line.append(go_on)
        self._used_s += used_s
        self.is_used_up = self._used_s >= ITERATION_LIMIT_S
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._give_turn)

    def _give_turn(self) -> None:
        self._is_scheduled = False
        self._used_s = 0.0
        self.is_used_up = False
        self._line.popleft()()
        if self._line:
            self._schedule()
