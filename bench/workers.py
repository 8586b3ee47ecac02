"""Clients in processes of their own: `python -m MODULE TASK JSON`, whose last line is its figures as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

WORKER_TIMEOUT_SECONDS = 180.0
MOST_ERROR_CHARACTERS = 600  # the end of what a worker said; a traceback's last lines name the fault


def start_worker(module: str, task: str, arguments: dict[str, object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, task, json.dumps(arguments)],
        stdin=subprocess.PIPE,  # it ends when the worker is to finish
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_ready(worker: subprocess.Popen[str]) -> None:
    """Returns when the worker has said `ready`; raises what it said instead."""
    assert worker.stdout is not None
    if worker.stdout.readline().strip() != "ready":
        finish_worker(worker, WORKER_TIMEOUT_SECONDS)
        raise RuntimeError(f"{_name(worker)} did not get ready")


def finish_worker(worker: subprocess.Popen[str], timeout_seconds: float) -> dict[str, float]:
    """The worker's figures: the last line it prints."""
    try:
        output, errors = worker.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        raise
    if worker.returncode != 0:
        raise RuntimeError(f"{_name(worker)} failed: {errors.strip()[-MOST_ERROR_CHARACTERS:]}")
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def run_worker(module: str, task: str, arguments: dict[str, object]) -> dict[str, float]:
    return finish_worker(start_worker(module, task, arguments), WORKER_TIMEOUT_SECONDS)


def _name(worker: subprocess.Popen[str]) -> str:
    assert isinstance(worker.args, list)
    return str(worker.args[2])
