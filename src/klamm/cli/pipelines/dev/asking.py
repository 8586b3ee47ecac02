"""Asks a running `klamm pipeline dev`, on the side of the command.

Nobody listens, the other side is busy, of another version or has other settings, or it dies meanwhile: then
there is no answer, nothing was written, and the command starts a Spark of its own.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from klamm.cli.pipelines.dev.messages import (
    PROTOCOL,
    Inquiry,
    NotUnderstood,
    Unframing,
    fingerprint,
    framed,
)
from klamm.cli.pipelines.dev.places import SOCKET, connect
from klamm.cli.pipelines.dev.recording import screen
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from klamm.cli.pipelines.questions import AnyQuestion

HELLO_S = 1.0
"""How long to wait for the first message. A process that was stopped with Ctrl-Z never sends it."""

SILENCE_S = 10.0
"""How long to wait for the next message. While it computes, the other side sends one every second."""

_READ_BYTES = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """What the command has to write, in order, and its exit status."""

    parts: tuple[tuple[str, str], ...]
    status: int

    def write(self) -> None:
        for name, text in self.parts:
            stream = sys.stdout if name == "out" else sys.stderr
            stream.write(text)
            stream.flush()


class Refused(Exception):
    """There is a `klamm pipeline dev`, but it does not answer this question. The text says why."""


def ask_dev(project: Project, question: AnyQuestion) -> Answer | None:
    """The answer of the project's `klamm pipeline dev`; None if there is none. Raises Refused."""
    if not (project.state / SOCKET).exists():
        return None
    try:
        with connect(project.state, HELLO_S) as connection:
            messages = _messages(connection)
            _check_hello(next(messages))
            connection.settimeout(SILENCE_S)
            connection.sendall(framed(_inquiry(project, question).to_json()))
            return _answer(messages)
    except TimeoutError:
        raise Refused("it does not answer") from None
    except (OSError, NotUnderstood, StopIteration, ValueError):
        return None


def hello() -> dict[str, Any]:
    """What the other side must have in common with this process."""
    return {"protocol": PROTOCOL, "klamm": version("klamm"), "python": sys.prefix}


def _check_hello(told: dict[str, Any]) -> None:
    if "refused" in told:
        raise Refused(str(told["refused"]))
    if told != hello():
        raise Refused("it is of another version or environment; start it again")


def _inquiry(project: Project, question: AnyQuestion) -> Inquiry:
    from klamm.cli.pipelines.questions import question_value

    return Inquiry(
        question_value(question),
        str(project.root),
        project.bootstrap,
        project.master,
        fingerprint(project),
        os.getcwd(),
        dict(os.environ),
        screen(),
        screen(stderr=True),
    )


def _answer(messages: Iterator[dict[str, Any]]) -> Answer:
    parts: list[tuple[str, str]] = []
    for message in messages:
        if "refused" in message:
            raise Refused(str(message["refused"]))
        parts += [(name, str(message[name])) for name in ("out", "err") if name in message]
        if "status" in message:
            return Answer(tuple(parts), int(message["status"]))
    raise ConnectionError("the connection ended before the answer")


def _messages(connection: socket.socket) -> Iterator[dict[str, Any]]:
    unframing = Unframing()
    while data := connection.recv(_READ_BYTES):
        yield from unframing.take(data)
