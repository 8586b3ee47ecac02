"""A group member for Python's clients: one thread that polls, and does between polls what it is told.

None of those clients may be used by two threads at once, so a commit is handed over to the polling thread.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from tests.clients.contract import PATIENCE_SECONDS, Handover, Member, Received


class ThreadedMember(Member):
    def __init__(self, name: str) -> None:
        self._received: list[Received] = []
        self._assignment: frozenset[int] = frozenset()
        self._assignments_seen = 0
        self._revoked: set[int] = set()
        self._handovers: list[Handover] = []
        self._commands: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"member {name}", daemon=True)

    def start(self) -> ThreadedMember:
        self._thread.start()
        return self

    @abstractmethod
    def _open(self) -> None:
        """Make the consumer and subscribe."""

    @abstractmethod
    def _poll(self) -> Sequence[Received]:
        """Wait a moment for records."""

    @abstractmethod
    def _commit(self, offsets: Mapping[int, int] | None) -> None: ...

    def _finish(self) -> None:  # most have nothing to do
        """Do what a member has to do before it gives up its partitions; may poll."""

    @abstractmethod
    def _close(self) -> None: ...

    def note_assigned(self, assignment: frozenset[int]) -> None:
        self._note(True, assignment - self._assignment)
        self._assignment = assignment
        self._assignments_seen += 1

    def note_revoked(self, revoked: frozenset[int]) -> None:
        self._note(False, revoked)
        self._assignment -= revoked
        if not self._leaving.is_set():
            self._revoked |= revoked

    def _note(self, is_taken: bool, partitions: frozenset[int]) -> None:
        self._handovers.append(Handover(time.time_ns() // 1_000_000, is_taken, partitions))

    def handovers(self) -> Sequence[Handover]:
        """What it took and gave up, in order; when it is left it gives up everything."""
        return list(self._handovers)

    def assignment(self) -> frozenset[int]:
        self._check()
        return self._assignment

    def received(self) -> Sequence[Received]:
        self._check()
        return list(self._received)

    def assignments_seen(self) -> int:
        return self._assignments_seen

    def revoked(self) -> frozenset[int]:
        return frozenset(self._revoked)

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        done: Future[None] = Future()
        self._commands.put((lambda: self._commit(offsets), done))
        done.result(PATIENCE_SECONDS)

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), f"{self._thread.name} did not close in time"
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"{self._thread.name} failed") from self._failure

    def _run(self) -> None:
        try:
            self._open()
            try:
                while not self._leaving.is_set():
                    self._obey()
                    self._poll_once()
                self._finish()
            finally:
                self._leaving.set()
                self._note(False, self._assignment)
                self._close()
        except BaseException as failure:  # told to the test by _check
            self._failure = failure

    def _poll_once(self) -> None:
        self._received.extend(self._poll())

    def _obey(self) -> None:
        while not self._commands.empty():
            command, done = self._commands.get()
            try:
                command()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)
