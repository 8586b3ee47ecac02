from __future__ import annotations

import asyncio

import pytest

from klamm.apis import steps as steps_module
from klamm.apis.steps import Pauses, Steps, distinct, lazily, pieces_of
from klamm.server import work as work_module
from klamm.server.unsent import AnswerBytes, UnsentAnswers
from klamm.server.work import JOBS_AT_ONCE, SHORT_ANSWER_BYTES, Job, WorkQueue
from tests.server.fakes import eventually


class Trace:
    """Jobs that write down their steps."""

    def __init__(self, unsent: UnsentAnswers | None = None) -> None:
        self.unsent = unsent or UnsentAnswers()
        self.steps: list[str] = []
        self.results: list[object] = []

    def job(self, name: str, count: int, bytes_a_step: int = 0) -> Job:
        made = AnswerBytes(self.unsent)
        work = self._work(name, count, made, bytes_a_step)
        return Job(work, lambda result, error: self.results.append(error or result), made)

    def _work(self, name: str, count: int, made: AnswerBytes, bytes_a_step: int) -> Steps[str]:
        for _ in range(count):
            self.steps.append(name)
            made.add(bytes_a_step)
            yield
        return name


@pytest.fixture
def one_step_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "LONGEST_RUN_S", 0.0)


async def test_one_run_of_one_job_in_an_iteration(one_step_a_run: None) -> None:
    trace, queue = Trace(), WorkQueue(UnsentAnswers())
    queue.add(trace.job("a", 3))
    queue.add(trace.job("b", 1))
    for expected in (["a"], ["a", "b"], ["a", "b", "a"]):
        await asyncio.sleep(0)
        assert trace.steps == expected
    await eventually(lambda: not len(queue))
    assert trace.results == ["b", "a"]


async def test_only_a_few_begin_before_others_are_finished(one_step_a_run: None) -> None:
    trace, queue = Trace(), WorkQueue(UnsentAnswers())
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
    trace, queue = Trace(), WorkQueue(UnsentAnswers())
    cancelled = trace.job("cancelled", 5)
    queue.add(cancelled)
    queue.add(trace.job("other", 1))
    await asyncio.sleep(0)
    cancelled.cancel()
    await eventually(lambda: not len(queue))
    assert trace.steps == ["cancelled", "other"]
    assert trace.results == ["other"]


async def test_long_answers_are_made_one_at_a_time_when_they_reach_half_of_the_bound(
    one_step_a_run: None,
) -> None:
    unsent = UnsentAnswers(max_bytes=20 * SHORT_ANSWER_BYTES)
    trace, queue = Trace(unsent), WorkQueue(unsent)
    for name in "abcdef":
        queue.add(trace.job(name, 9, SHORT_ANSWER_BYTES))
    most = 0
    while len(queue):
        await asyncio.sleep(0)
        most = max(most, unsent.bytes_being_made)
    assert sorted(map(str, trace.results)) == list("abcdef")
    assert most < 20 * SHORT_ANSWER_BYTES, "four of nine are 36"
    assert unsent.bytes_being_made == 0


async def test_an_answer_longer_than_the_bound_is_made_and_short_ones_beside_it(one_step_a_run: None) -> None:
    unsent = UnsentAnswers(max_bytes=4 * SHORT_ANSWER_BYTES, max_files=10)
    trace, queue = Trace(unsent), WorkQueue(unsent)
    queue.add(trace.job("long", 20, SHORT_ANSWER_BYTES))
    await eventually(lambda: unsent.is_crowded)
    for name in ("held", "short", "shorter"):
        queue.add(trace.job(name, 5, SHORT_ANSWER_BYTES if name == "held" else 1))
    await eventually(lambda: not len(queue))
    assert set(map(str, trace.results[:2])) == {"short", "shorter"}
    assert trace.results[2:] == ["long", "held"]
    last_of_long = len(trace.steps) - trace.steps[::-1].index("long")
    assert trace.steps[:last_of_long].count("held") == 1


async def test_a_cancelled_job_makes_room_for_the_others(one_step_a_run: None) -> None:
    unsent = UnsentAnswers(max_bytes=4 * SHORT_ANSWER_BYTES)
    trace, queue = Trace(unsent), WorkQueue(unsent)
    jobs = [trace.job(name, 50, SHORT_ANSWER_BYTES) for name in "abcde"]
    for job in jobs:
        queue.add(job)
    await eventually(lambda: len(trace.steps) >= 10)
    for job in jobs[:4]:
        job.cancel()
    assert unsent.bytes_being_made == 0
    await eventually(lambda: not len(queue))
    assert trace.results == ["e"]


async def test_a_job_that_fails_does_not_stop_the_others() -> None:
    trace, queue = Trace(), WorkQueue(UnsentAnswers())

    def failing() -> Steps[str]:
        yield
        raise ValueError("as told")

    made = AnswerBytes(trace.unsent)
    made.add(5)
    queue.add(Job(failing(), lambda result, error: trace.results.append(repr(error)), made))
    queue.add(trace.job("other", 1))
    await eventually(lambda: not len(queue))
    assert trace.unsent.bytes_being_made == 0
    # In any order: the failing job gives way before its end if the machine is slow.
    assert sorted(trace.results) == ["ValueError('as told')", "other"]


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
