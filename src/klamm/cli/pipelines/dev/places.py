"""Where the socket of `klamm pipeline dev` is: in the project's state folder, for its owner alone.

The path of a socket may have about a hundred bytes, and that of a project may be longer. The socket is
therefore named from inside of its folder.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET = "dev.sock"
LOCK = "dev.lock"

WAITING_CONNECTIONS = 16


def listen(folder: Path) -> socket.socket:
    """Listen in a folder. The caller holds the lock, so that a socket which is there is a dead one.

    To be called before there are other threads: the working folder and the mode of new files, which are
    those of the process, change for a moment."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mode = os.umask(0o177)
    try:
        with _inside(folder):
            Path(SOCKET).unlink(missing_ok=True)
            made.bind(SOCKET)
        made.listen(WAITING_CONNECTIONS)
    except OSError:
        made.close()
        raise
    finally:
        os.umask(mode)
    return made


def connect(folder: Path, timeout_s: float) -> socket.socket:
    """Connect to the socket in a folder. Raises OSError if nobody listens, or if it is another user's."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        with _inside(folder):
            if os.stat(SOCKET).st_uid != os.getuid():
                raise PermissionError(f"{folder / SOCKET} belongs to another user")
            made.connect(SOCKET)
    except OSError:
        made.close()
        raise
    return made


def is_owner(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user, as far as the system tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    form = struct.Struct("3i")  # process, user, group
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return bool(form.unpack(told)[1] == os.getuid())


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        try:
            yield
        finally:
            os.fchdir(before)
    finally:
        os.close(before)
