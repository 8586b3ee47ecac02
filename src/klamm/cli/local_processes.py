"""Finds the process that listens on a port of this machine, so that a user knows which one to look at."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def listening_process(host: str, port: int) -> int | None:
    """The id of the process that listens on `host:port`.

    None if the host is not this machine, if the process is another user's, and on systems without /proc.
    """
    if not _is_local(host):
        return None
    inodes = set(_listening_inodes(port))
    return next((pid for pid in _processes() if _holds(pid, inodes)), None) if inodes else None


def _is_local(host: str) -> bool:
    """True if one of the host's addresses is one of this machine's: only such an address can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _processes() -> Iterator[int]:
    with suppress(OSError):
        yield from sorted(int(name) for name in os.listdir(_PROC) if name.isdigit())


def _holds(pid: int, inodes: set[str]) -> bool:
    """True if the process has one of these sockets open."""
    with suppress(OSError):
        for descriptor in os.scandir(_PROC / str(pid) / "fd"):
            with suppress(OSError):
                kind, _, inode = os.readlink(descriptor.path).partition(":[")
                if kind == "socket" and inode.rstrip("]") in inodes:
                    return True
    return False
