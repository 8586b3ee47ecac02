"""Projects and their pipelines as they are now: what each reads and writes, and the status of its last
run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from klamm.operating.pipelines.outlines import Outlines
from klamm.pipelines.errors import PipelineError, ProjectError
from klamm.pipelines.outline import Outline, PipelineOutline
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.status import read_status

SECRETS = ("kafka", "storage", "iceberg")
"""The sections of klamm.toml that may name variables and files which only the pipelines have."""


@dataclass(frozen=True)
class PipelineState:
    """A pipeline of a project. `outline` is None if its file cannot be imported, `status` if it never ran."""

    project: str
    name: str
    group: str
    outline: PipelineOutline | None
    status: PipelineStatus | None

    @property
    def key(self) -> str:
        """Its name among the pipelines of all projects, which its group has too."""
        return self.group

    @property
    def state(self) -> str:
        return self.status.state if self.status is not None else "never ran"


@dataclass(frozen=True)
class ProjectState:
    """A project. `project` is None if its klamm.toml cannot be read; it may have secrets, so it is not
    shown."""

    folder: Path
    name: str
    project: Project | None = field(repr=False, default=None)
    pipelines: Mapping[str, PipelineState] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def dead_letters(self) -> str:
        return self.project.dead_letters if self.project is not None else ""


async def look(folder: Path, outlines: Outlines) -> ProjectState:
    """A project as it is now. What cannot be had is told in `problems`."""
    project, problems = await asyncio.to_thread(_load, folder)
    if project is None:
        return ProjectState(folder, folder.name, None, {}, problems)
    outline, problem = await outlines.of(project)
    problems += (problem,) if problem else ()
    statuses: list[PipelineStatus] = []
    try:
        statuses = await asyncio.to_thread(read_status, project)
    except (PipelineError, OSError) as error:
        problems += (f"the status of {project.name} cannot be read: {error}",)
    if outline is not None:
        problems += outline.problems
    return ProjectState(folder, project.name, project, _states(project, outline, statuses), problems)


def _load(folder: Path) -> tuple[Project | None, tuple[str, ...]]:
    if not folder.is_dir():
        return None, (f"there is no folder {folder}",)
    try:
        return Project.load(folder), ()
    except ProjectError as error:
        problem = str(error)
    try:
        # Without its secrets the rest can be shown.
        return Project.load(folder, without=SECRETS), (problem,)
    except ProjectError:
        return None, (problem,)


def _states(
    project: Project, outline: Outline | None, statuses: list[PipelineStatus]
) -> dict[str, PipelineState]:
    outlines = {each.name: each for each in outline.pipelines} if outline is not None else {}
    by_name = {each.pipeline: each for each in statuses}
    # Of a project without errors, a status without a pipeline is one of a pipeline that was removed.
    is_whole = outline is not None and not outline.problems
    names = [*outlines, *(name for name in by_name if name not in outlines and not is_whole)]
    return {
        name: PipelineState(project.name, name, project.group_of(name), outlines.get(name), by_name.get(name))
        for name in names
    }
