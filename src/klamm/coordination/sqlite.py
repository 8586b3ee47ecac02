"""The embedded engine: one SQLite file that the brokers of one machine share.

Everything about the file happens in one thread of our own, in the order of the calls; the event loop never
waits for the disk. The thread takes all calls that are waiting and answers them together, so a thousand
reads cost two switches of threads and not two thousand.

Two facts about SQLite shape the rest. Several writers that are left to its own locking stall one another for
seconds, and a checkpoint that meets a writer has corrupted files in past versions. So SQLite never
checkpoints by itself, and every write, every checkpoint and the closing (which checkpoints too) happens
under one lock on a file beside the database.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from klamm.coordination import tree
from klamm.coordination.store import Node, Operation, StoreError, Unavailable, check_path, is_under

# A call that has waited this long is given up. Writes take milliseconds; the rest is room for a slow disk.
DEFAULT_TIMEOUT_S = 15.0
# How soon a change by another process fires our watches. Looking costs microseconds.
POLL_INTERVAL_S = 0.01
# The write-ahead log is folded into the database when it has grown to this, which keeps opening fast.
CHECKPOINT_WAL_BYTES = 1 << 20
# Answers are handed to the loop after so many calls, so that a long queue does not delay its first answers.
MAX_BATCH_CALLS = 256
# The most calls that may wait; more are a bug of the caller.
MAX_WAITING_CALLS = 200_000

_LOCK_RETRY_S = 0.001

ResultT = TypeVar("ResultT")
Work = Callable[[sqlite3.Connection], Any]


class _Call(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    changed_paths: Sequence[str]


class _Outcome(NamedTuple):
    call: _Call
    result: Any
    error: BaseException | None


class SqliteWatch:
    """A callback for a prefix; alive until cancelled."""

    def __init__(self, store: SqliteStore, prefix: str, callback: Callable[[], None]) -> None:
        self._store = store
        self.prefix = prefix
        self.callback = callback

    def cancel(self) -> None:
        self._store._watches.discard(self)


class SqliteStore:
    """The store in the file `path`; `path` with `.lock` added is the lock."""

    def __init__(self, path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._watches: set[SqliteWatch] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    async def open(self) -> None:
        assert self._thread is None, "a store is opened once"
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._thread = threading.Thread(target=self._run, args=(opened,), name="klamm-store", daemon=True)
        self._thread.start()
        try:
            await asyncio.wait_for(opened, self._timeout_s)
        except TimeoutError:
            raise Unavailable(f"{self._path} could not be opened in {self._timeout_s:g} s") from None

    async def close(self) -> None:
        if self._thread is None or self._closing:
            return
        self._closing = True
        self._calls.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join, self._timeout_s)
        # The thread's last answers are on their way to the loop; let them arrive.
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable(f"{self._path} was closed"))
        self._waiting.clear()
        self._watches.clear()

    def get(self, path: str) -> asyncio.Future[Node]:
        check_path(path)
        return self._submit(lambda connection: tree.get(connection, path))

    def list(self, path: str) -> asyncio.Future[list[str]]:
        check_path(path)
        return self._submit(lambda connection: tree.children(connection, path))

    def txn(self, operations: Sequence[Operation]) -> asyncio.Future[int]:
        operations = tuple(operations)
        for operation in operations:
            check_path(operation.path)
        changed = tree.changed_paths(operations)
        return self._submit(lambda connection: self._write(connection, operations), changed)

    def watch(self, prefix: str, callback: Callable[[], None]) -> SqliteWatch:
        watch = SqliteWatch(self, check_path(prefix), callback)
        self._watches.add(watch)
        self._submit(lambda connection: None)  # wakes the thread, which now has a reason to look for changes
        return watch

    def sync(self) -> asyncio.Future[None]:
        # Every read of the file sees what was committed before, so an empty call in turn is enough.
        return self._submit(lambda connection: None)

    def _submit(
        self, work: Callable[[sqlite3.Connection], ResultT], changed_paths: Sequence[str] = ()
    ) -> asyncio.Future[ResultT]:
        assert self._loop is not None, "the store is not open"
        future: asyncio.Future[ResultT] = self._loop.create_future()
        if self._closing or len(self._waiting) >= MAX_WAITING_CALLS:
            reason = "is closed" if self._closing else f"has {MAX_WAITING_CALLS} calls waiting"
            future.set_exception(Unavailable(f"{self._path} {reason}"))
            return future
        self._waiting.append((self._loop.time() + self._timeout_s, future))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._expire)
        self._calls.put(_Call(work, future, changed_paths))
        return future

    def _expire(self) -> None:
        """Give up calls that have waited too long, and come back when the next one will have."""
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= now):
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(Unavailable(f"{self._path} did not answer in {self._timeout_s:g} s"))
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._expire)

    def _deliver(self, outcomes: Sequence[_Outcome], foreign_change: bool) -> None:
        """Answer calls, then fire the watches of the paths that they changed. Runs on the loop."""
        changed: list[str] = []
        for call, result, error in outcomes:
            if error is None:
                changed.extend(call.changed_paths)
            if call.future.done():
                continue
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        for watch in tuple(self._watches):
            if foreign_change or any(is_under(watch.prefix, path) for path in changed):
                watch.callback()

    # What follows runs in the thread.

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            connection = self._connect()
        except (sqlite3.Error, OSError, StoreError) as error:
            reason = error if isinstance(error, StoreError) else Unavailable(f"{self._path}: {error}")
            self._on_loop(_fail, opened, reason)
            return
        self._on_loop(_succeed, opened)
        try:
            self._serve(connection)
        finally:
            with self._write_lock():
                connection.close()

    def _serve(self, connection: sqlite3.Connection) -> None:
        seen_version = _data_version(connection)
        open_ = True
        while open_:
            calls: list[_Call] = []
            try:
                # Without a watch nobody asks what others change, and an idle store costs nothing.
                call = self._calls.get(timeout=POLL_INTERVAL_S if self._watches else None)
                while call is not None:
                    calls.append(call)
                    if len(calls) == MAX_BATCH_CALLS:
                        break
                    call = self._calls.get_nowait()
                open_ = call is not None
            except queue.Empty:
                pass
            outcomes = [_perform(connection, call) for call in calls]
            version = _data_version(connection)
            if outcomes or version != seen_version:
                self._on_loop(self._deliver, outcomes, version != seen_version)
            seen_version = version

    def _on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        # A closed loop raises: then no caller is left to be answered.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None)
        try:
            with self._write_lock():
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA wal_autocheckpoint=0")
                connection.execute("PRAGMA synchronous=FULL")
                tree.prepare(connection, str(self._path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _write(self, connection: sqlite3.Connection, operations: Iterable[Operation]) -> int:
        with self._write_lock():
            connection.execute("BEGIN IMMEDIATE")
            try:
                revision = tree.apply(connection, operations)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if _size_of(f"{self._path}-wal") > CHECKPOINT_WAL_BYTES:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return revision

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """The lock that all writers of this file share, or Unavailable after the timeout."""
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + self._timeout_s
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Unavailable(
                            f"another process holds {self._path}.lock for more than {self._timeout_s:g} s"
                        ) from None
                    time.sleep(_LOCK_RETRY_S)
            yield
        finally:
            os.close(descriptor)


def _perform(connection: sqlite3.Connection, call: _Call) -> _Outcome:
    try:
        return _Outcome(call, call.work(connection), None)
    except (sqlite3.Error, OSError) as error:
        return _Outcome(call, None, Unavailable(f"the store failed: {error}"))
    except Exception as error:
        # The caller gets the exception; the thread goes on serving others.
        return _Outcome(call, None, error)


def _data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection has changed the file."""
    row = connection.execute("PRAGMA data_version").fetchone()
    return int(row[0])


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
