"""Tasks that run beside the sender: connecting, looking up topics, getting a producer id, feeding columns.

Each has a name, and at most one task of a name runs at a time. `close` cancels all tasks; none is started
afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from klamm.client.logs import ClientLogger


class BackgroundTasks:
    """The tasks of one producer."""

    def __init__(self, logger: ClientLogger) -> None:
        self._logger = logger
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.is_closed = False

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task, unless a task of this name runs already."""
        current = self._tasks.get(name)
        if self.is_closed or (current is not None and not current.done()):
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=f"klamm-producer-{name}")
        self._tasks[name] = task
        task.add_done_callback(partial(self._done, name))

    def under_way(self, prefix: str) -> list[asyncio.Task[None]]:
        """The running tasks whose names begin with `prefix`."""
        return [task for name, task in self._tasks.items() if name.startswith(prefix)]

    async def close(self) -> None:
        self.is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("could not %s", name, exc_info=error)
