"""What only the ZooKeeper engine does: connections that break, servers that die, and kazoo's own ways."""

from __future__ import annotations

import asyncio
import sys

import pytest

from klamm.coordination import zookeeper as engine
from klamm.coordination.store import (
    BadVersion,
    Create,
    NoNode,
    SessionExpired,
    Set,
    State,
    StoreError,
    Unavailable,
)
from klamm.coordination.zookeeper import ZooKeeperStore
from tests.coordination.engines import start_zookeeper
from tests.waiting import until

TIME_LIMIT_S = 120
SESSION_TIMEOUT_S = 30.0
"""So long that no session ends by itself, however busy the machine is."""


def run(scenario, *arguments):
    asyncio.run(asyncio.wait_for(scenario(*arguments), TIME_LIMIT_S))


@pytest.fixture
def server(zookeeper):
    """The server, for a test that hurts it."""
    yield zookeeper
    zookeeper.restore()


def test_the_chroot_is_created_and_hidden(zookeeper):
    async def scenario():
        below = ZooKeeperStore(zookeeper.hosts, "/new/deep")
        await below.open()
        await below.txn([Create("/a", b"x")])
        assert await below.list("/") == ["a"]
        top = ZooKeeperStore(zookeeper.hosts)
        await top.open()
        assert (await top.get("/new/deep/a")).value == b"x"
        assert await top.list("/new") == ["deep"]
        fired = []
        top.watch("/new", lambda: fired.append("top"))
        below.watch("/", lambda: fired.append("below"))
        await asyncio.gather(top.sync(), below.sync())
        fired.clear()
        await top.txn([Set("/new/deep/a", b"y")])
        await until(lambda: set(fired) == {"top", "below"})
        await below.close()
        await top.close()

    run(scenario)


def test_an_old_server_has_watches_that_fire_again_and_again(zookeeper, monkeypatch):
    monkeypatch.setattr(engine._AddWatch, "type", 990)  # no server knows this request, as old ones not 106
    monkeypatch.setattr(engine, "REREAD_INTERVAL_S", 0.05)

    async def scenario():
        store = ZooKeeperStore(zookeeper.hosts, "/old")
        await store.open()
        fired = []
        store.watch("/", lambda: fired.append(len(fired)))
        await until(lambda: len(fired) > 3)
        await store.close()
        assert store._reread_timer.cancelled()

    run(scenario)


def test_a_server_that_nobody_finds_is_named(zookeeper):
    async def scenario():
        store = ZooKeeperStore("127.0.0.1:1", timeout_s=0.3)
        with pytest.raises(Unavailable, match=r"zookeeper://127\.0\.0\.1:1: no server answered in 0\.3 s"):
            await store.open()

    run(scenario)


def test_without_kazoo_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kazoo.client", None)

    async def scenario():
        with pytest.raises(StoreError, match=r"pip install 'klamm\[zookeeper\]'"):
            await ZooKeeperStore("127.0.0.1:1").open()

    run(scenario)


@pytest.mark.long
def test_a_server_that_comes_back_finds_the_session_and_fires_the_watches(server):
    async def scenario():
        store = ZooKeeperStore(server.hosts, "/returning", session_timeout_s=SESSION_TIMEOUT_S)
        states, fired = [], []
        store.on_state(states.append)
        await store.open()
        await store.txn([Create("/a", b"1"), Create("/mine", b"", ephemeral=True)])
        session_id = store.session_id
        store.watch("/a", lambda: fired.append("/a"))
        await store.sync()
        server.kill(0)
        await until(lambda: states[-1] is State.SUSPENDED)
        fired.clear()
        # Calls wait for the connection; nothing of them is lost or done twice.
        reads = [store.get("/a"), store.list("/")]
        write = store.txn([Set("/a", b"2", 0)])
        server.launch(0)
        (value, *_), names = await asyncio.gather(*reads)
        assert (value, names) == (b"1", ["a", "mine"])
        await write
        assert states == [State.CONNECTED, State.SUSPENDED, State.CONNECTED]
        await until(lambda: fired)
        assert store.session_id == session_id == (await store.get("/mine")).owner
        fired.clear()
        await store.txn([Set("/a", b"3", 1)])
        await until(lambda: fired)  # and the new connection tells of changes again
        await store.close()

    run(scenario)


@pytest.mark.long
def test_a_server_that_does_not_answer_leaves_the_outcome_open(server):
    async def scenario():
        store = ZooKeeperStore(server.hosts, "/silent", timeout_s=2.0, session_timeout_s=SESSION_TIMEOUT_S)
        await store.open()
        await store.txn([Create("/a", b"1")])
        server.pause(0)
        with pytest.raises(Unavailable, match="did not answer in 2 s"):
            await store.txn([Set("/a", b"2", 0)])
        server.resume(0)
        await until_answered(store)
        # It was on its way, and this time it was done.
        assert (await store.get("/a"))[:2] == (b"2", 1)
        await store.close()

    run(scenario)


async def until_answered(store):
    while True:
        try:
            return await store.sync()
        except Unavailable:
            continue


