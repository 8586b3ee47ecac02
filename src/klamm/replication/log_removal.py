"""Deletes the logs of partitions: their names are free at once, their files go in the background.

Files that are left when the broker stops are removed after its next start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from klamm.model.ids import TopicPartition
from klamm.storage.files import remove_tree
from klamm.storage.log_dirs import LogDirs

REMOVED_AT_ONCE = 50
"""Directories that a thread removes before other work has its turn: a few milliseconds, if they are empty."""

RunInThread = Callable[..., Awaitable[Any]]


class LogRemoval:
    def __init__(self, log_dirs: LogDirs, run_in_thread: RunInThread) -> None:
        self._log_dirs = log_dirs
        self._run_in_thread = run_in_thread
        self._to_remove: deque[str] = deque()
        """Directories of deleted logs; `_removing` is the task that removes them."""
        self._removing: asyncio.Task[None] | None = None

    async def delete(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OSError]:
        """Free the names of the logs and have their files removed; returns those that failed."""
        if not topic_partitions:
            return {}
        put_away = await self._run_in_thread(self._log_dirs.put_away_for_deletion, topic_partitions)
        self.remove_soon(put_away.directories)
        failures: dict[TopicPartition, OSError] = put_away.failures
        return failures

    def remove_soon(self, directories: Iterable[str]) -> None:
        """Remove deleted logs' directories one after another in the background: nobody waits for them."""
        self._to_remove.extend(directories)
        if self._to_remove and (self._removing is None or self._removing.done()):
            self._removing = asyncio.get_running_loop().create_task(self._remove())

    async def _remove(self) -> None:
        while self._to_remove:
            some = [self._to_remove.popleft() for _ in range(min(REMOVED_AT_ONCE, len(self._to_remove)))]
            await self._run_in_thread(_remove_all, some)

    def stop(self) -> None:
        if self._removing is not None:
            self._removing.cancel()


def _remove_all(directories: Iterable[str]) -> None:
    for directory in directories:
        remove_tree(directory)
