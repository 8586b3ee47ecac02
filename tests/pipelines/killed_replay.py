"""Replays a range of a project's pipeline `table` in a process of its own that is killed, with SIGKILL, at a
moment of the test's choice.

    python -m tests.pipelines.killed_replay FOLDER FROM TO [MOMENT]

Without a moment the replay is finished.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from klamm.pipelines import replay_range
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.table import TableWriter
from klamm.pipelines.tables import range_replacing
from klamm.pipelines.tables.table import Table

BEFORE, AFTER = True, False

MOMENTS: Mapping[str, tuple[Any, str, bool]] = {
    "before the query": (replay_range, "_rebuild", BEFORE),
    "before a batch": (TableWriter, "write", BEFORE),
    "when files are written": (TableWriter, "_write_files", AFTER),
    "when a batch is beside the table": (TableWriter, "__call__", AFTER),
    "before the swap": (replay_range, "swap_range", BEFORE),
    "before the commit": (range_replacing, "_check_there", AFTER),
    "after the commit": (Table, "change", AFTER),
    "after the swap": (replay_range, "swap_range", AFTER),
}


def kill_at(moment: str) -> None:
    owner, name, is_before = MOMENTS[moment]
    original = getattr(owner, name)

    def struck(*arguments: Any, **named: Any) -> Any:
        if not is_before:
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, struck)


def main(folder: str, from_: str, to: str, moment: str | None = None) -> None:
    project = Project.load(folder)
    planned = replay_range.plan_range(project, "table", from_, to)
    if moment is not None:
        kill_at(moment)
    done = replay_range.carry_out_range(project, planned)
    print(done.rows, done.replaced)


if __name__ == "__main__":
    main(*sys.argv[1:])
