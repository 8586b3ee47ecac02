"""Runs a project in a process of its own that is killed, with SIGKILL, at a moment of the test's choice.

    python -m tests.pipelines.killed_run FOLDER MASTER [MOMENT COUNT]

The moment is met COUNT times before it kills. Nothing of that is in the code that runs: it is put around it.
Without a moment the project runs until it has caught up, with "until a signal" until it gets one; what became
of it is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from klamm.pipelines.project import Project
from klamm.pipelines.runner import run
from klamm.pipelines.sinks.table import TableWriter
from klamm.pipelines.tables import upkeep
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy

# Where, by name: what to wrap, and whether the moment is before or after it is called.
MOMENTS: dict[str, tuple[Any, str, bool]] = {
    "before the batch is written": (TableWriter, "write", True),
    "after its files are written": (TableWriter, "_write_files", False),
    "before it is committed": (Table, "append", True),
    "after it is committed": (Table, "append", False),
    "before Spark notes that it is done": (TableWriter, "__call__", False),
    "before files are merged": (upkeep, "keep_up", True),
    "after files are merged": (upkeep, "keep_up", False),
}
UNTIL_A_SIGNAL = "until a signal"
UPKEEP = UpkeepPolicy(least_files=3)


def at(moment: str, count: int, strike: Callable[[], None]) -> tuple[Any, str, Callable[..., Any]]:
    """What to put in the place of the moment's function: strikes when it was met `count` times before."""
    owner, name, before = MOMENTS[moment]
    original = getattr(owner, name)
    met = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal met
        met += 1
        if before and met > count:
            strike()
        result = original(*arguments, **named)
        if not before and met > count:
            strike()
        return result

    return owner, name, wrapped


def main(folder: str, master: str, moment: str | None = None, count: str = "0") -> None:
    if moment is not None and moment != UNTIL_A_SIGNAL:
        owner, name, wrapped = at(moment, int(count), lambda: os.kill(os.getpid(), signal.SIGKILL))
        setattr(owner, name, wrapped)
    statuses = run(Project.load(folder, master=master), once=moment != UNTIL_A_SIGNAL, upkeep=UPKEEP)
    print(*[f"{status.pipeline}: {status.state} {status.rows_out} {status.error}" for status in statuses])


if __name__ == "__main__":
    main(*sys.argv[1:])
