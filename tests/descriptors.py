"""The files that this process has open. Others than those of a test may come and go meanwhile: a broker that
several tests share runs in this process, too."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_below(directory: Path) -> int:
    """How many descriptors are of files below `directory`."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += Path(os.readlink(f"/proc/self/fd/{name}")).is_relative_to(directory)
    return count
