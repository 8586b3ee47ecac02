"""Finds the message for users in Spark's report of a failed query. A core.

Spark reports a failure as Java stack frames around the text of the error: an exception of the user's Python
code in a worker process, an exception of ours in the driver, or an error with a name in brackets. Users see
the innermost of these and the line of their file; the rest is kept as detail.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from klamm.pipelines.errors import Place, is_users

_TRACEBACK = "Traceback (most recent call last):"
_FILE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
# The end of a traceback: the exception's name in the first column, and its text up to the Java frames.
_EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*?))?\s*(?=^\s*(?:SQLSTATE|at [\w.$]+\(|JVM stacktrace|Driver "
    r"stacktrace|Caused by:|===|File \"|\Z)|\Z)",
    re.MULTILINE | re.DOTALL,
)
_NAMED = re.compile(
    r"\[(?P<name>[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*(?P<text>.+?)(?=\s*SQLSTATE|\n\s*at |\Z)", re.DOTALL
)
# Names that only say that a query or a job has failed; and names whose text is the user's own.
_WRAPPERS = frozenset(
    {"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "JOB_ABORTED", "TASK_WRITE_FAILED"}
)
_PLAIN = frozenset({"USER_RAISED_EXCEPTION", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"})

MOST_WORDS_SHOWN = 600
"""How many characters of an error are shown. Longer texts are plans or stacks, and stay in the detail."""


class Failure(NamedTuple):
    """`summary` is one sentence; `detail` is all that Spark reported."""

    summary: str
    place: Place | None
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.summary}" if self.place else self.summary


def explain(text: str, root: Path) -> Failure:
    """The innermost error in Spark's report; `root` is the folder of the user's files."""
    place = _place(text, root)
    summary = _python_error(text) or _named_error(text) or _first_line(text)
    return Failure(_shortened(summary), place, text)


def _python_error(text: str) -> str | None:
    for block in reversed(text.split(_TRACEBACK)[1:]):
        for found in _EXCEPTION.finditer(block):
            name = found["name"].rpartition(".")[2]
            said = " ".join((found["text"] or "").split())
            if named := _named_error(said):
                return named
            return f"{name}: {said}" if said else name
    return None


def _named_error(text: str) -> str | None:
    innermost = None
    for found in _NAMED.finditer(_without_wrappers(text)):
        said = " ".join(found["text"].split())
        innermost = said if found["name"] in _PLAIN else f"{said} [{found['name']}]"
    return innermost


def _without_wrappers(text: str) -> str:
    return re.sub("|".join(rf"\[{name}\]" for name in sorted(_WRAPPERS)), "", text)


def _first_line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "it failed without a message")
    return re.sub(r"^(?:[a-z]\w*\.)+(\w+(?:Exception|Error)): ", "", first)


def _place(text: str, root: Path) -> Place | None:
    """The last line of a user's file in the innermost traceback that has one."""
    for block in reversed(text.split(_TRACEBACK)[1:]):
        files = [Place(Path(found["file"]), int(found["line"])) for found in _FILE.finditer(block)]
        ours = [place for place in files if is_users(place.file, root)]
        if ours:
            return ours[-1]
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_WORDS_SHOWN else text[: MOST_WORDS_SHOWN - 1] + "…"
