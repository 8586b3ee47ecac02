"""What the console knows of pipelines: the projects as they are now, and what their rates were.

Projects are looked at with each look at the cluster. A project in a store that does not answer, or whose
files take long to import, holds nobody up: it is shown when it is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from klamm.client.admin.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.console.watching.history import History
from klamm.console.watching.picture import Picture
from klamm.operating.errors import CannotDo
from klamm.operating.pipelines import dead_letters, tables
from klamm.operating.pipelines.looking import PipelineState, ProjectState, look
from klamm.operating.pipelines.outlines import Outlines
from klamm.operating.pipelines.redriving import Preview, Progress, Redrives, Wanted, preview
from klamm.pipelines.outline import TABLE
from klamm.pipelines.progress import PipelineStatus

PATIENCE_S = 0.5
"""How long a look at the cluster waits for that at the projects."""

IN, OUT, BATCH, LAG, REFUSED = "in", "out", "batch", "lag", "refused"
"""The series of a pipeline: records read and rows written per second, milliseconds of the last batch,
records behind, rows refused per second."""

logger = logging.getLogger("klamm.console")


def series(kind: str, pipeline: str) -> str:
    return f"{kind} {pipeline}"


class PipelineWatch:
    """The projects of a console, and the history of their pipelines."""

    def __init__(self, folders: Sequence[Path], bootstrap: str, config: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self._config = config
        self._redrives = Redrives()
        self.folders = folders
        self.projects: Sequence[ProjectState] = ()
        self.history = History()
        self.is_known = not folders
        """False until the projects were looked at once."""
        self._outlines = Outlines()
        self._before: dict[str, PipelineStatus] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def pipelines(self) -> list[PipelineState]:
        return [each for project in self.projects for each in project.pipelines.values()]

    def find(self, name: str) -> PipelineState | None:
        """A pipeline by `<project>.<pipeline>`, or by its own name if only one has it."""
        by_key = next((each for each in self.pipelines if each.key == name), None)
        by_name = [each for each in self.pipelines if each.name == name]
        return by_key or (by_name[0] if len(by_name) == 1 else None)

    def project_of(self, pipeline: PipelineState) -> ProjectState:
        return next(each for each in self.projects if each.pipelines.get(pipeline.name) is pipeline)

    async def rows(self, key: str, most: int = tables.MOST_ROWS) -> tables.Rows | None:
        """The newest rows of the table that a pipeline writes; None if there is none yet. Raises CannotDo."""
        return await tables.newest_rows(*self._table_of(key), most)

    async def versions(self, key: str) -> list[tables.Version]:
        """The versions of the table that a pipeline writes. Raises CannotDo."""
        return await tables.history(*self._table_of(key))

    # ---- dead-letter records

    async def dead_letters(
        self, picture: Picture, key: str, rule: str = "", most: int = 50
    ) -> dead_letters.DeadLetters:
        """The newest dead-letter records of a pipeline: all, or those of a rule."""
        found = self._known(key)
        topic = self.project_of(found).dead_letters
        if topic not in picture.topics:
            return dead_letters.NONE
        async with Admin(self._bootstrap, config=self._config) as admin:
            return await dead_letters.newest(admin, self._consumer, topic, found.name, rule, most)

    def _consumer(self, **options: Any) -> Consumer:
        return Consumer(self._bootstrap, config=self._config, **options)

    def wanted_redrive(self, key: str, rule: str) -> Wanted:
        found = self._known(key)
        return Wanted(self.project_of(found).folder, found.name, self._bootstrap, rule)

    async def preview_redrive(self, key: str, rule: str) -> Preview:
        """What a redrive would do. Raises CannotDo."""
        return await preview(self.wanted_redrive(key, rule))

    def start_redrive(self, key: str, rule: str) -> Progress:
        """Raises CannotDo if the pipeline has one that runs."""
        return self._redrives.start(self.wanted_redrive(key, rule))

    def latest_redrive(self, key: str) -> Progress | None:
        """The redrive that runs, or the last one."""
        found = self.find(key)
        return None if found is None else self._redrives.latest(self.project_of(found).folder, found.name)

    def _known(self, key: str) -> PipelineState:
        found = self.find(key)
        if found is None:
            raise CannotDo(f"there is no pipeline {key}")
        return found

    def _table_of(self, key: str) -> tuple[str, Mapping[str, str]]:
        """Where the table is, and the keys of its store, which may be secrets."""
        found = self.find(key)
        outline = found.outline if found is not None else None
        if found is None or outline is None or outline.sink != TABLE:
            raise CannotDo(f"{key} writes no Delta table")
        project = self.project_of(found).project
        return outline.location, project.storage if project is not None else {}

    async def accompany(self) -> None:
        """Look at the projects; returns before that is done if it takes long."""
        if not self.folders:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="projects")
        await asyncio.wait([self._task], timeout=PATIENCE_S)

    async def close(self) -> None:
        await self._redrives.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        try:
            self.projects = await asyncio.gather(*(look(folder, self._outlines) for folder in self.folders))
        except Exception:  # what is shown stays as it was
            logger.exception("the projects could not be looked at")
            return
        self.is_known = True
        self._remember(int(time.time() * 1000))

    def _remember(self, now_ms: int) -> None:
        values: dict[str, float] = {}
        for each in self.pipelines:
            status = each.status
            if status is None:
                continue
            values[series(IN, each.key)] = status.rate
            if status.lag is not None:
                values[series(LAG, each.key)] = status.lag
            if status.batch_ms is not None and status.state == "running":
                values[series(BATCH, each.key)] = status.batch_ms
            before = self._before.get(each.key)
            if before is not None and before.started_ms == status.started_ms:
                values[series(OUT, each.key)] = _rate(before, status, before.rows_out, status.rows_out)
                values[series(REFUSED, each.key)] = _rate(
                    before, status, before.dead_letters, status.dead_letters
                )
            if before is None or before.updated_ms != status.updated_ms:
                self._before[each.key] = status
        self.history.add(now_ms, values)


def _rate(before: PipelineStatus, now: PipelineStatus, count_before: int, count: int) -> float:
    passed_ms = now.updated_ms - before.updated_ms
    return max(0, count - count_before) * 1000 / passed_ms if passed_ms > 0 else 0.0
