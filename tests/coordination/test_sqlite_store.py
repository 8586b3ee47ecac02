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
import time
from pathlib import Path

import pytest

from klamm.coordination import sqlite
from klamm.coordination.sessions import TICKS_PER_TIMEOUT, OwnSession, Peers, WakeUps, live_path
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import Create, SessionExpired, Set, State, Unavailable
from tests.coordination.engines import SessionHolder
from tests.waiting import until


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


class CountedSleeps:
    """How often the thread of a store has come round."""

    def __init__(self, store):
        self.count = 0
        self._sleep = store._wake_ups.sleep
        store._wake_ups.sleep = self._count

    def _count(self, timeout_s):
        result = self._sleep(timeout_s)
        self.count += 1
        return result


def test_a_store_without_peers_never_wakes_up_by_itself_even_with_a_watch(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db", session_timeout_s=0.1)
        sleeps = CountedSleeps(store)
        await store.open()
        store.watch("/", lambda: None)
        await store.txn([Create("/a", b"", ephemeral=True)])
        before = sleeps.count
        # Another store, which has peers, comes round often in the same time.
        other, another = [SqliteStore(tmp_path / "other.db", session_timeout_s=0.1) for _ in range(2)]
        sleeps_of_other = CountedSleeps(other)
        for each in (other, another):
            await each.open()
            await each.txn([])
        await until(lambda: sleeps_of_other.count > 20)
        assert sleeps.count == before
        for each in (store, other, another):
            await each.close()

    asyncio.run(main())


def test_with_peers_a_store_wakes_up_for_its_ticks_only(tmp_path):
    async def main():
        stores = [SqliteStore(tmp_path / "store.db", session_timeout_s=1.2) for _ in range(3)]
        for store in stores:
            await store.open()
            store.watch("/", lambda: None)
            await store.txn([])
        await asyncio.gather(*(store.sync() for store in stores))
        sleeps = CountedSleeps(stores[0])
        started = time.monotonic()
        await until(lambda: sleeps.count >= 5)
        # Ticks are 0.2 s apart. The first may be due at once, and be a wake-up by the last transaction.
        assert time.monotonic() - started > 3 * 0.2
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_a_store_of_the_first_version_is_brought_up_to_date(tmp_path):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT, value BLOB NOT NULL, version INTEGER"
            " NOT NULL, created_rev INTEGER NOT NULL, owner INTEGER NOT NULL) WITHOUT ROWID"
        )
        connection.execute("CREATE INDEX node_by_parent ON node (parent)")
        connection.execute("CREATE TABLE revision (number INTEGER NOT NULL)")
        connection.execute("INSERT INTO revision VALUES (7)")
        connection.execute("INSERT INTO node VALUES ('/', NULL, x'', 0, 0, 0), ('/a', '/', x'61', 3, 5, 0)")
        connection.execute("PRAGMA user_version=1")
    connection.close()

    async def main():
        for round_ in range(2):
            store = SqliteStore(path)
            await store.open()
            assert await store.get("/a") == (b"a", 3, 5, 0)
            assert await store.txn([Create("/b", b"", ephemeral=True)]) == 8 + 2 * round_
            await store.close()

    asyncio.run(main())


def files_of_sessions(directory):
    return sorted(path.name for path in directory.iterdir() if ".session-" in path.name)


