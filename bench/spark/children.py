"""A Spark session in a process of its own, which gets one task after another as lines on its standard input.

The sessions of both connectors run all the time, so that they take turns on JVMs that are equally warm. A
session without a task only waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import is_ready

from bench import processes
from bench.workers import MOST_ERROR_CHARACTERS

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON_PATH = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])}
WORKER = "bench.spark.session_worker"
ANSWER_TIMEOUT_SECONDS = 300.0
STOP_TIMEOUT_SECONDS = 30.0


class SparkChild:
    """One session. `ask` sends the worker a task and returns its answer."""

    def __init__(self, work_dir: Path, name: str, jars: list[Path]) -> None:
        self.directory = work_dir / name
        self.directory.mkdir()
        self._log_path = self.directory / "spark.log"
        arguments = {"directory": str(self.directory), "jars": [str(jar) for jar in jars]}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.directory,
                env=os.environ | PYTHON_PATH,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        self._answer()

    def ask(self, task: str, **arguments: object) -> dict[str, Any]:
        """The answer to the task, with the CPU seconds of all processes of the session."""
        assert self._process.stdin is not None
        before = processes.cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps([task, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        return {**answer, "cpu_seconds": processes.cpu_seconds(self._process.pid) - before}

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable = is_ready(self._process.stdout, select.POLLIN, ANSWER_TIMEOUT_SECONDS)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            what = "did not answer" if not readable else "ended"
            said = self._log_path.read_text(errors="replace").strip()[-MOST_ERROR_CHARACTERS:]
            self.stop()
            raise RuntimeError(f"the Spark session {what}: {said}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(str(answer["error"])[:MOST_ERROR_CHARACTERS])
        return answer

    def stop(self) -> None:
        """End the session: the worker ends when its standard input ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in reversed(processes.process_tree(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            self._process.wait()
