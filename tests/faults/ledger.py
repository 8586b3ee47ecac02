"""Runs a command of Klamm and writes down what it brings to the disk.

`python ledger.py LEDGER KEPT DATA command …` wraps the functions of `os` that change files. Every event below
the directory DATA is one line of JSON in LEDGER, handed to the kernel at once, so that it survives a kill.
What a rename or a removal takes away gets another link in KEPT, and what a file loses when it is cut a copy,
from where `power.py` can bring it back. The process that compacts runs under a ledger, too.

SQLite makes its system calls where nobody can wrap them. It is taken at its word that with `synchronous=FULL`
a transaction is on the disk when COMMIT returns, and the length of its log is noted then.

With FORGET_FSYNC_OF set in the environment, an fsync of a file whose name ends with it does nothing and is
not noted: so tests can show that a missing fsync is found.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import runpy
import sys
import threading
from typing import Any

FORGET = "FORGET_FSYNC_OF"


class Ledger:
    def __init__(self, path: str, kept: str, data: str) -> None:
        self.arguments = [path, kept, data]
        self._kept = kept
        self._data = data
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.RLock()
        """Held from noting a change of names until it is made: else a sync in between would count for it."""
        self._numbers = itertools.count()
        self._forget = os.environ.get(FORGET) or None
        self.note("process", pid=os.getpid())

    def note(self, event: str, **details: Any) -> None:
        os.write(self._fd, json.dumps({"event": event, **details}).encode() + b"\n")

    def install(self) -> None:
        self._wrap_opening()
        self._wrap_syncing()
        self._wrap_names()
        self._wrap_child()

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._data)

    def _wrap_opening(self) -> None:
        open_, truncate = os.open, os.ftruncate

        def opening(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
            if not flags & (os.O_CREAT | os.O_TRUNC) or not self._is_ours(path):
                return open_(path, flags, mode, **more)
            with self._lock:
                is_new = not os.path.lexists(path)
                fd = open_(path, flags, mode, **more)
                if is_new:
                    self.note("create", path=os.fspath(path), inode=os.fstat(fd).st_ino)
                elif flags & os.O_TRUNC:
                    self.note("shrink", inode=os.fstat(fd).st_ino, size=0)
                return fd

        def truncating(fd: int, size: int) -> None:
            kept = self._keep_end(fd, size)
            truncate(fd, size)
            self.note("shrink", inode=os.fstat(fd).st_ino, size=size, kept=kept)

        os.open, os.ftruncate = opening, truncating

    def _wrap_syncing(self) -> None:
        fsync = os.fsync

        def syncing(fd: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if self._forget is not None and path.endswith(self._forget):
                return
            status = os.fstat(fd)
            number = next(self._numbers)
            if os.path.isdir(path):
                with self._lock:
                    self.note("sync begins", path=path, id=[os.getpid(), number])
                fsync(fd)
                self.note("sync ends", id=[os.getpid(), number])
            else:
                fsync(fd)
                self.note("sync", path=path, inode=status.st_ino, size=status.st_size)

        os.fsync = os.fdatasync = syncing

    def _wrap_names(self) -> None:
        rename, unlink, mkdir = os.rename, os.unlink, os.mkdir

        def renaming(source: Any, target: Any, **more: Any) -> None:
            if not self._is_ours(target):
                return rename(source, target, **more)
            with self._lock:
                self.note("rename", source=os.fspath(source), path=os.fspath(target), kept=self._keep(target))
                rename(source, target, **more)

        def unlinking(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None or not self._is_ours(path):
                return unlink(path, dir_fd=dir_fd)
            with self._lock:
                kept = self._keep(path)
                if kept is not None:
                    self.note("unlink", path=os.fspath(path), kept=kept)
                unlink(path)

        def making(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None or not self._is_ours(path):
                return mkdir(path, mode, dir_fd=dir_fd)
            with self._lock:
                mkdir(path, mode)
                self.note("mkdir", path=os.fspath(path))

        os.rename = os.replace = renaming
        os.unlink = os.remove = unlinking
        os.mkdir = making

    def _keep(self, path: Any) -> str | None:
        """Give the file another name, so that it can be brought back; None if there is none."""
        kept = f"{self._kept}/{os.getpid()}-{next(self._numbers)}"
        try:
            os.link(path, kept)
        except (FileNotFoundError, PermissionError):  # the second is what a directory says
            return None
        return kept

    def _keep_end(self, fd: int, size: int) -> str | None:
        """Copy what a file is about to lose from `size` on; None if that is nothing."""
        lost = os.pread(fd, max(0, os.fstat(fd).st_size - size), size)
        if not lost or not self._is_ours(os.readlink(f"/proc/self/fd/{fd}")):
            return None
        kept = f"{self._kept}/{os.getpid()}-{next(self._numbers)}"
        with open(kept, "wb") as file:
            file.write(lost)
        return kept

    def _wrap_child(self) -> None:
        start = asyncio.create_subprocess_exec
        launcher = os.path.abspath(__file__)

        async def starting(program: str, *arguments: str, **more: Any) -> Any:
            assert "-m" in arguments, "only the process that compacts is started"
            command = arguments[arguments.index("-m") :]
            return await start(program, launcher, *self.arguments, *command, **more)

        asyncio.create_subprocess_exec = starting  # type: ignore[assignment]

    def watch_store(self) -> None:
        """Note the length of SQLite's log whenever a transaction has been committed."""
        from klamm.coordination.sqlite import SqliteStore

        write = SqliteStore._write

        def writing(store: SqliteStore, connection: Any, operations: Any) -> int:
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "synchronous is FULL"
            revision = write(store, connection, operations)
            path = f"{store._path}-wal"
            status = os.stat(path)
            self.note("sync", path=path, inode=status.st_ino, size=status.st_size)
            return revision

        SqliteStore._write = writing  # type: ignore[method-assign]


def main() -> None:
    path, kept, data, *command = sys.argv[1:]
    ledger = Ledger(path, kept, data)
    ledger.install()
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        ledger.watch_store()
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
