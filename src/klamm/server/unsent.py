"""Bounds what answers hold that clients have not taken yet: bytes in memory, and open segment files.

The bytes of an answer that is made in steps count from when they are made (`AnswerBytes`).

Each connection has a bound of its own; many of them together could still fill the memory or use up the file
descriptors. So there is a bound over all connections of a server:

* from half of it on, nothing more is read from a connection that has unsent answers, and one long answer is
  made at a time (`work.py`);
* an answer may hold open only as many segment files as the bound leaves; it then has fewer records. An
  answer that takes time to be made has its files reserved, so that answers made meanwhile leave them;
* at the bound, connections whose clients have taken nothing for `STUCK_S` are closed, those first that have
  waited longest. A client that reads is never closed, however slowly it reads.

Bytes that a socket takes at once are never counted.
"""

from __future__ import annotations

import asyncio
import resource
from functools import cached_property
from typing import Protocol

MAX_BYTES = 256 * 1024 * 1024
"""Bytes of unsent answers of all connections together: enough for hundreds of slow clients."""

MAX_FILES = 2_000
"""Segment files that the unsent answers of all connections hold open: enough for two busy consumers of a
thousand partitions. It is lower where a twelfth (`FILES_SHARE`) of the process's descriptors is less."""

FILES_SHARE = 12

STUCK_S = 1.0
"""While the bound is reached, a connection whose client has taken nothing for so long is closed."""

CHECK_INTERVAL_S = 0.1


class SlowConnection(Protocol):
    """A connection with unsent answers."""

    def last_progress_s(self) -> float:
        """When its client was last seen to take something, by the clock of the loop."""

    def close(self, reason: str = "") -> None: ...


class UnsentAnswers:
    """How much is unsent, by connection and in all."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_files: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._given_max_files = max_files
        self._of: dict[SlowConnection, tuple[int, int]] = {}
        self._check: asyncio.TimerHandle | None = None
        self.byte_count = 0
        """Bytes of finished answers."""
        self.bytes_being_made = 0
        self.file_count = 0
        self.reserved_files = 0
        self.is_crowded = False
        """Half of the bound is reached."""

    @cached_property
    def _max_files(self) -> int:
        # Not before it is needed: the broker raises its limit of descriptors when it starts.
        return _most_files() if self._given_max_files is None else self._given_max_files

    @property
    def files_left(self) -> int:
        return max(0, self._max_files - self.file_count - self.reserved_files)

    def reserve_files(self, wanted: int) -> int:
        """Keep up to `wanted` files for an answer that is being made; returns how many."""
        reserved = max(0, min(wanted, self.files_left))
        self.reserved_files += reserved
        return reserved

    def release_files(self, count: int) -> None:
        """An answer that had files reserved is finished, or will not be."""
        self.reserved_files -= count

    @property
    def is_crowded_with_bytes(self) -> bool:
        return 2 * (self.byte_count + self.bytes_being_made) > self._max_bytes

    def note(self, connection: SlowConnection, byte_count: int, file_count: int) -> None:
        """Count that `connection` has so many unsent bytes and open files now."""
        bytes_before, files_before = self._of.pop(connection, (0, 0))
        if byte_count or file_count:
            self._of[connection] = (byte_count, file_count)
        self.byte_count += byte_count - bytes_before
        self.file_count += file_count - files_before
        self._look()

    def count_being_made(self, byte_count: int) -> None:
        """Count that so many more bytes of unfinished answers are there, or fewer if it is negative."""
        self.bytes_being_made += byte_count
        self._look()

    def _look(self) -> None:
        self.is_crowded = self.is_crowded_with_bytes or 2 * self.file_count > self._max_files
        if self._check is None and self._is_full():
            self._check = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._close_stuck)

    def _is_full(self) -> bool:
        byte_count = self.byte_count + self.bytes_being_made
        return byte_count >= self._max_bytes or self.file_count >= self._max_files

    def _close_stuck(self) -> None:
        self._check = None
        stuck_since_s = asyncio.get_running_loop().time() - STUCK_S
        progress_s = {connection: connection.last_progress_s() for connection in self._of}
        for connection in sorted(progress_s, key=progress_s.__getitem__):
            if not self._is_full():
                return
            if progress_s[connection] > stuck_since_s:
                break
            connection.close(
                f"its client does not read its answers, and all unsent answers together hold "
                f"{(self.byte_count + self.bytes_being_made) >> 20} MB and {self.file_count} files"
            )
        if self._is_full():
            self._check = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._close_stuck)


class AnswerBytes:
    """The bytes of one answer that is being made. They are kept apart from the connection's unsent bytes: its
    client cannot take them yet, and must not be closed because of them."""

    __slots__ = ("_unsent", "byte_count")

    def __init__(self, unsent: UnsentAnswers) -> None:
        self._unsent = unsent
        self.byte_count = 0

    def add(self, byte_count: int) -> None:
        self.byte_count += byte_count
        self._unsent.count_being_made(byte_count)

    def release(self) -> None:
        """The answer is finished, or will not be."""
        if self.byte_count:
            self._unsent.count_being_made(-self.byte_count)
            self.byte_count = 0


def _most_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if soft == resource.RLIM_INFINITY else min(MAX_FILES, soft // FILES_SHARE)
