"""Sends the answers of several connections together, at the end of an iteration of the event loop.

A `send` that wakes a sleeping process costs twice as much as one to a process that is awake. A client with
many connections, or several clients on a machine, are awake after the first of many sends in a row. When each
answer is sent before the next request is handled, they sleep again in between.

Only short requests wait for others: whatever takes longer has the answers before it sent first.

Replies that are completed later leave in the next iteration, all those of one iteration by one callback.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

logger = logging.getLogger("klamm.server")

MOST_AT_ONCE = 64
"""Answers that wait for others: with 35 µs a request, the first of them waits for 2 ms."""


class Sender(Protocol):
    """A connection."""

    last_active: float

    def send_answers(self) -> None: ...

    def send_answered(self) -> None:
        """Send what was completed since `send_soon`."""


class JointSending:
    def __init__(self) -> None:
        self._waiting: list[Sender] = []
        self._answered: list[Sender] = []
        """Have replies that were completed in this iteration."""
        self._last_reader = 0
        """Its `id`: a closed connection must not be kept."""
        self._last_read_s = 0.0
        self._is_crowded = False

    def note_reader(self, sender: Sender) -> None:
        """Note which connection is read from now. Others in the same iteration of the loop make a crowd.

        uvloop's clock stands still during an iteration. The clock of asyncio's own loop does not: there every
        answer is sent at once.
        """
        reader, read_s = id(sender), sender.last_active
        self._is_crowded = reader != self._last_reader and read_s == self._last_read_s
        self._last_reader, self._last_read_s = reader, read_s

    def takes(self, sender: Sender) -> bool:
        """Whether the answers of `sender` will be sent together with those of others."""
        if not self._is_crowded:
            return False
        waiting = self._waiting
        waiting.append(sender)
        if len(waiting) == 1:
            asyncio.get_running_loop().call_soon(self.send)
        elif len(waiting) >= MOST_AT_ONCE:
            self.send()
        return True

    def send(self) -> None:
        """Send all answers that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for sender in waiting:
                sender.send_answers()

    def send_soon(self, sender: Sender) -> None:
        """Send the answers of `sender` in the next iteration."""
        if not self._answered:
            asyncio.get_running_loop().call_soon(self._send_answered)
        self._answered.append(sender)

    def _send_answered(self) -> None:
        answered, self._answered = self._answered, []
        for sender in answered:
            try:
                sender.send_answered()
            except Exception:  # a fault of ours, for which the others must not wait
                logger.exception("the answers of a connection cannot be sent")
