"""Runs a project in a process of its own that is killed, with SIGKILL, at a moment of the test's choice.

    python -m tests.pipelines.killed_run FOLDER MASTER [MOMENT COUNT [WORK]]

The moment is met COUNT times before it kills. Nothing of that is in the code that runs: it is put around it.
The moments are those of `klamm.testing.faults`, and around the swap of a replay. WORK is a run, or a replay
or a redrive of the pipeline `table`. Without a moment the project runs until it has caught up, with "until a
signal" until it gets one; what became of it is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from klamm.pipelines import replay
from klamm.pipelines.project import Project
from klamm.pipelines.redrive_to_table import redrive_to_table
from klamm.pipelines.runner import run
from klamm.pipelines.tables.upkeep import UpkeepPolicy
from klamm.testing.faults import striking
from tests.pipelines.running import Shop

UNTIL_A_SIGNAL = "until a signal"
SWAPS = ("before swap", "after swap")
UPKEEP = UpkeepPolicy(least_files=3)
CHILD_S = 300.0
"""How long such a process may take."""


def killed(shop: Shop, moment: str, count: int = 0, work: str = "run") -> int:
    """Run a project in such a process; returns how the process ended."""
    command = [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), "local[2]"]
    child = subprocess.run(
        [*command, moment, str(count), work], capture_output=True, text=True, timeout=CHILD_S
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr[-2000:]
    return child.returncode


def main(folder: str, master: str, moment: str | None = None, count: str = "0", work: str = "run") -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    project = Project.load(folder, master=master)
    with _killing(moment, kill, int(count)):
        if work == "replay":
            replay.carry_out(project, replay.plan(project, "table", "earliest"))
        elif work == "redrive":
            redrive_to_table(project, "table")
        else:
            statuses = run(project, once=moment != UNTIL_A_SIGNAL, upkeep=UPKEEP)
            print(
                *[
                    f"{status.pipeline}: {status.state} {status.rows_out} {status.error}"
                    for status in statuses
                ]
            )


def _killing(moment: str | None, kill: Callable[[], None], count: int) -> AbstractContextManager[None]:
    if moment is None or moment == UNTIL_A_SIGNAL:
        return nullcontext()
    return _at_the_swap(moment, kill) if moment in SWAPS else striking(moment, kill, after=count)


@contextmanager
def _at_the_swap(moment: str, kill: Callable[[], None]) -> Iterator[None]:
    original = replay.swap

    def swap(*arguments: Any) -> int:
        if moment == "before swap":
            kill()
        original(*arguments)
        kill()
        raise AssertionError

    replay.swap = swap
    yield


if __name__ == "__main__":
    main(*sys.argv[1:])
