"""Which engine an address names, and its store.

sqlite://data/klamm-metadata.sqlite           a file that the brokers of one machine share
zookeeper://host:2181,host:2181/klamm         a ZooKeeper ensemble, below the path /klamm
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from klamm.coordination.callers import DEFAULT_TIMEOUT_S
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import DEFAULT_SESSION_TIMEOUT_S, MAX_CHROOT_BYTES, Store, check_path
from klamm.coordination.zookeeper import MIN_SESSION_TIMEOUT_S, ZooKeeperStore

_SQLITE = "sqlite://"
_ZOOKEEPER = "zookeeper://"
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\],]+)(:\d{1,5})?")


def new_store(
    address: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
) -> Store:
    """The store at an address, not yet open. ValueError, with what is wrong, if it is not an address."""
    if address.startswith(_SQLITE) and len(address) > len(_SQLITE):
        path = Path(address.removeprefix(_SQLITE))
        return SqliteStore(path, timeout_s=timeout_s, session_timeout_s=session_timeout_s)
    if address.startswith(_ZOOKEEPER):
        hosts, chroot = _parse_zookeeper(address)
        if session_timeout_s < MIN_SESSION_TIMEOUT_S:
            raise ValueError(
                f"a session timeout of {session_timeout_s:g} s is too short for ZooKeeper: "
                f"{MIN_SESSION_TIMEOUT_S:g} s is the least"
            )
        return ZooKeeperStore(hosts, chroot, timeout_s=timeout_s, session_timeout_s=session_timeout_s)
    raise ValueError(
        f"{address!r} is not the address of a coordination store: expected sqlite://PATH or "
        "zookeeper://HOST:PORT,HOST:PORT/CHROOT"
    )


def pause_thread(store: Store, until: Callable[[], object]) -> None:
    """For tests: the thread that keeps the session of an open store alive calls `until`, which blocks it."""
    assert isinstance(store, SqliteStore | ZooKeeperStore), f"{store} has no thread"
    store.pause_thread(until)


def _parse_zookeeper(address: str) -> tuple[str, str]:
    hosts, slash, rest = address.removeprefix(_ZOOKEEPER).partition("/")
    for server in hosts.split(","):
        if not _SERVER.fullmatch(server):
            raise ValueError(f"{address!r} has a bad server, {server!r}: expected HOST or HOST:PORT")
    if not rest:
        return hosts, ""
    chroot = slash + rest
    try:
        check_path(chroot)
    except ValueError as error:
        raise ValueError(f"{address!r} has a bad chroot: {error}") from None
    if len(chroot.encode()) > MAX_CHROOT_BYTES:
        raise ValueError(f"the chroot {chroot} has more than {MAX_CHROOT_BYTES} bytes")
    return hosts, chroot
