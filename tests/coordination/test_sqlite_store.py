"""What only the SQLite engine does: its file, its lock, its thread, and crashes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from klamm.coordination import sqlite
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import Create, Set, Unavailable


def test_a_held_lock_makes_writes_unavailable_but_not_reads(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db", timeout_s=0.3)
        await store.open()
        await store.txn([Create("/a", b"x")])
        lock = os.open(tmp_path / "store.db.lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable):
            await store.txn([Create("/b")])
        os.close(lock)
        assert (await store.get("/a")).value == b"x"
        await store.txn([Create("/c")])
        await store.close()

    asyncio.run(main())


def test_the_write_ahead_log_is_folded_in_and_gone_after_closing(tmp_path):
    async def main():
        path = tmp_path / "store.db"
        store = SqliteStore(path)
        await store.open()
        await store.txn([Create("/a")])
        largest = 0
        for _ in range(30):
            await store.txn([Set("/a", os.urandom(200_000))])
            largest = max(largest, os.stat(f"{path}-wal").st_size)
        assert sqlite.CHECKPOINT_WAL_BYTES < largest < 3 * sqlite.CHECKPOINT_WAL_BYTES
        await store.close()

    asyncio.run(main())
    assert not (tmp_path / "store.db-wal").exists()


def test_a_file_of_another_kind_or_version_is_refused_in_one_line(tmp_path):
    async def open_store(path):
        store = SqliteStore(path)
        with pytest.raises(Unavailable) as caught:
            await store.open()
        await store.close()
        return str(caught.value)

    noise = tmp_path / "noise.db"
    noise.write_bytes(b"not a database at all" * 100)
    message = asyncio.run(open_store(noise))
    assert "noise.db" in message and "\n" not in message

    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    assert "format 99" in asyncio.run(open_store(newer))

    assert "absent" in asyncio.run(open_store(tmp_path / "absent" / "store.db"))


CRASHING_WRITER = """
    import asyncio, sys
    from pathlib import Path
    from klamm.coordination.sqlite import SqliteStore
    from klamm.coordination.store import Create

    async def main():
        store = SqliteStore(Path(sys.argv[1]))
        await store.open()
        start = len(await store.list("/"))
        for number in range(start, 10_000_000):
            await store.txn([Create(f"/{number:08}"), Create(f"/{number:08}/child")])
            print(number, flush=True)

    asyncio.run(main())
"""


def test_every_answered_transaction_survives_kill_9_whole(tmp_path):
    path = tmp_path / "store.db"
    answered = -1
    for round_ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CRASHING_WRITER), str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(5 + 7 * round_):
            line = process.stdout.readline()
            assert line, "the writer died by itself"
        process.send_signal(signal.SIGKILL)
        answered = max(answered, *map(int, [line, *process.stdout.read().split()]))
        process.wait()

        async def check(answered=answered):
            store = SqliteStore(path)
            await store.open()
            names = await store.list("/")
            assert len(names) - 1 >= answered
            for name in names:
                assert await store.list(f"/{name}") == ["child"]
            await store.close()

        asyncio.run(check())


def test_an_idle_store_without_watches_sleeps(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        await store.sync()
        looked = 0
        real = sqlite._data_version

        def counting(connection):
            nonlocal looked
            looked += 1
            return real(connection)

        sqlite._data_version = counting
        try:
            await asyncio.sleep(10 * sqlite.POLL_INTERVAL_S)
            assert looked == 0
            watch = store.watch("/", lambda: None)
            while looked < 3:  # noqa: ASYNC110 (counted in another thread)
                await asyncio.sleep(0.001)
            watch.cancel()
        finally:
            sqlite._data_version = real
            await store.close()

    asyncio.run(main())
