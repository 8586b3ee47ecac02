"""A Python worker keeps memory that it uses again, its collector leaves alone what it has loaded; and nothing
of that is done to a process that is no worker."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from pyspark import TaskContext

from pyspark_klamm import worker_memory


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "_done", {})
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    yield
    gc.unfreeze()


def test_a_task_freezes_the_loaded_objects_of_its_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", TaskContext())
    worker_memory.freeze_loaded_objects()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    later = [[] for _ in range(1000)]
    worker_memory.freeze_loaded_objects()
    # Some of what is kept may go meanwhile: this process has other threads.
    assert gc.get_freeze_count() < frozen + len(later), "what tasks make is not kept"


def test_a_worker_freezes_again_when_another_function_has_loaded_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", TaskContext())
    worker_memory.freeze_loaded_objects()
    frozen = gc.get_freeze_count()
    module = ModuleType("loaded_later")
    module.values = [[] for _ in range(1000)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    worker_memory.freeze_loaded_objects()
    assert gc.get_freeze_count() > frozen + 500


def test_a_process_that_runs_no_task_is_left_alone() -> None:
    before = gc.get_freeze_count()
    worker_memory.freeze_loaded_objects()
    assert gc.get_freeze_count() == before


FAULTS = """
import resource, sys
from pyspark import TaskContext
from pyspark_klamm.worker_memory import keep_freed_memory

if sys.argv[1] == "worker":
    TaskContext._taskContext = TaskContext()
keep_freed_memory()
for _ in range(20):
    pieces = [bytes(1 << 20) for _ in range(8)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    pieces = [bytes(1 << 20) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library cannot be told")
def test_a_worker_keeps_the_memory_that_it_uses_again() -> None:
    def faults(kind: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, kind], capture_output=True, text=True, check=True, timeout=120
        )
        return int(done.stdout)

    assert faults("worker") < 1000 < faults("another process")
