"""The status of pipelines on disk: one file each, replaced after every change, for whoever looks.

A file says what the process that ran the pipeline last knew. When no process holds the project's lock, a
pipeline that "runs" was killed, and is reported so. A run removes the files of pipelines that are gone.
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
    # It is written anew all the time; nothing depends on it after a crash.
    write_whole(state.status_file(status.pipeline), text, durable=False)


def tidy_up(state: State, pipelines: Collection[str], chosen: Collection[str]) -> None:
    """Before a run of the `chosen` ones: forget pipelines that the project no longer has, and let none of
    those that are not run look as if they were.
    """
    for status in _statuses(state):
        if status.pipeline not in pipelines:
            state.status_file(status.pipeline).unlink()
        elif status.pipeline not in chosen and status.state not in ENDED:
            write_status(state, _killed(status))


def read_status(project: Project) -> list[PipelineStatus]:
    """How each pipeline is doing or did last, by name. Pipelines that never ran are not in it."""
    state = State(project)
    in_use = state.in_use()
    return [
        _killed(status) if not in_use and status.state not in ENDED else status for status in _statuses(state)
    ]


def _statuses(state: State) -> Iterator[PipelineStatus]:
    for file in sorted((state.folder / "status").glob("*.json")):
        try:
            yield PipelineStatus.from_json(json.loads(file.read_text()))
        except (ValueError, TypeError):  # written by another version: the next run replaces it
            continue


def _killed(status: PipelineStatus) -> PipelineStatus:
    return replace(status, state="killed", rate=0.0)
