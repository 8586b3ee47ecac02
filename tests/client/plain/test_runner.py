"""The loop in a thread: who waits, who is interrupted, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import pytest

from klamm.client.errors import ClientClosed, ClientMisused, TimedOut
from klamm.client.guard import ClientGuard
from klamm.client.plain import runner
from klamm.client.plain.runner import LoopThread

PATIENCE_SECONDS = 20.0


@pytest.fixture(params=["asyncio", "uvloop"])
def thread(request, monkeypatch):
    """On both loops: asyncio's own runs where there is no uvloop."""
    if request.param == "asyncio":
        monkeypatch.setattr(runner, "new_event_loop", asyncio.new_event_loop)
    made = LoopThread("klamm-test")
    yield made
    made.close()
    assert not made._thread.is_alive()


class Sleeper:
    """A coroutine that sleeps until it is cancelled, and tells about both."""

    def __init__(self):
        self.asleep = threading.Event()
        self.cancelled = threading.Event()

    async def sleep(self):
        try:
            self.asleep.set()
            await asyncio.sleep(3600)  # longer than any test may take
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def answer():
    return threading.current_thread().name


async def fail():
    raise ZeroDivisionError("by hand")


def test_a_coroutine_runs_in_the_loops_thread_and_its_outcome_comes_back(thread):
    assert thread.run(answer()) == "klamm-test"
    with pytest.raises(ZeroDivisionError, match="by hand"):
        thread.run(fail())


