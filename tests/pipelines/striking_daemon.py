"""Spark's Python daemon for the executors of tests: kills its executor and the task, with SIGKILL, at a
moment of the test's choice.

A test asks for it by a file with the moment's name in the folder STRIKES; of all tasks, the one that removes
the file strikes. The module lies among the packages of the executors' Python (`standalone.py`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import daemon

from klamm.pipelines.tables.files import OpenFile, TaskWriter

MOMENTS = ("while rows are read", "while a file is written", "when a file is complete", "when all is told")


def strike(moment: str) -> None:
    try:
        (Path(os.environ["STRIKES"]) / moment).unlink()
    except FileNotFoundError:
        return
    os.kill(EXECUTOR, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def striking(owner: Any, function: str, moment: str, *, is_before: bool = False) -> None:
    original: Callable[..., Any] = getattr(owner, function)

    def wrapped(*arguments: Any) -> Any:
        if is_before:
            strike(moment)
        result = original(*arguments)
        if not is_before:
            strike(moment)
        return result

    setattr(owner, function, wrapped)


if __name__ == "__main__":
    EXECUTOR = os.getppid()
    striking(TaskWriter, "add", MOMENTS[0], is_before=True)
    striking(OpenFile, "flush", MOMENTS[1])
    striking(OpenFile, "end", MOMENTS[2])
    striking(TaskWriter, "finish", MOMENTS[3])
    daemon.manager()
