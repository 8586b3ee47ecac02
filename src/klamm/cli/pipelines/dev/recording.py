"""Records what is written to stdout and stderr, for a command in another process that writes it there."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from klamm.cli.pipelines.dev.messages import MOST_CHARACTERS, PART_CHARACTERS, Screen
from klamm.cli.showing import console


class TooLong(Exception):
    """More was written than is kept."""


class Recording:
    """What was written to both streams, in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, list[str]]] = []
        self._characters = 0

    def add(self, name: str, text: str) -> None:
        self._characters += len(text)
        if self._characters > MOST_CHARACTERS:
            raise TooLong(f"more than {MOST_CHARACTERS:,} characters")
        if not self._parts or self._parts[-1][0] != name:
            self._parts.append((name, []))
        self._parts[-1][1].append(text)

    def messages(self) -> Iterator[dict[str, str]]:
        """As messages."""
        for name, texts in self._parts:
            text = "".join(texts)
            for start in range(0, len(text), PART_CHARACTERS):
                yield {name: text[start : start + PART_CHARACTERS]}


class RecordedStream(io.TextIOBase):
    """A stream that looks like the one of the command. `width` and `colours` are for `console()`."""

    def __init__(self, recording: Recording, name: str, screen: Screen) -> None:
        self._recording = recording
        self._name = name
        self._screen = screen
        self.width = screen.width
        self.colours = screen.colours

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._screen.encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "strict"

    def isatty(self) -> bool:
        return self._screen.is_terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"text is written here, not {type(text).__name__}")
        if text:
            self._recording.add(self._name, text)
        return len(text)


@contextmanager
def recorded(out: Screen, err: Screen) -> Iterator[Recording]:
    """Record what this process writes to sys.stdout and sys.stderr."""
    recording = Recording()
    before = sys.stdout, sys.stderr
    sys.stdout = RecordedStream(recording, "out", out)
    sys.stderr = RecordedStream(recording, "err", err)
    try:
        yield recording
    finally:
        sys.stdout, sys.stderr = before


def screen(*, stderr: bool = False) -> Screen:
    """Where this process writes to."""
    stream = sys.stderr if stderr else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not stream.isatty():
        return Screen(False, encoding=encoding)
    shown = console(stderr=stderr)
    return Screen(True, shown.width, shown.color_system, encoding)
