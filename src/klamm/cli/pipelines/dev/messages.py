"""What a command and a running `klamm pipeline dev` say to each other. A core.

A message is a JSON object behind its length, four bytes with the highest first.

    dev:      {"protocol": 1, "klamm": "0.1.0", "python": "/venv"}     at once, to everyone who connects
    command:  {"question": …, "project": …, …}                         an Inquiry
    dev:      {"refused": "it is busy"}                                the command starts a Spark of its own
      or:     {}                                                       every second: it is still computed
              {"out": "…"}, {"err": "…"}                               what the command has to write, in order
              {"status": 0}                                            the end, with its exit status

A command writes nothing before it has the end, so that it can still start a Spark of its own.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Self

from klamm.pipelines.project import Project

PROTOCOL = 1

MOST_BYTES = 16 * 1024 * 1024
"""The longest message. Questions have some kilobytes; long answers come in parts."""

PART_CHARACTERS = 256 * 1024
"""The most characters of a part of an answer: in UTF-8 and JSON at most six times as many bytes."""

MOST_CHARACTERS = 256 * 1024 * 1024
"""The longest answer, which the command holds in memory until it has the end."""

_LENGTH = struct.Struct(">I")


class NotUnderstood(Exception):
    """What came is not a message."""


def framed(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message."""
    body = json.dumps(message).encode()
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message has {len(body)} bytes; {MOST_BYTES} are the most")
    return _LENGTH.pack(len(body)) + body


class Unframing:
    """From bytes as they come to messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def take(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are complete with these bytes. Raises NotUnderstood."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MOST_BYTES:
                raise NotUnderstood(f"a message of {length} bytes was announced")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield _message(body)


def _message(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise NotUnderstood(f"a message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotUnderstood(f"a message is {type(value).__name__}, not an object")
    return value


@dataclass(frozen=True)
class Screen:
    """What a stream of the command writes to, as far as it changes what is written."""

    is_terminal: bool
    width: int | None = None
    colours: str | None = None
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Inquiry:
    """A question, and all of the command that the answer depends on: the project as the command sees it, its
    working folder, its environment, and where its output goes."""

    question: dict[str, Any]
    root: str
    bootstrap: str
    master: str
    fingerprint: str
    folder: str
    environment: dict[str, str]
    out: Screen
    err: Screen

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """From JSON. Raises NotUnderstood."""
        try:
            screens = {name: Screen(**value[name]) for name in ("out", "err")}
            return cls(**{**value, **screens})
        except (KeyError, TypeError) as error:
            raise NotUnderstood(f"the question is not complete: {error}") from None


def fingerprint(project: Project) -> str:
    """The same for projects with the same settings, secrets included, which cannot be told from it."""
    text = json.dumps(_plain(project), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return dict(value) if isinstance(value, Mapping) else value
