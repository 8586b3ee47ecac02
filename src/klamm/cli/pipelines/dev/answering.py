"""Takes the questions of other commands at the socket of `klamm pipeline dev`.

Each connection has a thread, which only waits and sends: the main thread computes one answer after the other,
since imports, Spark's active session and the working folder are those of the whole process. A question that
is not begun in time is refused, as the command can start a Spark of its own. If the command ends, what is
computed for it is cancelled.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from klamm.cli.pipelines.dev.asking import hello
from klamm.cli.pipelines.dev.messages import Inquiry, NotUnderstood, Unframing, framed
from klamm.cli.pipelines.dev.places import SOCKET, is_owner, listen

BEGIN_S = 5.0
"""How long a question may wait until it is begun: a Spark of one's own takes longer than that."""

SEND_S = 10.0
"""How long a command may take to read what is sent to it."""

SIGN_S = 1.0
"""How often a command gets a sign that its question is worked on."""

MOST_CONNECTIONS = 8
"""Commands that wait at a time. They are answered one after the other; more would wait too long."""

_LOOK_S = 0.05

logger = logging.getLogger(__name__)


class Task:
    """A question that waits, is computed, is answered or was given up. For two threads."""

    def __init__(self, inquiry: Inquiry) -> None:
        self.inquiry = inquiry
        self._lock = threading.Lock()
        self._is_begun = self._is_given_up = False
        self._answer: list[Mapping[str, Any]] = []
        self.done = threading.Event()

    def begin(self) -> bool:
        """Called by the main thread. False if nobody waits any more."""
        with self._lock:
            self._is_begun = not self._is_given_up
            return self._is_begun

    def give_up(self) -> bool:
        """Called by the thread of the connection. False if the question is computed already."""
        with self._lock:
            self._is_given_up = not self._is_begun
            return self._is_given_up

    def finish(self, messages: Iterable[Mapping[str, Any]]) -> None:
        self._answer = list(messages)
        self.done.set()

    def refuse(self, reason: str) -> None:
        self.finish([{"refused": reason}])

    @property
    def answer(self) -> list[Mapping[str, Any]]:
        return self._answer


class Answering:
    """The listening socket and its threads. `hand_over` and `cancel` are called in these threads."""

    def __init__(
        self, folder: Path, hand_over: Callable[[Task], None], cancel: Callable[[Task], None]
    ) -> None:
        """Raises OSError if the folder cannot have a socket."""
        self._path = folder / SOCKET
        self._hand_over = hand_over
        self._cancel = cancel
        self._places = threading.Semaphore(MOST_CONNECTIONS)
        self._socket = listen(folder)
        self._is_closed = False
        threading.Thread(target=self._accept, name="klamm-dev-socket", daemon=True).start()

    def close(self) -> None:
        """Stop listening. The caller still holds the lock, so that the socket is ours."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with suppress(OSError):
            self._path.unlink()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(SEND_S)
            try:
                if not is_owner(connection):
                    return
                if not self._places.acquire(blocking=False):
                    connection.sendall(framed({"refused": "too many commands wait for it"}))
                    return
                try:
                    connection.sendall(framed(hello()))
                    self._converse(connection)
                finally:
                    self._places.release()
            except (OSError, NotUnderstood) as error:
                logger.debug("a command went away: %s", error)

    def _converse(self, connection: socket.socket) -> None:
        unframing = Unframing()
        while data := connection.recv(64 * 1024):
            for message in unframing.take(data):
                task = Task(Inquiry.of(message))
                self._hand_over(task)
                self._wait(connection, task)
                for part in task.answer:
                    connection.sendall(framed(part))
                return

    def _wait(self, connection: socket.socket, task: Task) -> None:
        asked = signed = time.monotonic()
        while not task.done.wait(_LOOK_S):
            now = time.monotonic()
            if now - asked > BEGIN_S and task.give_up():
                task.refuse("it is busy")
                return
            if _is_gone(connection):
                if not task.give_up():
                    self._cancel(task)
                raise ConnectionError("the command has ended")
            if now - signed > SIGN_S:
                signed = now
                connection.sendall(framed({}))


def _is_gone(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection; it sends nothing after its question."""
    waiting = select.poll()  # select itself takes no descriptor beyond 1,023
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0)) and not connection.recv(1)
