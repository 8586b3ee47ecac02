"""A disk that fails for the files of one test only.

A broker that several tests share runs in the same process and writes its own files at any time: a function of
`os` that is replaced for all of them breaks that broker, or counts what it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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


def is_below(directory: Path, file: Any) -> bool:
    """True if a path or an open descriptor is of a file below `directory`."""
    path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file)
    return Path(path).is_relative_to(directory)