@pytest.mark.long
def test_a_transaction_on_its_way_when_the_connection_breaks_is_unavailable(server):
    async def scenario():
        # A server that starts on a busy machine is found late.
        store = ZooKeeperStore(server.hosts, "/broken", timeout_s=60, session_timeout_s=SESSION_TIMEOUT_S)
        await store.open()
        await store.txn([Create("/a", b"1")])
        server.pause(0)
        write, read = store.txn([Set("/a", b"2", 0)]), store.get("/a")
        await until(lambda: store._client._pending)  # kazoo has sent them
        server.kill(0)
        with pytest.raises(Unavailable, match="ConnectionLoss"):
            await write
        assert not read.done()
        server.launch(0)
        assert (await read).value in (b"1", b"2")
        await store.close()

    run(scenario)


@pytest.mark.long
def test_an_expired_session_is_dead_for_good_though_kazoo_makes_a_new_one(server):
    async def scenario():
        store = ZooKeeperStore(server.hosts, "/expired", session_timeout_s=SESSION_TIMEOUT_S)
        states = []
        store.on_state(states.append)
        await store.open()
        await store.txn([Create("/mine", b"", ephemeral=True)])
        # A second connection of the same session that says goodbye ends it for both.
        end_session(store)
        with pytest.raises(SessionExpired):
            while True:
                try:
                    await store.txn([Create("/other", b"", ephemeral=True)])
                    raise AssertionError("a transaction was done without a session")
                except Unavailable:
                    continue
        assert states[-1] is State.EXPIRED and State.CONNECTED not in states[1:]
        for call in (store.get("/"), store.list("/"), store.sync(), store.txn([])):
            with pytest.raises(SessionExpired):
                await call
        other = ZooKeeperStore(server.hosts, "/expired")
        await other.open()
        assert await other.list("/") == []
        await other.close()
        await store.close()

    run(scenario)


def test_nothing_of_a_lost_session_slips_into_the_next_one(zookeeper):
    async def scenario():
        store = ZooKeeperStore(zookeeper.hosts, "/slipping", session_timeout_s=SESSION_TIMEOUT_S)
        await store.open()
        # As kazoo's thread does it when it finds its session expired, before the loop hears of it.
        store._on_link("LOST")
        store._on_link("CONNECTED")
        with pytest.raises(SessionExpired):
            await store.txn([Create("/late")])
        await store.close()
        other = ZooKeeperStore(zookeeper.hosts, "/slipping")
        await other.open()
        assert await other.list("/") == []
        await other.close()

    run(scenario)


def end_session(store):
    from kazoo.client import KazooClient

    twin = KazooClient(store._hosts, client_id=store._client.client_id)
    twin.start()
    twin.stop()
    twin.close()


@pytest.mark.long
def test_an_ensemble_goes_on_without_its_leader_and_without_a_follower():
    """Every answered change is there, and the session lives on."""

    async def scenario(ensemble):
        store = ZooKeeperStore(ensemble.hosts, "/klamm", session_timeout_s=SESSION_TIMEOUT_S)
        await store.open()
        await store.txn([Create("/count", b"0"), Create("/mine", b"", ephemeral=True)])
        session_id = store.session_id
        answered = await count_up(store, 10)
        leader = ensemble.leader()
        counting = asyncio.create_task(count_up(store, 60))
        ensemble.kill(leader)
        answered = max(answered, await counting)
        ensemble.launch(leader)
        await asyncio.to_thread(ensemble.wait_until_serving)
        counting = asyncio.create_task(count_up(store, 60))
        ensemble.kill(next(number for number in range(3) if number != ensemble.leader()))
        answered = max(answered, await counting)
        await until_answered(store)
        assert int((await store.get("/count")).value) == answered >= 130
        assert store.state is State.CONNECTED
        assert store.session_id == session_id == (await store.get("/mine")).owner
        await store.close()

    with start_zookeeper(3) as ensemble:
        run(scenario, ensemble)


async def count_up(store, times):
    """Raise the number by one so often, by compare and set; returns the last that was seen in the store."""
    done = 0
    while True:
        try:
            await store.sync()
            value, version, *_ = await store.get("/count")
            if done == times:
                return int(value)
            await store.txn([Set("/count", b"%d" % (int(value) + 1), version)])
            done += 1
        except (Unavailable, BadVersion):
            continue  # the change may have been made: look again


def test_a_read_of_nothing_names_its_path(zookeeper):
    async def scenario():
        store = ZooKeeperStore(zookeeper.hosts, "/nothing")
        await store.open()
        for call in (store.get, store.list):
            with pytest.raises(NoNode, match="/no/such") as caught:
                await call("/no/such")
            assert (caught.value.path, caught.value.operation, caught.value.index) == ("/no/such", None, None)
        await store.close()

    run(scenario)


def test_a_server_that_accepts_and_does_not_answer_is_given_up_before_the_session_ends():
    """As one does that is being restarted: kazoo alone would wait for a whole session timeout."""
    session_timeout_s = 6.0

    async def scenario():
        connected = []

        async def accept(reader, writer):
            connected.append(asyncio.get_running_loop().time())
            await reader.read()
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        store = ZooKeeperStore(f"{host}:{port}", session_timeout_s=session_timeout_s, timeout_s=60.0)
        opening = asyncio.create_task(store.open())
        await until(lambda: len(connected) > 1, "it connects again")
        assert connected[1] - connected[0] < session_timeout_s
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await store.close()
        server.close()

    run(scenario)
