"""The outlines of projects. Each is made by a child process, anew when a file of the project has changed:
to know a project, its files must be imported, and the code of users must not run in this process.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

from klamm.operating.errors import CannotDo
from klamm.operating.pipelines import children
from klamm.pipelines.outline import Outline
from klamm.pipelines.project import PROJECT_FILE, Project

TIMEOUT_S = 60.0
"""How long importing a project may take. A second is usual, on a busy machine some."""

AGAIN_S = 30.0
"""After how long a child that failed by itself is tried again, although no file has changed."""

Marks = frozenset[tuple[str, int, int]]
"""Paths, times and sizes of a project's files: others are a project that has changed."""


class _Known(NamedTuple):
    marks: Marks
    outline: Outline | None
    problem: str
    read_s: float


class Outlines:
    """The newest outline of each project."""

    def __init__(self) -> None:
        self._known: dict[Path, _Known] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, project: Project) -> tuple[Outline | None, str]:
        """The outline, and why there is none or an older one, or ""."""
        marks = await asyncio.to_thread(marks_of, project)
        async with self._one_at_a_time:
            known = self._known.get(project.root)
            now_s = asyncio.get_running_loop().time()
            is_failed = known is not None and bool(known.problem) and now_s - known.read_s > AGAIN_S
            if known is None or known.marks != marks or is_failed:
                before = known.outline if known is not None else None
                try:
                    found: Outline | None = await read_outline(project)
                    problem = ""
                except CannotDo as error:
                    found, problem = before, str(error)
                known = self._known[project.root] = _Known(marks, found, problem, now_s)
        return known.outline, known.problem


async def read_outline(project: Project, timeout_s: float = TIMEOUT_S) -> Outline:
    """The outline of a project, from a child process. Raises CannotDo."""
    words = ["pipeline", "graph", "--project", str(project.root), "-o", "json"]
    done = await children.run(words, project.root, timeout_s)
    try:
        return Outline.from_json(json.loads(done.printed))
    except (ValueError, KeyError, TypeError):
        lines = done.complained.strip().splitlines()
        why = lines[-1].removeprefix("klamm: ") if lines else f"its exit status is {done.status}"
        raise CannotDo(
            f"klamm pipeline graph of {project.root} failed: {why}",
            advice="`klamm pipeline lint` says more",
        ) from None


def marks_of(project: Project) -> Marks:
    """What tells a project's files from those that they were before."""
    files = [project.root / PROJECT_FILE, *project.root.glob("*.py"), *project.pipelines.rglob("*.py")]
    marks = set()
    for file in files:
        try:
            found = file.stat()
        except OSError:  # removed meanwhile
            continue
        marks.add((str(file), found.st_mtime_ns, found.st_size))
    return frozenset(marks)
