"""Asking the page cache, so that the event loop never waits for a disk.

`read_nowait` reads only what is in memory. `is_resident` tells whether a range that `sendfile` is to send
is there: by the system call cachestat (Linux 6.5), else by reading a byte here and there without waiting.
File systems without such reads (tmpfs says EOPNOTSUPP) live in memory: there everything is resident.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

_CACHESTAT = 451
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_BYTES = 128 * 1024
"""How far apart to probe without cachestat: the usual read-ahead, which brings pages in by the piece."""
_WARM_CHUNK_BYTES = 1024 * 1024


class WouldBlock(Exception):
    """The answer needs a disk; ask again in a thread with may_block=True."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def read_nowait(fd: int, position: int, length: int) -> bytearray:
    """Exactly `length` bytes that the file is known to have, or WouldBlock."""
    buffer = bytearray(length)
    try:
        count = os.preadv(fd, (buffer,), position, os.RWF_NOWAIT)
    except BlockingIOError:
        raise WouldBlock from None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        count = os.preadv(fd, (buffer,), position)
    if count != length:
        raise WouldBlock
    return buffer


def read_blocking(fd: int, position: int, length: int) -> bytes:
    """Up to `length` bytes; fewer only at the end of the file."""
    data = os.pread(fd, length, position)
    if len(data) == length or not data:
        return data
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(fd, length - done, position + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def warm(fd: int, position: int, length: int) -> None:
    """Bring a range into the page cache; blocks."""
    buffer = memoryview(bytearray(min(length, _WARM_CHUNK_BYTES)))
    end = position + length
    while position < end:
        count = os.preadv(fd, (buffer[: end - position],), position)
        if count == 0:
            return
        position += count


def _is_resident_by_sampling(fd: int, position: int, length: int) -> bool:
    byte = (bytearray(1),)
    last = position + length - 1
    try:
        for place in (*range(position, last, _SAMPLE_BYTES), last):
            os.preadv(fd, byte, place, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return True


def _cachestat_or_none() -> Callable[[int, int, int], bool] | None:
    """A probe by cachestat; None where the kernel does not have it."""
    if os.uname().machine not in ("x86_64", "aarch64"):
        return None  # the number of the call is that of these machines
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    no_such_file = ctypes.c_int(-1)
    syscall(_CACHESTAT, no_such_file, ctypes.byref(_Range(0, 1)), ctypes.byref(_Stat()), 0)
    if ctypes.get_errno() != errno.EBADF:
        return None

    def is_resident(fd: int, position: int, length: int) -> bool:
        stat = _Stat()
        if syscall(_CACHESTAT, fd, ctypes.byref(_Range(position, length)), ctypes.byref(stat), 0) != 0:
            return _is_resident_by_sampling(fd, position, length)
        pages = (position + length - 1) // _PAGE_BYTES - position // _PAGE_BYTES + 1
        return bool(stat.cached >= pages)

    return is_resident


_probe: Callable[[int, int, int], bool] | None = None


def is_resident(fd: int, position: int, length: int) -> bool:
    """Whether the page cache holds the whole range (length > 0)."""
    global _probe
    if _probe is None:
        _probe = _cachestat_or_none() or _is_resident_by_sampling
    return _probe(fd, position, length)
