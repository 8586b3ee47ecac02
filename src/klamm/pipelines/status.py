"""The status of pipelines on disk: one file per pipeline, replaced after every change, for commands that show
it.

A file has the last status that the process of the pipeline wrote. If the status is "running" but no process
holds the project's lock, the process was killed, and the pipeline is reported as killed. A run removes the
files of pipelines that the project no longer has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace

from klamm.pipelines.progress import ENDED, PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.state import State, write_whole


def write_status(state: State, status: PipelineStatus) -> None:
    text = json.dumps(status.to_json(), indent=1)
    # Not synced: the file is replaced all the time, and nothing depends on it after a crash.
    write_whole(state.status_file(status.pipeline), text, durable=False)


def tidy_up(state: State, pipelines: Collection[str], chosen: Collection[str]) -> None:
    """Before a run of the `chosen` pipelines: remove the status of pipelines that the project no longer has,
    and mark others that still have the status of a killed run.
    """
    for status in _statuses(state):
        if status.pipeline not in pipelines:
            state.status_file(status.pipeline).unlink()
        elif status.pipeline not in chosen and status.state not in ENDED:
            write_status(state, _killed(status))


def read_status(project: Project) -> list[PipelineStatus]:
    """The status of each pipeline, or its last one, by name. Pipelines that never ran are left out."""
    state = State(project)
    in_use = state.in_use()
    return [
        _killed(status) if not in_use and status.state not in ENDED else status for status in _statuses(state)
    ]


def rows_too_late(state: State, pipeline: str, attempt: int) -> int:
    """How many rows the last run of a pipeline's attempt has dropped because they were older than the
    watermark, if that is known; else 0."""
    found = [each for each in _statuses(state) if (each.pipeline, each.generation) == (pipeline, attempt)]
    return found[0].too_late if found else 0


def _statuses(state: State) -> Iterator[PipelineStatus]:
    for file in sorted((state.folder / "status").glob("*.json")):
        try:
            yield PipelineStatus.from_json(json.loads(file.read_text()))
        except (ValueError, TypeError):  # written by another version: the next run replaces it
            continue


def _killed(status: PipelineStatus) -> PipelineStatus:
    return replace(status, state="killed", rate=0.0)
