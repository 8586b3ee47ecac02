"""The broker's handle on the child process that compacts; `child_main` is what runs in the child.

The process is started when there is work and lives until `close`. Whatever goes wrong (it dies, falls
silent, the caller is cancelled) ends it, and the next compaction starts a new one: no state survives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import klamm
from klamm.storage.compaction.rewriting import CleanedSegment, CleanPlan, CleanSummary
from klamm.storage.files import LogDirFailure

CHILD_MODULE = "klamm.storage.compaction.child_main"
SILENCE_LIMIT_S = 300.0
"""The process shows a sign of life every few seconds; only the fsync of a large segment may take longer."""
LINE_LIMIT_BYTES = 16 * 1024 * 1024
"""The longest line: one that names all segments that a new one replaces."""


class CleanerFailure(Exception):
    """A compaction did not finish; the log is unchanged, or holds the segments that were put in place."""


class CleanerProcess:
    def __init__(self, silence_limit_s: float = SILENCE_LIMIT_S) -> None:
        self.silence_limit_s = silence_limit_s
        self._process: Process | None = None
        self._is_busy = False

    @property
    def process_id(self) -> int | None:
        """None while there is no process."""
        return self._process.pid if self._process is not None else None

    async def clean(
        self, plan: CleanPlan, put_in_place: Callable[[CleanedSegment], Awaitable[None]]
    ) -> CleanSummary:
        """Carry out `plan`; one at a time. Each new segment must be in place before the next is begun.

        Raises CleanerFailure, LogDirFailure if the disk failed, and what `put_in_place` raises.
        """
        try:
            return await self._clean(plan, put_in_place)
        finally:
            if self._is_busy:
                await self.close()

    async def _clean(
        self, plan: CleanPlan, put_in_place: Callable[[CleanedSegment], Awaitable[None]]
    ) -> CleanSummary:
        process = await self._running()
        self._is_busy = True
        await _tell(process, json.dumps(plan._asdict()))
        while True:
            answer = await self._answer(process)
            if "segment" in answer:
                await put_in_place(CleanedSegment(**answer["segment"]))
                await _tell(process, "")
            elif "summary" in answer:
                self._is_busy = False
                return CleanSummary(**answer["summary"])
            elif "failed" in answer:
                self._is_busy = False
                raise (LogDirFailure if answer["is_disk_failure"] else CleanerFailure)(answer["failed"])

    async def _answer(self, process: Process) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), self.silence_limit_s)
        except TimeoutError:
            raise CleanerFailure(
                f"the compaction process was silent for {self.silence_limit_s:.0f} s"
            ) from None
        if not line.endswith(b"\n"):
            raise CleanerFailure(f"the compaction process ended with code {await process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        package_root = str(Path(klamm.__file__).parent.parent)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # else modules in the working directory could be imported
                "-m",
                CHILD_MODULE,
                stdin=PIPE,
                stdout=PIPE,
                limit=LINE_LIMIT_BYTES,
                env={**os.environ, "PYTHONPATH": package_root},
                start_new_session=True,  # Ctrl-C is for the broker, which then ends this
            )
        except OSError as error:
            raise CleanerFailure(f"the compaction process cannot be started: {error}") from error
        return self._process

    async def close(self) -> None:
        """End the process, at once, whatever it does; a compaction under way leaves files to be removed."""
        process, self._process = self._process, None
        self._is_busy = False
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _tell(process: Process, line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        raise CleanerFailure(f"the compaction process ended with code {await process.wait()}") from None
