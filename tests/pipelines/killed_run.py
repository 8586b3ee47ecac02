"""Runs a project in a process of its own that is killed, with SIGKILL, at a moment of the test's choice.

    python -m tests.pipelines.killed_run FOLDER MASTER [MOMENT COUNT]

The moment is met COUNT times before it kills. Nothing of that is in the code that runs: it is put around it.
Without a moment the project runs until it has caught up, with "until a signal" until it gets one; what became
of it is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext

from klamm.pipelines.project import Project
from klamm.pipelines.runner import run
from klamm.pipelines.tables.upkeep import UpkeepPolicy
from klamm.testing.faults import striking
from tests.pipelines.running import Shop

UNTIL_A_SIGNAL = "until a signal"
UPKEEP = UpkeepPolicy(least_files=3)
CHILD_S = 150.0
"""How long such a process may take."""


def killed(shop: Shop, moment: str, count: int) -> int:
    """Run a project in such a process; returns how the process ended."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), "local[2]", moment, str(count)],
        capture_output=True,
        text=True,
        timeout=CHILD_S,
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr[-2000:]
    return child.returncode


def main(folder: str, master: str, moment: str | None = None, count: str = "0") -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    is_killed = moment is not None and moment != UNTIL_A_SIGNAL
    with striking(str(moment), kill, after=int(count)) if is_killed else nullcontext():
        statuses = run(Project.load(folder, master=master), once=moment != UNTIL_A_SIGNAL, upkeep=UPKEEP)
    print(*[f"{status.pipeline}: {status.state} {status.rows_out} {status.error}" for status in statuses])


if __name__ == "__main__":
    main(*sys.argv[1:])
