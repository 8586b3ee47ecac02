"""The one tree of exceptions that the pipeline layer raises.

    PipelineError            anything below; has .message, .advice and .place
    ├── ProjectError         klamm.toml is missing or not valid
    ├── DefinitionError      a decorated function or the arguments of a decorator are not valid
    ├── UserCodeError        the user's own code failed: at import, or when its function was called
    ├── GraphError           functions with unknown inputs, or that need each other in a circle
    ├── SchemaError          a schema does not parse, is missing, or does not fit
    ├── SamplingFailed       sample records could not be read
    ├── RevisionError        a revision of the project cannot be had from git (revisions.py)
    └── DecoderUnavailable   values cannot be decoded now, for a reason outside of them

A text says what happened, to what, and what to do. `place` is the line of a user's file that the error is
about, if there is one; it is shown instead of a stack trace.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A line of a user's file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_users(file: Path, root: Path) -> bool:
    """True if a file is the user's own: below the project's folder, and not in the Python environment, which
    often lies there."""
    return file.is_relative_to(root) and not file.is_relative_to(sys.prefix)


class PipelineError(Exception):
    """The base of all errors of pipelines. Its text has the place, what happened, and what to do."""

    def __init__(self, message: str, *, advice: str = "", place: Place | None = None) -> None:
        self.text = f"{message}. {advice}" if advice else message
        """What happened and what to do, without the place."""
        super().__init__(f"{place}: {self.text}" if place else self.text)
        self.message = message
        self.advice = advice
        self.place = place


class ProjectError(PipelineError):
    """klamm.toml is missing or not valid."""


class DefinitionError(PipelineError):
    """A decorated function, or what its decorator was given, cannot be used."""


class UserCodeError(PipelineError):
    """The user's own code failed. `__cause__` is its exception, `place` the user's last line in its
    traceback."""

    @classmethod
    def of(cls, what: str, error: BaseException, root: Path, fallback: Place | None = None) -> UserCodeError:
        """The error to raise for `error`, which the user's code below `root` raised during `what`."""
        if isinstance(error, SyntaxError) and error.filename is not None:
            place = Place(Path(error.filename), error.lineno or 1)
            reason = f"SyntaxError: {error.msg}"
        else:
            place = _last_line_below(root, error) or fallback or Place(root, 1)
            reason = f"{type(error).__name__}: {_first_lines(str(error))}".removesuffix(": ")
        made = cls(f"{what} failed: {reason}", advice=_advice(error), place=place)
        made.__cause__ = error
        return made


class GraphError(PipelineError):
    """Functions that ask for what is not there, or for each other in a circle."""


class SchemaError(PipelineError):
    """A schema that does not parse, is not there, or does not fit."""


class SamplingFailed(PipelineError):
    """The records that were to be looked at could not be read."""


class DecoderUnavailable(PipelineError):
    """Values cannot be decoded now, for a reason outside of them (a registry is away): the batch fails."""


def _advice(error: BaseException) -> str:
    """Advice for PySpark functions that were called without a session: PySpark's own message does not
    help."""
    frames = traceback.extract_tb(error.__traceback__)
    is_of_pyspark = bool(frames) and f"{os.sep}pyspark{os.sep}" in frames[-1].filename
    wants_session = "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error) or (
        isinstance(error, AssertionError) and is_of_pyspark
    )
    if not wants_session:
        return ""
    return (
        "There is no Spark session while files are imported: use columns inside functions only, and give a "
        "UDF its type as an object, @F.udf(LongType()), or define it inside the function that uses it"
    )


SHOWN_LINES = 3
"""How many lines of an exception's text are shown. Longer texts are plans or stacks."""

# What follows the sentence in Spark's messages begins so: plans, the text of a query, stacks.
_BEYOND_THE_SENTENCE = ("'", "+-", "==", "JVM stacktrace", "Project [", "Filter ", "Aggregate [")


def _first_lines(text: str) -> str:
    shown: list[str] = []
    for line in text.strip().splitlines()[:SHOWN_LINES]:
        if shown and line.lstrip().startswith(_BEYOND_THE_SENTENCE):
            break
        shown.append(line.strip())
    return " ".join(shown).rstrip(";")


def _last_line_below(root: Path, error: BaseException) -> Place | None:
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if is_users(file, root) and frame.lineno is not None:
            found = Place(file, frame.lineno)
    return found
