"""A process that holds a session of a store: python session_holder.py ADDRESS PATH SESSION_TIMEOUT_S

It creates the ephemeral node PATH and prints its session's id. Then it reads commands:

    write   try a transaction and a read, and print how they ended and the state of the session
    hang    print a line and block the event loop for good
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import Create, Store, StoreError, Unavailable
from klamm.coordination.zookeeper import ZooKeeperStore


def store_at(address: str, session_timeout_s: float) -> Store:
    """As `engines.new_store`, but with a session as short as a test wants it."""
    if address.startswith("sqlite://"):
        return SqliteStore(Path(address.removeprefix("sqlite://")), session_timeout_s=session_timeout_s)
    hosts, _, chroot = address.removeprefix("zookeeper://").partition("/")
    return ZooKeeperStore(hosts, f"/{chroot}", session_timeout_s=session_timeout_s)


async def outcome_of(call: Callable[[], Awaitable[object]]) -> str:
    while True:
        try:
            await call()
            return "done"
        except Unavailable:
            continue  # the connection broke while the process was paused
        except StoreError as error:
            return type(error).__name__


async def main() -> None:
    store = store_at(sys.argv[1], float(sys.argv[3]))
    await store.open()
    await store.txn([Create(sys.argv[2], b"held", ephemeral=True)])
    print(store.session_id, flush=True)
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if command == "write":
            write = await outcome_of(lambda: store.txn([Create(sys.argv[2] + "-again")]))
            read = await outcome_of(lambda: store.get("/"))
            print(write, read, store.state.name, flush=True)
        elif command == "hang":
            print("hanging", flush=True)
            signal.pause()


if __name__ == "__main__":
    asyncio.run(main())
