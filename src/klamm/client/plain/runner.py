"""An event loop in a thread of its own, and how other threads run coroutines on it and wait for them.

Each plain face has one LoopThread, on which it runs the coroutines of the asyncio client.

- The thread is a daemon and has no reference to the client: a program that ends without closing its clients
  does end, and a client that is freed stops its thread (`__del__`).
- No loop runs while the interpreter shuts down (`end_threads`): uvloop's thread would crash it.
- A caller that is interrupted (Ctrl-C), or whose time is up, cancels its coroutine and waits until it has
  ended.
- A call that waits, made from the loop's own thread (where delivery callbacks run), raises ClientMisused: it
  would wait forever.
- A call that waits while another thread closes the client raises ClientClosed.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from klamm.client.errors import ClientClosed, ClientForked, ClientMisused, TimedOut
from klamm.client.guard import ClientGuard as ClientGuard
from klamm.client.guard import ForkAware
from klamm.model.event_loop import new_event_loop

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
"""How long `close` waits for the thread: its tasks are cancelled, and only have to clean up."""

EXIT_TIMEOUT_S = 2.0
"""How long a program that ends waits for the threads of clients that it did not close."""

CANCEL_TIMEOUT_S = 5.0
"""How long an interrupted caller waits until its cancelled coroutine has cleaned up."""

WAIT_SLICE_S = 1.0
"""The longest single wait on a lock; longer waits are made of several. A Ctrl-C that comes just before a wait
does not end it: it is handled after this time at the latest."""


def acquire_within(lock: threading.Lock, timeout: float | None) -> bool:
    """True if the lock could be taken within `timeout` seconds. Signals are handled while this waits."""
    deadline = monotonic() + (inf if timeout is None else timeout)
    while not lock.acquire(timeout=min(max(deadline - monotonic(), 0.0), WAIT_SLICE_S)):
        if monotonic() >= deadline:
            return False
    return True


_running: WeakSet[LoopThread] = WeakSet()


class LoopThread(ForkAware):
    """A daemon thread that runs `loop`, an event loop of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        # Reentrant, because a finalizer that closes the client may run in a thread that has the lock.
        self._lock = threading.RLock()
        self._closing = False
        self._thread = threading.Thread(target=_serve, args=(self.loop,), name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def after_fork(self) -> None:
        super().after_fork()
        # The loop does not run in the child, so its tasks never end; asyncio would log an error for each.
        self.loop.set_exception_handler(lambda loop, context: None)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Cancels it when `timeout` seconds are over (TimedOut) and when the waiting thread is interrupted.
        """
        call = _Call(self.loop, coroutine)
        try:
            self._start(call)
            if not call.wait(timeout):
                self._cancel(call)
                if not call.succeeded():
                    what = getattr(coroutine, "__qualname__", "a call")
                    raise TimedOut(f"{self.name}: {what}", timeout or 0.0)
        except BaseException:
            self._cancel(call)
            raise
        return self._result(call)

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop. While the thread is being closed the call may be dropped."""
        if self.forked:
            raise self._forked_error()
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            raise self._closed_error() from None

    def is_current(self) -> bool:
        """True if the caller is on the loop's own thread."""
        # Not by the thread's number: the system gives it to another thread after this one has ended.
        return threading.current_thread() is self._thread

    def check_not_current(self) -> None:
        """Raise ClientMisused on the loop's own thread, which would wait for itself forever."""
        if self.is_current():
            raise ClientMisused(
                f"{self.name}: a call that waits was made from a callback",
                advice="Callbacks run on the client's thread; hand the work to a thread of your own",
            )

    def close(self) -> None:
        """Cancel the tasks of the loop, end the thread and wait for it. Idempotent."""
        if self.forked or self.is_current():
            # A forked child does not have the thread. On the loop's own thread the loop stops after this
            # callback.
            self._stop()
            return
        self._stop()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimedOut(f"{self.name}: ending the client's thread", CLOSE_TIMEOUT_S)

    def end_within(self, deadline: float) -> None:
        """Stop the thread, and wait for it until the monotonic clock says `deadline`."""
        self._stop()
        if not self.forked:
            self._thread.join(max(deadline - monotonic(), 0.0))

    def __del__(self) -> None:
        # Also runs while the interpreter shuts down, so it must not wait.
        if getattr(self, "_thread", None) is not None:
            self._stop()

    # ---- inside

    def _start(self, call: _Call[Any]) -> None:
        if self.forked:
            raise self._forked_error()
        self.check_not_current()
        # Under the lock: a call that is scheduled before `_stop` stops the loop is certain to be started.
        with self._lock:
            if self._closing:
                raise self._closed_error()
            # Set first: after an interrupt between the two lines, `_cancel` must not close a coroutine that
            # the loop still starts.
            call.scheduled = True
            try:
                self.loop.call_soon_threadsafe(call.start)
            except RuntimeError:
                call.scheduled = False
                raise self._closed_error() from None
            if self._closing:  # by a finalizer, meanwhile: the loop may end before it starts the call
                raise self._closed_error()

    def _cancel(self, call: _Call[Any]) -> None:
        if not call.scheduled:
            call.coroutine.close()
        elif not call.finished:
            try:
                self.loop.call_soon_threadsafe(call.cancel)
            except RuntimeError:
                return
            call.wait(CANCEL_TIMEOUT_S)

    def _result(self, call: _Call[T]) -> T:
        try:
            return call.result()
        except asyncio.CancelledError:
            raise self._closed_error() from None

    def _stop(self) -> None:
        if self.forked:
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
            try:
                self.loop.call_soon_threadsafe(self.loop.stop)
            except RuntimeError:
                return

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(f"{self.name} was closed")

    def _forked_error(self) -> ClientForked:
        return ClientForked(
            f"{self.name} was made before this process was forked",
            advice="Make another client in the child",
        )


@atexit.register
def end_threads() -> None:
    """Called when the program ends, while threads can still run."""
    deadline = monotonic() + EXIT_TIMEOUT_S
    for thread in list(_running):
        thread.end_within(deadline)


class _Call(Generic[T]):
    """A coroutine that a thread runs on the loop and waits for."""

    __slots__ = ("_done", "_loop", "_task", "coroutine", "finished", "scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self.coroutine = coroutine
        self.scheduled = False
        self.finished = False
        self._task: asyncio.Task[T] | None = None
        # Locked until the task is done. A lock costs a third of an Event.
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        """On the loop."""
        self._task = self._loop.create_task(self.coroutine)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """On the loop, after `start`, unless an interrupt prevented that `start` was scheduled."""
        if self._task is not None:
            self._task.cancel()
            return
        self.coroutine.close()
        self.finished = True
        self._done.release()

    def _finish(self, task: asyncio.Task[T]) -> None:
        self.finished = True
        self._done.release()

    def wait(self, timeout: float | None) -> bool:
        """In the caller's thread: True if the task was done in time. Signals are handled while this waits."""
        return acquire_within(self._done, timeout)

    def succeeded(self) -> bool:
        """True if the task ended by itself, even if that was after the time-out."""
        return self.finished and self._task is not None and not self._task.cancelled()

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The thread's function: runs the loop until it is stopped, then cancels all tasks and lets them end."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        try:
            loop.run_until_complete(_end_tasks())
        finally:
            loop.close()


async def _end_tasks() -> None:
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S / 2)
    await asyncio.get_running_loop().shutdown_asyncgens()