def test_a_session_leaves_no_file_behind_and_of_a_crash_the_next_one_removes_them(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        assert files_of_sessions(tmp_path) == []  # it begins with the first transaction
        await store.txn([Create("/kept")])
        assert len(files_of_sessions(tmp_path)) == 2
        await store.close()
        assert files_of_sessions(tmp_path) == []

        with SessionHolder(f"sqlite://{tmp_path / 'store.db'}", "/held", 60.0) as holder:
            assert len(files_of_sessions(tmp_path)) == 2
            holder.send_signal(signal.SIGKILL)
        again = SqliteStore(tmp_path / "store.db")
        await again.open()
        assert await again.list("/") == ["kept"]
        assert files_of_sessions(tmp_path) == []
        await again.close()

    asyncio.run(main())


def test_a_store_stamps_while_its_loop_hangs(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        with SessionHolder(f"sqlite://{tmp_path / 'store.db'}", "/held", 2.0) as holder:
            await store.txn([Create("/mine")])
            live = Path(live_path(str(tmp_path / "store.db"), holder.session_id))
            holder.hang()
            stamps = set()
            await until(lambda: stamps.add(live.read_bytes()) or len(stamps) > TICKS_PER_TIMEOUT + 2)
            assert (await store.get("/held")).owner == holder.session_id
        await store.close()

    asyncio.run(main())


def end_all_sessions(path):
    """As a peer does, but without waking anybody."""
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM session")
    connection.close()


def test_a_transaction_is_fenced_though_nobody_has_told_its_process(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        await store.txn([Create("/a")])
        end_all_sessions(tmp_path / "store.db")
        with pytest.raises(SessionExpired):
            await store.txn([Create("/b")])
        await store.close()
        again = SqliteStore(tmp_path / "store.db")
        await again.open()
        assert await again.list("/") == ["a"]
        await again.close()

    asyncio.run(main())


def test_a_read_finds_out_that_the_session_has_ended(tmp_path):
    async def main():
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        states = []
        store.on_state(states.append)
        await store.txn([Create("/mine", b"", ephemeral=True)])
        end_all_sessions(tmp_path / "store.db")
        await store.sync()
        with pytest.raises(SessionExpired):
            await store.get("/")
        assert states == [State.EXPIRED] and store.state is State.EXPIRED
        with pytest.raises(SessionExpired):
            await store.txn([Create("/more")])
        await store.close()

    asyncio.run(main())


class Clock:
    now = 100.0


class TestPeers:
    """When a session counts as over, on a clock that the test moves."""

    TIMEOUT_S = 6.0
    TICK_S = TIMEOUT_S / TICKS_PER_TIMEOUT

    @pytest.fixture
    def path(self, tmp_path):
        return str(tmp_path / "store.db")

    @pytest.fixture
    def owner(self, path):
        wake_ups = WakeUps()
        wake_ups.open()
        session = OwnSession(path, self.TIMEOUT_S, wake_ups)
        session.hold_files()
        yield session
        session.release_files()
        wake_ups.close()

    @pytest.fixture
    def peers(self, path, owner):
        """As another process sees the owner's session."""
        wake_ups = WakeUps()
        wake_ups.open()
        self.clock = Clock()
        session = OwnSession(path, self.TIMEOUT_S, wake_ups)
        peers = Peers(path, session, wake_ups, lambda: self.clock.now)
        peers.follow({owner.id: int(self.TIMEOUT_S * 1000)})
        yield peers
        peers.close()
        wake_ups.close()

    def test_a_session_that_stamps_lives_and_one_that_stops_is_over_after_the_timeout(self, owner, peers):
        for _ in range(20):
            owner.stamp(self.clock.now)
            assert not peers.tick()
            self.clock.now += self.TICK_S
        last_stamp_seen = self.clock.now - self.TICK_S
        while not peers.tick():
            self.clock.now += self.TICK_S
            assert self.clock.now < last_stamp_seen + 2 * self.TIMEOUT_S
        assert last_stamp_seen + self.TIMEOUT_S < self.clock.now
        assert peers.over() == [owner.id]

    def test_a_session_that_never_stamped_has_the_timeout_from_the_first_look(self, owner, peers):
        assert not peers.tick()
        self.clock.now += self.TICK_S
        assert not peers.tick()

    def test_who_was_away_starts_anew(self, owner, peers):
        owner.stamp(1.0)
        assert not peers.tick()
        self.clock.now += 10 * self.TIMEOUT_S
        assert not peers.tick()

    def test_between_ticks_nothing_is_looked_at(self, owner, peers):
        assert not peers.tick()
        assert peers.seconds_to_tick() == pytest.approx(self.TICK_S)
        owner.release_files()
        assert not peers.tick()
        self.clock.now += self.TICK_S
        assert peers.tick()

    def test_a_free_lock_is_noticed_by_the_pipe_at_once(self, owner, peers):
        assert not peers.tick()
        owner.release_files()
        dead = peers._wake_ups.sleep(30.0)
        peers.on_dead_pipes(dead)
        assert dead and peers.seconds_to_tick() == 0
        assert peers.tick()
