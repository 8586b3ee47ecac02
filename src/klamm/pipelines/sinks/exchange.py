"""Exchanges the names of two folders in one step, if the system can.

Linux: renameat2 with RENAME_EXCHANGE (ext4, xfs, btrfs, tmpfs …); macOS: renamex_np with RENAME_SWAP (APFS).
At no moment is one of the names missing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # Linux
_RENAME_SWAP = 2  # macOS

_NOT_POSSIBLE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


class ExchangeImpossible(OSError):
    """The system or the file system cannot exchange two names in one step."""


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of `one` and `other`, on one file system. Raises ExchangeImpossible."""
    result = _call(os.fsencode(one), os.fsencode(other))
    if result == 0:
        return
    if result in _NOT_POSSIBLE:
        raise ExchangeImpossible(result, f"{_reason()}: {one} is unchanged")
    raise OSError(result, os.strerror(result), str(one), None, str(other))


def why_impossible(folder: Path) -> str | None:
    """Why names in this folder cannot be exchanged; None if they can. Tries it with two new folders."""
    with tempfile.TemporaryDirectory(prefix=".klamm-probe-", dir=folder) as probe:
        one, other = Path(probe, "one"), Path(probe, "other")
        one.mkdir()
        other.mkdir()
        try:
            exchange(one, other)
        except ExchangeImpossible:
            return _reason()
    return None


def _reason() -> str:
    return f"the file system here cannot exchange two folders in one step ({sys.platform})"


def _call(one: bytes, other: bytes) -> int:
    """Zero, or the errno."""
    library = _library()
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        failed = library.renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(one, other, _RENAME_SWAP)
    else:
        return errno.ENOSYS
    return ctypes.get_errno() if failed else 0


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
