"""Makes files survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
