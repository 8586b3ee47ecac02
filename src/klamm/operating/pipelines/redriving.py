"""Redrives of dead-letter records: each is `klamm pipeline redrive` in a process of its own, as it runs the
code of users, and Spark.

A preview asks the same command, with --dry-run, what it would do. A pipeline has one redrive at a time.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klamm.operating.errors import CannotDo
from klamm.operating.pipelines import children

PREVIEW_S = 300.0
"""How long a preview may take. It starts Spark if a pipeline keeps state."""

MOST_LINES = 500
"""How much of the output of a redrive is kept."""

STOPPED = -1
"""The exit status of a redrive that could not be started, or was stopped with its console."""

_LONGEST_LINE = 2_000


@dataclass(frozen=True)
class Wanted:
    """What to redrive: the dead-letter records of a pipeline, all or those of a rule."""

    folder: Path
    pipeline: str
    bootstrap: str
    rule: str = ""

    def words(self, last: str) -> list[str]:
        """The arguments of `klamm`."""
        # With "=": a rule may begin with a minus sign.
        chosen = [f"--pipeline={self.pipeline}", *([f"--rule={self.rule}"] if self.rule else [])]
        place = ["--project", str(self.folder), "--bootstrap", self.bootstrap]
        return ["pipeline", "redrive", *chosen, *place, last]

    @property
    def command(self) -> str:
        """The same as a user types it."""
        return shlex.join(["klamm", *self.words("--yes")])


@dataclass(frozen=True)
class Preview:
    """What a redrive would do: how many records, and what the command says of it."""

    records: int
    lines: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Progress:
    """A redrive: what it has printed, and its exit status; None while it runs."""

    command: str
    lines: tuple[str, ...]
    status: int | None

    @property
    def is_running(self) -> bool:
        return self.status is None


class _Redrive:
    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.status: int | None = None
        self.task = asyncio.create_task(self._run(), name=f"redrive {wanted.pipeline}")

    async def _run(self) -> None:
        child: Process | None = None
        status = STOPPED
        try:
            child = await children.start(self.wanted.words("--yes"), self.wanted.folder)
            assert child.stdout is not None and child.stderr is not None
            await asyncio.gather(self._read(child.stdout), self._read(child.stderr))
            status = await child.wait()
        except OSError as error:
            self.lines.append(f"it cannot be started: {error.strerror}")
        finally:
            if child is not None:
                await children.end(child)
            self.status = status

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while piece := await _line(stream):
            if text := piece.decode(errors="replace").rstrip():
                self.lines.append(text[:_LONGEST_LINE])


class Redrives:
    """The redrives of a console. They end with it."""

    def __init__(self) -> None:
        self._latest: dict[tuple[Path, str], _Redrive] = {}

    def latest(self, folder: Path, pipeline: str) -> Progress | None:
        """The redrive of a pipeline that runs, or the last one; None if there was none."""
        found = self._latest.get((folder, pipeline))
        return None if found is None else Progress(found.wanted.command, tuple(found.lines), found.status)

    def start(self, wanted: Wanted) -> Progress:
        """Raises CannotDo if one of this pipeline runs."""
        before = self._latest.get((wanted.folder, wanted.pipeline))
        if before is not None and before.status is None:
            raise CannotDo(f"a redrive of {wanted.pipeline} is running", advice="Wait until it has ended")
        self._latest[wanted.folder, wanted.pipeline] = _Redrive(wanted)
        return Progress(wanted.command, (), None)

    async def close(self) -> None:
        for each in self._latest.values():
            each.task.cancel()
            with suppress(asyncio.CancelledError):
                await each.task
            if each.status is None:  # it was stopped before it began
                each.status = STOPPED


async def preview(wanted: Wanted) -> Preview:
    """What a redrive would do. Raises CannotDo if the command fails."""
    done = await children.run([*wanted.words("--dry-run"), "-o", "json"], wanted.folder, PREVIEW_S)
    lines = tuple(line[:_LONGEST_LINE] for line in done.complained.splitlines() if line.strip())
    if done.status != 0:
        why = lines[-1].removeprefix("klamm: ") if lines else f"its exit status is {done.status}"
        raise CannotDo(f"what a redrive would do is not known: {why}")
    try:
        return Preview(_records(json.loads(done.printed)), lines, wanted.command)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotDo("what a redrive would do is not known: its command printed no JSON") from None


def _records(told: Mapping[str, Any]) -> int:
    return sum(sum(each["sent"].values()) for each in told["pipelines"].values())


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or a piece of one that is too long; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(error.consumed or 1)
