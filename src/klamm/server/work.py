"""The line of all requests that take long: an iteration of the event loop does one short run of one of them.

So a client with a short request waits for one run, however many long requests there are. The first few in
line alternate, so that one very long request does not hold up the next ones. The requests behind them have
not begun: each holds the bytes of its frame and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from klamm.apis.steps import LONGEST_RUN_S, Steps, run

JOBS_AT_ONCE = 4
"""Jobs that alternate. A decoded request of the largest size takes 25 MB, so this also bounds memory."""

Done = Callable[[Any, Exception | None], None]


class Job:
    """The steps of one request, and the function that gets their result or the exception that ended them."""

    __slots__ = ("_done", "_steps", "is_over")

    def __init__(self, steps: Steps[Any], done: Done) -> None:
        self._steps = steps
        self._done = done
        self.is_over = False

    def advance(self) -> None:
        """Work for one run."""
        try:
            is_finished, result = run(self._steps, time.monotonic() + LONGEST_RUN_S)
        except Exception as error:
            self.is_over = True
            self._done(None, error)
            return
        if is_finished:
            self.is_over = True
            self._done(result, None)

    def cancel(self) -> None:
        """Do no further step."""
        if not self.is_over:
            self.is_over = True
            self._steps.close()


class WorkQueue:
    """All jobs of a server that are not finished."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)
        self._schedule()

    def _schedule(self) -> None:
        if self._jobs and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        self._is_scheduled = False
        while self._jobs and self._jobs[0].is_over:  # cancelled meanwhile
            self._jobs.popleft()
        if self._jobs:
            job = self._jobs.popleft()
            job.advance()
            if not job.is_over:
                self._jobs.insert(JOBS_AT_ONCE - 1, job)
            self._schedule()