def test_many_threads_wait_at_once(thread):
    together = asyncio.Barrier(8)

    async def meet():
        async with together:
            return threading.current_thread().name

    results = []
    callers = [threading.Thread(target=lambda: results.append(thread.run(meet(), 10))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE_SECONDS)
    assert results == ["klamm-test"] * 8


def test_a_time_out_cancels_the_coroutine_and_says_what_it_was(thread):
    sleeper = Sleeper()
    with pytest.raises(TimedOut, match=r"klamm-test: Sleeper.sleep timed out after 0.05 s"):
        thread.run(sleeper.sleep(), 0.05)
    assert sleeper.cancelled.is_set()


def test_an_interrupt_cancels_the_coroutine_before_the_caller_goes_on(thread):
    sleeper = Sleeper()

    def interrupt():
        sleeper.asleep.wait(PATIENCE_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(sleeper.sleep(), PATIENCE_SECONDS)  # a finalizer that runs now would swallow the interrupt
    assert sleeper.cancelled.is_set()
    interrupter.join()
    assert thread.run(answer()) == "klamm-test", "the loop goes on"


def test_waiting_in_a_callback_is_an_error_and_no_deadlock(thread):
    async def wait_here():
        return thread.run(answer())

    with pytest.raises(ClientMisused, match="from a callback"):
        thread.run(wait_here(), PATIENCE_SECONDS)


def test_who_waits_while_the_thread_is_closed_is_told():
    thread = LoopThread("klamm-test")
    sleeper = Sleeper()
    outcomes = []

    def wait():
        try:
            thread.run(sleeper.sleep())
        except BaseException as error:
            outcomes.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert sleeper.asleep.wait(PATIENCE_SECONDS)
    thread.close()
    waiting.join(PATIENCE_SECONDS)
    assert [type(one) for one in outcomes] == [ClientClosed]
    assert sleeper.cancelled.is_set()


def test_a_finalizer_may_close_the_thread_while_a_call_is_started(monkeypatch):
    """The garbage collector calls finalizers at any moment, also in a thread that has the lock."""
    monkeypatch.setattr(runner, "new_event_loop", asyncio.new_event_loop)  # whose methods can be replaced
    thread = LoopThread("klamm-test")
    call_soon = thread.loop.call_soon_threadsafe
    outcomes = []

    def collect_garbage_first(*arguments):
        thread.loop.call_soon_threadsafe = call_soon
        thread.close()
        return call_soon(*arguments)

    def call():
        try:
            thread.run(answer())
        except BaseException as error:
            outcomes.append(error)

    thread.loop.call_soon_threadsafe = collect_garbage_first
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(PATIENCE_SECONDS)
    runner._running.discard(thread)  # if the lock is still taken, the tests must end all the same
    assert [type(one) for one in outcomes] == [ClientClosed]


def test_nothing_runs_after_close_and_closing_again_is_fine():
    thread = LoopThread("klamm-test")
    thread.close()
    thread.close()
    with pytest.raises(ClientClosed):
        thread.run(answer())
    with pytest.raises(ClientClosed):
        thread.call_soon(print)


def test_call_soon_calls_in_the_loops_thread(thread):
    called = threading.Event()
    names = []
    thread.call_soon(lambda name: (names.append((name, threading.current_thread().name)), called.set()), "x")
    assert called.wait(PATIENCE_SECONDS)
    assert names == [("x", "klamm-test")]


def test_a_dropped_thread_ends_by_itself():
    thread = LoopThread("klamm-test")
    sleeper = Sleeper()
    thread.call_soon(lambda: asyncio.ensure_future(sleeper.sleep()))
    assert sleeper.asleep.wait(PATIENCE_SECONDS)
    running, gone = thread._thread, weakref.ref(thread)
    del thread
    gc.collect()
    assert gone() is None, "nothing but the user may hold it"
    running.join(PATIENCE_SECONDS)
    assert not running.is_alive()
    assert sleeper.cancelled.is_set()


# ---- processes


def python(program):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_ends_though_nobody_closed_the_thread():
    code, out, error = python(
        """
        import asyncio
        from klamm.client.plain.runner import LoopThread
        thread = LoopThread("klamm-test")
        async def busy():
            while True:
                await asyncio.sleep(0)
        thread.call_soon(lambda: thread.loop.create_task(busy()))
        async def answer():
            return 7
        print(thread.run(answer()))
        """
    )
    assert (code, out, error) == (0, "7\n", "")


def test_no_loop_runs_while_the_interpreter_is_taken_apart():
    """A thread that is inside of libuv then may crash it; what was registered first is called last."""
    code, out, error = python(
        """
        import atexit
        running = []
        atexit.register(lambda: print([thread.is_alive() for thread in running]))
        from klamm.client.plain.runner import LoopThread
        kept = LoopThread("klamm-test")
        running.append(kept._thread)
        """
    )
    assert (code, out, error) == (0, "[False]\n", "")


def test_a_forked_child_is_refused_and_ends_and_the_parent_goes_on():
    code, out, error = python(
        """
        import asyncio, os, sys
        from klamm.client.errors import ClientForked
        from klamm.client.plain.runner import LoopThread
        thread = LoopThread("klamm-test")
        async def answer():
            return 7
        async def begin():
            global task
            task = asyncio.ensure_future(asyncio.Event().wait())  # ends undone in the child: no complaint
        thread.run(begin())
        child = os.fork()
        if child == 0:
            for call in (lambda: thread.run(answer()), lambda: thread.call_soon(print)):
                try:
                    call()
                except ClientForked as error:
                    print(error, flush=True)
            thread.close()
            own = LoopThread("own")
            print(own.run(answer()), flush=True)
            own.close()
            sys.exit(3)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), thread.run(answer()))
        thread.close()
        """
    )
    refusal = "klamm-test was made before this process was forked. Make another client in the child"
    assert (code, out, error) == (0, f"{refusal}\n{refusal}\n7\n3 7\n", "")


# ---- the guard


def test_the_guard_lets_pass_until_the_client_is_closed():
    guard = ClientGuard("producer", "klamm-1")
    guard.check()
    assert guard.begin_close() is True
    assert guard.begin_close() is False, "only the first closes"
    with pytest.raises(ClientClosed, match=r"producer klamm-1 is closed\. Make a new producer"):
        guard.check()


def test_the_guard_refuses_after_a_fork():
    # In a process of its own: a child that is forked while other threads run may find a lock of the
    # interpreter locked for ever. tracemalloc has such a lock.
    code, out, error = python(
        """
        import os
        from klamm.client.errors import ClientForked
        from klamm.client.guard import ClientGuard
        guard = ClientGuard("consumer", "klamm-1")
        child = os.fork()
        if child == 0:
            try:
                guard.check()
            except ClientForked as error:
                print(error, guard.begin_close(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        guard.check()
        """
    )
    refusal = "consumer klamm-1 was made before this process was forked. Make another consumer in the child"
    assert (code, out, error) == (0, f"{refusal} False\n", "")


def test_an_abandoned_client_warns_once():
    guard = ClientGuard("admin", "klamm-1")
    guard.abandoned()  # it never started, so there is nothing to close
    guard.started = True
    with pytest.warns(ResourceWarning, match="admin klamm-1 was never closed") as seen:
        guard.abandoned()
        guard.abandoned()
    assert len([each for each in seen if "klamm-1" in str(each.message)]) == 1


def test_a_closed_client_does_not_warn():
    guard = ClientGuard("admin", "klamm-1")
    guard.started = True
    guard.begin_close()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        guard.abandoned()
    # Something else that is freed at this moment may warn, too.
    assert not [each for each in seen if "klamm-1" in str(each.message)]
