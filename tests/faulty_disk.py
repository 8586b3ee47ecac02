"""A disk that fails for the files of one test only.

A broker that several tests share runs in the same process and writes its own files at any time: a function of
`os` that is replaced for all of them breaks that broker, or counts what it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def replace_below(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, replacement: Callable[..., Any]
) -> None:
    """Replace the function `name` of `os` for files below `directory`; its first argument is a file."""
    real = getattr(os, name)

    def operation(file: Any, *arguments: Any, **options: Any) -> Any:
        return (replacement if is_below(directory, file) else real)(file, *arguments, **options)

    monkeypatch.setattr(os, name, operation)


class Crash(BaseException):
    """Nobody may handle it: what runs in `finally` is all that differs from a real one."""


def crash_below(
    directory: Path, monkeypatch: pytest.MonkeyPatch, names: Iterable[str]
) -> Callable[[int | None], None]:
    """Let these functions of `os` crash for files below `directory`, once so many calls were made as the
    returned function was told last; None, as at first, lets all happen.
    """
    left: int | None = None

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left is not None:
                if left == 0:
                    raise Crash
                left -= 1
            return real(*arguments, **options)

        return operation

    def allow(operations: int | None) -> None:
        nonlocal left
        left = operations

    for name in names:
        replace_below(directory, monkeypatch, name, guarded(getattr(os, name)))
    return allow


def is_below(directory: Path, file: Any) -> bool:
    """True if a path or an open descriptor is of a file below `directory`."""
    path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file)
    return Path(path).is_relative_to(directory)
