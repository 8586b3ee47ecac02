"""The collector of a Python worker leaves alone what the worker has loaded, and only that of a worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from pyspark_klamm import worker_memory


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "_settled_process", None)
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    yield
    gc.unfreeze()


def test_a_task_settles_its_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", TaskContext())
    worker_memory.settle()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    later = [[] for _ in range(1000)]
    worker_memory.settle()
    # Some of what is kept may go meanwhile: this process has other threads.
    assert gc.get_freeze_count() < frozen + len(later), "what tasks make is not kept"


def test_a_process_that_runs_no_task_is_left_alone() -> None:
    before = gc.get_freeze_count()
    worker_memory.settle()
    assert gc.get_freeze_count() == before
