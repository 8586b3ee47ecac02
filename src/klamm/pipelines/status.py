"""The status of pipelines on disk: one file per pipeline, replaced after every change, for commands that show
it.

A file has the last status that the process of the pipeline wrote. If the status is "running" but no process
holds the project's lock, the process was killed, and the pipeline is reported as killed. A run removes the
files of pipelines that the project no longer has.

If the state is at a URI, the run may be on another machine, whose lock cannot be seen. A status that is old
says so. There a file is replaced at most every few seconds, unless the pipeline's state changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from klamm.pipelines.progress import ENDED, PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.state import State

SHARED_INTERVAL_MS = 5_000
"""How often a status in a store is replaced: each time is a request, which the run waits for."""

OLD_MS = 60_000
"""A status in a store that is older than this is said to be old."""


def write_status(state: State, status: PipelineStatus) -> None:
    text = json.dumps(status.to_json(), indent=1)
    # Not synced: the file is replaced all the time, and nothing depends on it after a crash.
    state.files.write(_file(status.pipeline), text, durable=False)


def is_due(state: State, status: PipelineStatus, written: PipelineStatus | None) -> bool:
    """True if a status should be written, after the one that was written last."""
    if status == written:
        return False
    if written is None or not state.is_shared or status.state != written.state or status.state in ENDED:
        return True
    return status.updated_ms - written.updated_ms >= SHARED_INTERVAL_MS


def tidy_up(state: State, pipelines: Collection[str], chosen: Collection[str]) -> None:
    """Before a run of the `chosen` pipelines: remove the status of pipelines that the project no longer has,
    and mark others that still have the status of a killed run, unless they may run on another machine.
    """
    for status in _statuses(state):
        if status.pipeline not in pipelines:
            state.files.delete(_file(status.pipeline))
        elif not state.is_shared and status.pipeline not in chosen and status.state not in ENDED:
            write_status(state, _killed(status))


def read_status(
    project: Project, clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)
) -> list[PipelineStatus]:
    """The status of each pipeline, or its last one, by name. Pipelines that never ran are left out."""
    state = State(project)
    in_use = state.in_use()

    def seen(status: PipelineStatus) -> PipelineStatus:
        if in_use or status.state in ENDED:
            return status
        if not state.is_shared:
            return _killed(status)
        age_ms = clock_ms() - status.updated_ms
        return replace(status, note=f"no news for {age_ms // 1000} s") if age_ms > OLD_MS else status

    return [seen(status) for status in _statuses(state)]


def rows_too_late(state: State, pipeline: str, attempt: int) -> int:
    """How many rows the last run of a pipeline's attempt has dropped because they were older than the
    watermark, if that is known; else 0."""
    found = [each for each in _statuses(state) if (each.pipeline, each.generation) == (pipeline, attempt)]
    return found[0].too_late if found else 0


def _statuses(state: State) -> Iterator[PipelineStatus]:
    for name in state.files.names("status"):
        if name.startswith(".") or not name.endswith(".json"):
            continue
        try:
            yield PipelineStatus.from_json(json.loads(state.files.read(f"status/{name}")))
        except (ValueError, TypeError):  # written by another version: the next run replaces it
            continue


def _file(pipeline: str) -> str:
    return f"status/{pipeline}.json"


def _killed(status: PipelineStatus) -> PipelineStatus:
    return replace(status, state="killed", rate=0.0)
