"""The embedded engine: one SQLite file that the brokers of one machine share.

Everything about the file happens in one thread of our own, in the order of the calls; the event loop never
waits for the disk. The thread takes all calls that are waiting and answers them together, so a thousand
reads cost two switches of threads and not two thousand. It sleeps until a call comes, a peer has changed the
file or a peer has died (`sessions.py`); with peers it also wakes up six times in a session timeout, to stamp
its live file and to look at theirs. A store without peers never wakes up by itself.

The session begins with the first transaction or watch, in the same commit. Every transaction, in its own
commit, makes sure that its session has not ended. The embedded engine has no SUSPENDED state: a session is
CONNECTED until it is EXPIRED. A process that is paused in the middle of a commit holds the lock on the file,
and nobody can write until it goes on or dies.

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
from klamm.coordination.callers import DEFAULT_TIMEOUT_S, Callers, PrefixWatch, ignore_failure
from klamm.coordination.sessions import OwnSession, Peers, WakeUps, is_dead, remove_files
from klamm.coordination.store import (
    DEFAULT_SESSION_TIMEOUT_S,
    Node,
    Operation,
    SessionExpired,
    State,
    StoreError,
    Unavailable,
    check_operations,
    check_path,
)

# The write-ahead log is folded into the database when it has grown to this, which keeps opening fast.
CHECKPOINT_WAL_BYTES = 1 << 20
# Answers are handed to the loop after so many calls, so that a long queue does not delay its first answers.
MAX_BATCH_CALLS = 256
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


class SqliteStore:
    """The store in the file `path`; `path` with `.lock` added is the lock."""

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._callers = Callers(str(path), timeout_s)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._wake_ups = WakeUps()
        self._session = OwnSession(str(path), session_timeout_s, self._wake_ups)
        self._peers = Peers(str(path), self._session, self._wake_ups, time.monotonic)
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def session_id(self) -> int:
        return self._session.id

    @property
    def state(self) -> State:
        return self._callers.state

    def on_state(self, callback: Callable[[State], None]) -> None:
        self._callers.on_state(callback)

    async def open(self) -> None:
        self._callers.begin()
        opened: asyncio.Future[None] = self._callers.loop.create_future()
        self._wake_ups.open()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="klamm-store", daemon=True)
        self._thread.start()
        try:
            await asyncio.wait_for(opened, self._timeout_s)
        except TimeoutError:
            raise Unavailable(f"{self._path} could not be opened in {self._timeout_s:g} s") from None
        except StoreError:
            await self.close()
            raise
        self._callers.state = State.CONNECTED

    async def close(self) -> None:
        if self._thread is None or self._closing:
            return
        self._closing = True
        self._callers.refuse(lambda: Unavailable(f"{self._path} is closed"))
        self._calls.put(None)
        self._wake_ups.wake()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, self._timeout_s)
        if not self._thread.is_alive():
            self._wake_ups.close()
        # The thread's last answers are on their way to the loop; let them arrive.
        await asyncio.sleep(0)
        self._callers.end()

    def get(self, path: str) -> asyncio.Future[Node]:
        check_path(path)
        return self._submit(lambda connection: tree.get(connection, path))

    def list(self, path: str) -> asyncio.Future[list[str]]:
        check_path(path)
        return self._submit(lambda connection: tree.children(connection, path))

    def txn(self, operations: Sequence[Operation]) -> asyncio.Future[int]:
        checked = check_operations(operations)
        return self._submit(lambda connection: self._write(connection, checked), tree.changed_paths(checked))

    def watch(self, prefix: str, callback: Callable[[], None]) -> PrefixWatch:
        watch = self._callers.watch(prefix, callback)
        # Peers wake those whose session they know. If this fails, the next transaction registers.
        self._submit(self._register).add_done_callback(ignore_failure)
        return watch

    def sync(self) -> asyncio.Future[None]:
        # Every read of the file sees what was committed before, so an empty call in turn is enough.
        return self._submit(lambda connection: None)

    def pause_thread(self, until: Callable[[], object]) -> None:
        """For tests: the thread calls `until` between two calls, when it holds no lock."""
        self._submit(lambda connection: until()).add_done_callback(ignore_failure)

    def _submit(
        self, work: Callable[[sqlite3.Connection], ResultT], changed_paths: Sequence[str] = ()
    ) -> asyncio.Future[ResultT]:
        future = self._callers.new_call()
        if not future.done():
            self._calls.put(_Call(work, future, changed_paths))
            self._wake_ups.wake()
        return future

    def _deliver(self, outcomes: Sequence[_Outcome], reaped: Sequence[str], foreign_change: bool) -> None:
        """Answer calls, then fire the watches of the paths that changed. Runs on the loop."""
        changed = list(reaped)
        for call, result, error in outcomes:
            if error is None:
                changed.extend(call.changed_paths)
            if call.future.done():
                continue
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)
        self._callers.forget_answered()
        if foreign_change:
            self._callers.fire_all()
        else:
            self._callers.fire(changed)

    def _lose_session(self) -> None:
        if not self._closing:
            self._callers.refuse(self._expired)
        self._callers.change_state(State.EXPIRED)

    def _expired(self) -> SessionExpired:
        return SessionExpired(f"the session of this process has ended in {self._path}: open the store again")

    # What follows runs in the thread.

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            connection = self._connect()
        except (sqlite3.Error, OSError, StoreError) as error:
            why = str(error) if self._path.parent.is_dir() else f"there is no directory {self._path.parent}"
            reason = error if isinstance(error, StoreError) else Unavailable(f"{self._path}: {why}")
            self._on_loop(_fail, opened, reason)
            return
        self._on_loop(_succeed, opened)
        try:
            self._serve(connection)
        finally:
            # What cannot be done here is done by a peer, or by whoever opens the file next.
            with suppress(sqlite3.Error, OSError, StoreError):
                self._end_session(connection)
            self._peers.close()
            self._session.release_files()
            with self._write_lock():
                connection.close()

    def _serve(self, connection: sqlite3.Connection) -> None:
        seen_version = _data_version(connection)
        open_ = True
        while open_:
            timeout_s = self._peers.seconds_to_tick() if self._calls.empty() else 0
            self._peers.on_dead_pipes(self._wake_ups.sleep(timeout_s))
            calls, open_ = self._take_calls()
            outcomes = [self._perform(connection, call) for call in calls]
            reaped = self._reap(connection)
            version = _data_version(connection)
            if version != seen_version:
                self._follow_sessions(connection)
            if outcomes or reaped or version != seen_version:
                self._on_loop(self._deliver, outcomes, reaped, version != seen_version)
            seen_version = version

    def _take_calls(self) -> tuple[Sequence[_Call], bool]:
        """The calls that wait, as many as are answered together; False if the last was to close."""
        calls: deque[_Call] = deque()
        with suppress(queue.Empty):
            while len(calls) < MAX_BATCH_CALLS:
                call = self._calls.get_nowait()
                if call is None:
                    return calls, False
                calls.append(call)
        return calls, True

    def _perform(self, connection: sqlite3.Connection, call: _Call) -> _Outcome:
        if self._session.has_ended:
            return _Outcome(call, None, self._expired())
        try:
            return _Outcome(call, call.work(connection), None)
        except (sqlite3.Error, OSError) as error:
            return _Outcome(call, None, Unavailable(f"the store failed: {error}"))
        except Exception as error:
            # The caller gets the exception; the thread goes on serving others.
            return _Outcome(call, None, error)

    def _reap(self, connection: sqlite3.Connection) -> Sequence[str]:
        """End the sessions of peers that are dead or paused; returns the paths that went with them."""

        def end() -> tuple[Sequence[int], Sequence[str]]:
            # Looked at again under the lock, which a peer may have held while it could not stamp.
            over = self._peers.over()
            return over, tree.end_sessions(connection, over)

        try:
            if self._session.has_ended or not self._peers.tick():
                return ()
            over, paths = self._commit(connection, end)
            for session_id in over:
                remove_files(str(self._path), session_id)
            self._peers.follow(tree.sessions(connection))
            return paths
        except (sqlite3.Error, OSError, StoreError):
            return ()  # the next tick tries again

    def _follow_sessions(self, connection: sqlite3.Connection) -> None:
        """Another process has changed the file: there may be a new peer, or our session has been ended."""
        if not self._session.is_registered or self._session.has_ended:
            return
        alive = tree.sessions(connection)
        if self._session.id in alive:
            self._peers.follow(alive)
        else:
            self._notice_end()

    def _notice_end(self) -> None:
        self._session.has_ended = True
        self._peers.close()
        self._session.release_files()
        self._on_loop(self._lose_session)

    def _end_session(self, connection: sqlite3.Connection) -> None:
        if self._session.is_registered and not self._session.has_ended:
            self._commit(connection, lambda: tree.end_sessions(connection, [self._session.id]))

    def _on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        # A closed loop raises: then no caller is left to be answered.
        with suppress(RuntimeError):
            self._callers.loop.call_soon_threadsafe(callback, *arguments)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None)
        try:
            with self._write_lock():
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA wal_autocheckpoint=0")
                connection.execute("PRAGMA synchronous=FULL")
                tree.prepare(connection, str(self._path))
                self._end_dead_sessions(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _end_dead_sessions(self, connection: sqlite3.Connection) -> None:
        """Of those that died when nobody else had the file open."""
        dead = [each for each in tree.sessions(connection) if is_dead(str(self._path), each)]
        if dead:
            connection.execute("BEGIN IMMEDIATE")
            tree.end_sessions(connection, dead)
            connection.execute("COMMIT")
            for session_id in dead:
                remove_files(str(self._path), session_id)

    def _register(self, connection: sqlite3.Connection) -> None:
        if not self._session.is_registered:
            self._commit(connection, lambda: None)

    def _write(self, connection: sqlite3.Connection, operations: Iterable[Operation]) -> int:
        return self._commit(connection, lambda: tree.apply(connection, operations, self._session.id))

    def _commit(self, connection: sqlite3.Connection, change: Callable[[], ResultT]) -> ResultT:
        """Make a change as our session, in one transaction, and tell the peers."""
        was_registered = self._session.is_registered
        with self._write_lock():
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_session(connection)
                result = change()
                # A commit without an answer may have registered us: then we must not do it a second time.
                self._session.is_registered = True
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                    self._session.is_registered = was_registered
                raise
            if _size_of(f"{self._path}-wal") > CHECKPOINT_WAL_BYTES:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            # Before the lock is free: whoever waits for it must not think that we were paused.
            self._peers.stamp()
        self._peers.wake()
        return result

    def _check_session(self, connection: sqlite3.Connection) -> None:
        """Register our session if this is its first transaction; SessionExpired if it has been ended."""
        alive = tree.sessions(connection)
        if not self._session.is_registered:
            self._session.hold_files()
            tree.add_session(connection, self._session.id, int(self._session.timeout_s * 1000))
        elif self._session.id not in alive:
            self._notice_end()
            raise self._expired()
        self._peers.follow(alive)

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
                    self._peers.stamp()
                    time.sleep(_LOCK_RETRY_S)
            yield
        finally:
            os.close(descriptor)


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
