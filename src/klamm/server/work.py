"""The line of all requests that take long: an iteration of the event loop does one short run of one of them.

So a client with a short request waits for one run, however many long requests there are. The first few in
line alternate, so that one very long request does not hold up the next ones. The requests behind them have
not begun: each holds the bytes of its frame and no more.

From half of the bound on unsent answers (`unsent.py`) on, one long answer is made at a time, so that those of
all jobs together stay within the bound. The longest one goes on: an answer longer than the bound is made too.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from klamm.apis.steps import LONGEST_RUN_S, Steps, run
from klamm.server.unsent import AnswerBytes, UnsentAnswers

JOBS_AT_ONCE = 4
"""Jobs that alternate. A decoded request of the largest size takes 25 MB, so this also bounds memory."""

SHORT_ANSWER_BYTES = 1024 * 1024
"""An answer that has so few bytes yet never waits for the answers of other jobs."""

Done = Callable[[Any, Exception | None], None]


class Job:
    """The steps of one request, and the function that gets their result or the exception that ended them.

    `made` counts the bytes of the answer while they are made; those of a finished answer count elsewhere.
    """

    __slots__ = ("_done", "_steps", "is_over", "made")

    def __init__(self, steps: Steps[Any], done: Done, made: AnswerBytes) -> None:
        self._steps = steps
        self._done = done
        self.made = made
        self.is_over = False

    def advance(self) -> None:
        """Work for one run."""
        try:
            is_finished, result = run(self._steps, time.monotonic() + LONGEST_RUN_S)
        except Exception as error:
            self._end()
            self._done(None, error)
            return
        if is_finished:
            self._end()
            self._done(result, None)

    def cancel(self) -> None:
        """Do no further step."""
        if not self.is_over:
            self._end()
            self._steps.close()

    def _end(self) -> None:
        self.is_over = True
        self.made.release()


class WorkQueue:
    """All jobs of a server that are not finished."""

    def __init__(self, unsent: UnsentAnswers) -> None:
        self._unsent = unsent
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
        if any(job.is_over for job in islice(self._jobs, JOBS_AT_ONCE)):  # cancelled meanwhile
            self._jobs = deque(job for job in self._jobs if not job.is_over)
        if self._jobs:
            job = self._take_next()
            job.advance()
            if not job.is_over:
                self._jobs.insert(JOBS_AT_ONCE - 1, job)
            self._schedule()

    def _take_next(self) -> Job:
        if not self._unsent.is_crowded_with_bytes:
            return self._jobs.popleft()
        begun = list(islice(self._jobs, JOBS_AT_ONCE))
        longest = max(begun, key=lambda job: job.made.byte_count)
        job = next(job for job in begun if job is longest or job.made.byte_count < SHORT_ANSWER_BYTES)
        self._jobs.remove(job)
        return job
