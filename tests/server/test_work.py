from __future__ import annotations

import asyncio

import pytest

from klamm.apis import steps as steps_module
from klamm.apis.steps import Pauses, Steps, distinct, lazily, pieces_of
from klamm.server import work as work_module
from klamm.server.work import JOBS_AT_ONCE, Job, WorkQueue
from tests.server.fakes import eventually


class Trace:
    """Jobs that write down their steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.results: list[object] = []

    def job(self, name: str, count: int) -> Job:
        return Job(self._work(name, count), lambda result, error: self.results.append(error or result))

    def _work(self, name: str, count: int) -> Steps[str]:
        for _ in range(count):
            self.steps.append(name)
            yield
        return name


@pytest.fixture
def one_step_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)


async def test_one_run_of_one_job_in_an_iteration(one_step_a_run: None) -> None:
    trace, queue = Trace(), WorkQueue()
    queue.add(trace.job("a", 3))
    queue.add(trace.job("b", 1))
    for expected in (["a"], ["a", "b"], ["a", "b", "a"]):
        await asyncio.sleep(0)
        assert trace.steps == expected
    await eventually(lambda: not len(queue))
    assert trace.results == ["b", "a"]


async def test_only_a_few_begin_before_others_are_finished(one_step_a_run: None) -> None:
    trace, queue = Trace(), WorkQueue()
    names = [str(number) for number in range(3 * JOBS_AT_ONCE)]
    for name in names:
        queue.add(trace.job(name, 10))
    seen: set[str] = set()
    while len(trace.results) < len(names):
        await asyncio.sleep(0)
        seen.update(trace.steps)
        assert len(seen) - len(trace.results) <= JOBS_AT_ONCE
    assert sorted(map(str, trace.results)) == sorted(names)


async def test_a_cancelled_job_does_no_further_step(one_step_a_run: None) -> None:
    trace, queue = Trace(), WorkQueue()
    cancelled = trace.job("cancelled", 5)
    queue.add(cancelled)
    queue.add(trace.job("other", 1))
    await asyncio.sleep(0)
    cancelled.cancel()
    await eventually(lambda: not len(queue))
    assert trace.steps == ["cancelled", "other"]
    assert trace.results == ["other"]


async def test_a_job_that_fails_does_not_stop_the_others() -> None:
    trace, queue = Trace(), WorkQueue()

    def failing() -> Steps[str]:
        yield
        raise ValueError("as told")

    queue.add(Job(failing(), lambda result, error: trace.results.append(repr(error))))
    queue.add(trace.job("other", 1))
    await eventually(lambda: not len(queue))
    assert trace.results == ["ValueError('as told')", "other"]


async def test_a_coroutine_pauses_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    iterations = 0

    def count() -> None:
        nonlocal iterations
        iterations += 1
        loop.call_soon(count)

    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    pauses = Pauses()
    await pauses.pause()
    assert iterations == 0
    monkeypatch.setattr(steps_module, "LONGEST_RUN_S", -1.0)
    pauses = Pauses()
    for _ in range(3):
        await pauses.pause()
    assert iterations >= 3


def test_each_once_and_in_order() -> None:
    assert distinct(["b", "a", "b"]) == ["b", "a"]


def test_lazy_lists_know_their_length_and_make_each_element_once() -> None:
    made: list[int] = []
    lazy = lazily([1, 2, 3], lambda number: made.append(number) or -number)
    assert len(lazy) == 3
    assert made == []
    assert list(lazy) == [-1, -2, -3]
    assert made == [1, 2, 3]


def test_pieces() -> None:
    assert [list(piece) for piece in pieces_of(range(5), 2)] == [[0, 1], [2, 3], [4]]
