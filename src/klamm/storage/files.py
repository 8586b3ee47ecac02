"""Writing files so that they survive: the system calls that the rest of storage is made of.

An fsync that fails is never tried again: the kernel may have dropped the pages, and a second call that
succeeds says nothing about them. It raises `LogDirFailure`, and the directory goes offline.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

from klamm.storage.segments.page_cache import read_blocking

_READ_BYTES = 1 << 20

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that takes more once there is room again."""


class LogDirFailure(OSError):
    """A log directory can no longer be relied on."""


def sync_fd(fd: int, path: str) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise LogDirFailure(error.errno, f"fsync failed: {error.strerror}", path) from error


def sync_file(path: str) -> None:
    """Bring the file to the disk, making it if need be."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        sync_fd(fd, path)
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_fd(fd, path)
    finally:
        os.close(fd)


def write_atomically(path: str, data: bytes, *, sync: bool = True) -> None:
    """A crash leaves the old file or the new one."""
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            sync_fd(fd, temporary)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    if sync:
        sync_directory(os.path.dirname(path))


def write_at(path: str, data: bytes, position: int) -> None:
    """Write all of `data` into the file, making it if need be."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, memoryview(data), position)
    finally:
        os.close(fd)


def write_all(fd: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        data = data[written:]
        position += written


def truncate_file(path: str, size: int) -> None:
    """Cut the file, making it if need be."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def read_at(path: str, position: int, length: int) -> bytes:
    """Up to `length` bytes; fewer only at the end of the file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_blocking(fd, position, length)
    finally:
        os.close(fd)


def read_small_file(path: str) -> bytes | None:
    """The whole file; None if it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        parts = []
        while data := os.read(fd, _READ_BYTES):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(directory: str) -> None:
    """Remove a directory and all in it, as far as the disk allows; blocks."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                os.unlink(entry.path)
        os.rmdir(directory)
    except OSError:  # it holds directories, or something cannot be removed
        shutil.rmtree(directory, ignore_errors=True)
