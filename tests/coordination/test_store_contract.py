"""What every engine of the coordination store must do. An engine is added to `engines.py` only."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.coordination.engines import pause_thread
from klamm.coordination.store import (
    MAX_TXN_BYTES,
    MAX_VALUE_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    Set,
    State,
    TooLarge,
    Unavailable,
    operation_bytes,
)
from tests.coordination.engines import ENGINES, Engine
from tests.waiting import until

TIME_LIMIT_S = 90


@pytest.fixture(params=ENGINES)
def engine(request, tmp_path):
    with ENGINES[request.param](request, tmp_path) as engine:
        yield engine


@pytest.fixture
def run(engine):
    """Runs a scenario with a way to connect to one store as often as it likes."""
    return lambda scenario: run_on(engine, scenario)


def run_on(engine: Engine, scenario):
    async def main():
        opened = []

        async def connect():
            store = engine.new_store()
            opened.append(store)
            await store.open()
            return store

        try:
            return await asyncio.wait_for(scenario(connect), TIME_LIMIT_S)
        finally:
            for store in opened:
                await store.close()

    return asyncio.run(main())


async def watched(store, *prefixes):
    """The prefixes whose watches fire from now on: a new watch may fire once without a change."""
    fired = []
    watches = [store.watch(prefix, lambda prefix=prefix: fired.append(prefix)) for prefix in prefixes]
    await store.sync()
    fired.clear()
    return fired, watches


def test_a_node_is_created_read_set_and_deleted(run):
    async def scenario(connect):
        store = await connect()
        first = await store.txn([Create("/a", b"one")])
        node = await store.get("/a")
        assert (node.value, node.version, node.created_rev, node.owner) == (b"one", 0, first, 0)
        second = await store.txn([Set("/a", b"two", 0)])
        assert second > first
        assert (await store.get("/a"))[:3] == (b"two", 1, first)
        await store.txn([Delete("/a", 1)])
        with pytest.raises(NoNode, match="/a"):
            await store.get("/a")
        third = await store.txn([Create("/a", b"three")])
        assert (await store.get("/a"))[:3] == (b"three", 0, third)

    run(scenario)


def test_children_are_listed_by_name_and_only_one_level(run):
    async def scenario(connect):
        store = await connect()
        assert await store.list("/") == []
        await store.txn([Create("/b"), Create("/a"), Create("/a/y"), Create("/a/x"), Create("/a/x/deep")])
        await store.txn([Create("/a-b")])
        assert await store.list("/") == ["a", "a-b", "b"]
        assert await store.list("/a") == ["x", "y"]
        assert await store.list("/b") == []
        with pytest.raises(NoNode):
            await store.list("/c")

    run(scenario)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a"), NodeExists),
        (Create("/"), NodeExists),
        (Create("/ephemeral/a"), EphemeralParent),
        (Create("/none/a"), NoNode),
        (Set("/none", b""), NoNode),
        (Set("/a", b"", 7), BadVersion),
        (Delete("/none"), NoNode),
        (Delete("/a/b", 7), BadVersion),
        (Delete("/a"), NotEmpty),
        (Check("/a", 7), BadVersion),
        (Check("/none", 0), NoNode),
    ],
)
def test_one_operation_that_cannot_be_done_undoes_all(run, operation, error):
    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/a", b"kept"), Create("/a/b"), Create("/ephemeral", b"", ephemeral=True)])
        with pytest.raises(error, match=operation.path) as caught:
            await store.txn([Set("/a", b"lost"), Create("/new"), operation, Create("/newer")])
        failure = caught.value
        assert (failure.path, failure.operation, failure.index) == (operation.path, operation, 2)
        assert (await store.get("/a"))[:2] == (b"kept", 0)
        assert await store.list("/") == ["a", "ephemeral"]
        await store.txn([Check("/a", 0), Delete("/a/b"), Delete("/a")])
        assert await store.list("/") == ["ephemeral"]

    run(scenario)


def test_of_many_writers_of_one_version_exactly_one_wins(run):
    async def scenario(connect):
        stores = [await connect() for _ in range(3)]
        await stores[0].txn([Create("/counter", b"0")])

        async def count_up(store, times):
            done = 0
            while done < times:
                value, version, *_ = await store.get("/counter")
                try:
                    await store.txn([Set("/counter", b"%d" % (int(value) + 1), version)])
                    done += 1
                except BadVersion:
                    continue

        await asyncio.gather(*(count_up(store, 10) for store in stores))
        assert (await stores[1].get("/counter"))[:2] == (b"30", 30)

    run(scenario)


def test_what_was_written_is_there_after_opening_again(run):
    async def scenario(connect):
        store = await connect()
        revision = await store.txn([Create("/a", bytes(range(256))), Set("/", b"root")])
        await store.close()
        again = await connect()
        assert (await again.get("/a"))[:3] == (bytes(range(256)), 0, revision)
        assert (await again.get("/")).value == b"root"
        assert await again.txn([]) > revision

    run(scenario)


def test_a_watch_fires_for_its_prefix_whoever_changes_it(run):
    async def scenario(connect):
        mine, other = await connect(), await connect()
        await mine.txn([Create("/a"), Create("/ab")])
        fired, (watch, _) = await watched(mine, "/a", "/ab")
        await mine.txn([Create("/a/x"), Create("/a/x/deep")])
        await until(lambda: fired)
        assert set(fired) == {"/a"}
        fired.clear()
        await other.txn([Set("/a/x/deep", b"by another")])
        await until(lambda: "/a" in fired)
        assert (await mine.get("/a/x/deep")).value == b"by another"
        watch.cancel()
        fired.clear()
        await other.txn([Set("/a", b"again"), Set("/ab", b"again")])
        await until(lambda: "/ab" in fired)
        assert "/a" not in fired

    run(scenario)


def test_a_failed_transaction_and_a_check_fire_nothing(run):
    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/a"), Create("/b")])
        fired, _ = await watched(store, "/a", "/b")
        with pytest.raises(NoNode):
            await store.txn([Set("/a", b"x"), Delete("/none")])
        await store.txn([Check("/a", 0), Set("/b", b"x")])
        await until(lambda: fired)
        assert set(fired) == {"/b"}

    run(scenario)


def test_sync_shows_what_others_were_told_is_done(run):
    async def scenario(connect):
        mine, other = await connect(), await connect()
        for number in range(20):
            await other.txn([Create(f"/{number}")])
            await mine.sync()
            assert str(number) in await mine.list("/")

    run(scenario)


def test_calls_after_closing_are_unavailable_and_earlier_ones_are_answered(run):
    async def scenario(connect):
        store = await connect()
        writes = [store.txn([Create(f"/{number}")]) for number in range(10)]
        await store.close()
        assert len(set(await asyncio.gather(*writes))) == 10
        with pytest.raises(Unavailable):
            await store.get("/")

    run(scenario)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\0b"])
def test_a_bad_path_is_our_own_fault(run, path):
    async def scenario(connect):
        store = await connect()
        for call in (store.get, store.list, lambda path: store.txn([Create(path)])):
            with pytest.raises(ValueError):
                await call(path)

    run(scenario)


def test_a_value_has_a_limit_and_one_too_large_harms_nobody(run):
    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/a", bytes(MAX_VALUE_BYTES))])
        assert len((await store.get("/a")).value) == MAX_VALUE_BYTES
        with pytest.raises(TooLarge, match="/a has 1000001 bytes") as caught:
            await store.txn([Create("/b"), Set("/a", bytes(MAX_VALUE_BYTES + 1))])
        assert (caught.value.path, caught.value.index) == ("/a", 1)
        assert await store.list("/") == ["a"]

    run(scenario)


def test_a_transaction_has_a_limit_which_every_engine_can_hold(run):
    async def scenario(connect):
        store = await connect()
        operations = [Create("/large", bytes(500_000)), *(Create(f"/{number:04}") for number in range(6_000))]
        room_bytes = MAX_TXN_BYTES - sum(map(operation_bytes, operations))
        operations.append(Create("/last", bytes(room_bytes - operation_bytes(Create("/last")))))
        with pytest.raises(TooLarge, match="largest operation is that of /large") as caught:
            await store.txn([*operations, Check("/large", 0)])
        assert caught.value.path == "/large"
        assert await store.list("/") == []
        await store.txn(operations)
        assert len(await store.list("/")) == len(operations)

    run(scenario)


def test_the_root_is_never_deleted(run):
    async def scenario(connect):
        store = await connect()
        with pytest.raises(ValueError):
            await store.txn([Delete("/")])

    run(scenario)


def test_an_ephemeral_node_goes_with_the_store_that_created_it(run):
    async def scenario(connect):
        mine, other = await connect(), await connect()
        assert mine.state is State.CONNECTED
        assert 0 != mine.session_id != other.session_id
        await mine.txn([Create("/kept")])
        revision = await other.txn([Create("/kept/one", b"x", ephemeral=True)])
        node = await mine.get("/kept/one")
        assert (node.value, node.created_rev, node.owner) == (b"x", revision, other.session_id)
        await mine.txn([Set("/kept/one", b"y")])
        fired, _ = await watched(mine, "/kept")
        await other.close()
        await until(lambda: fired)
        await mine.sync()
        assert await mine.list("/kept") == []
        again = await mine.txn([Create("/kept/one", b"z", ephemeral=True)])
        assert again > revision
        assert (await mine.get("/kept/one"))[1:] == (0, again, mine.session_id)

    run(scenario)


def test_only_one_of_many_creates_the_same_ephemeral_node(run):
    async def scenario(connect):
        stores = [await connect() for _ in range(3)]
        await stores[0].txn([Create("/epoch", b"0")])
        outcomes = await asyncio.gather(
            *(store.txn([Create("/controller", b"", True), Set("/epoch", b"1", 0)]) for store in stores),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in outcomes) == ["NodeExists", "NodeExists", "int"]
        assert {each.path for each in outcomes if isinstance(each, NodeExists)} == {"/controller"}
        (winner,) = [store for store, each in zip(stores, outcomes, strict=True) if isinstance(each, int)]
        assert (await stores[2].get("/controller")).owner == winner.session_id

    run(scenario)


def test_the_session_of_a_killed_process_ends(engine):
    """The embedded engine notices at once; ZooKeeper after the session timeout."""

    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/brokers")])
        with engine.holder("/brokers/1", engine.killed_session_timeout_s) as holder:
            fired, _ = await watched(store, "/brokers")
            assert (await store.get("/brokers/1")).owner == holder.session_id
            holder.send_signal(signal.SIGKILL)
            await until(lambda: fired)
            await until_gone(store, "/brokers/1")
        assert store.state is State.CONNECTED

    run_on(engine, scenario)


def test_the_session_of_a_paused_process_ends_and_it_is_fenced_when_it_goes_on(engine):
    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/brokers")])
        with engine.holder("/brokers/1", engine.paused_session_timeout_s) as holder:
            fired, _ = await watched(store, "/brokers")
            created_rev = (await store.get("/brokers/1")).created_rev
            holder.send_signal(signal.SIGSTOP)
            await until(lambda: fired)
            await until_gone(store, "/brokers/1")
            again = await store.txn([Create("/brokers/1", b"", ephemeral=True)])
            assert again > created_rev
            holder.send_signal(signal.SIGCONT)
            # What it says is the outcome of a transaction, of a read and of its state, in this order.
            assert await holder.tries_to_write() == ["SessionExpired", "SessionExpired", "EXPIRED"]
        assert (await store.get("/brokers/1"))[:3] == (b"", 0, again)

    run_on(engine, scenario)


def test_the_session_of_a_paused_thread_ends_and_its_store_is_fenced_when_it_goes_on(engine):
    """`klamm.testing` pauses brokers of its own process so."""

    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/brokers")])
        paused = engine.new_store(engine.paused_session_timeout_s)
        resumed = threading.Event()
        await paused.open()
        try:
            await paused.txn([Create("/brokers/1", b"", ephemeral=True)])
            pause_thread(paused, resumed.wait)
            await until_gone(store, "/brokers/1")
            assert paused.state is State.CONNECTED
            resumed.set()
            await until(lambda: paused.state is State.EXPIRED)
            with pytest.raises(SessionExpired):
                await paused.txn([Create("/brokers/1", b"", ephemeral=True)])
        finally:
            resumed.set()
            await paused.close()
        assert store.state is State.CONNECTED

    run_on(engine, scenario)


async def until_gone(store, path):
    while True:
        try:
            await store.get(path)
        except NoNode:
            return


def test_reads_sent_at_once_take_less_than_one_after_the_other(run):
    """They are answered in batches. CPU time, which does not pass while other processes run; and a ratio,
    since how fast the machine is says nothing."""

    async def scenario(connect):
        store = await connect()
        paths = [f"/{number}" for number in range(1000)]
        await store.txn([Create(path, b"x" * 60) for path in paths])
        started = time.process_time()
        for path in paths:
            await store.get(path)
        one_by_one = time.process_time() - started
        started = time.process_time()
        nodes = await asyncio.gather(*(store.get(path) for path in paths))
        at_once = time.process_time() - started
        assert len(nodes) == len(paths)
        assert at_once < one_by_one, f"{at_once:.2f} s, one after the other {one_by_one:.2f} s"

    run(scenario)


PATHS = st.sampled_from(["/a", "/b", "/a/c", "/a/d", "/a/c/e"])
VERSIONS = st.integers(-1, 2)
VALUES = st.binary(max_size=3)
OPERATIONS = st.one_of(
    st.builds(Check, PATHS, st.integers(0, 2)),
    st.builds(Create, PATHS, VALUES, st.booleans()),
    st.builds(Set, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
)


def apply_to_model(model, operations):
    """The same semantics on a dictionary: (new model, None, None) or (None, error class, index)."""
    model = dict(model)
    for index, operation in enumerate(operations):
        path = operation.path
        if isinstance(operation, Create):
            parent = path.rpartition("/")[0] or "/"
            if parent not in model:
                return None, NoNode, index
            if path in model:
                return None, NodeExists, index
            if model[parent][2]:
                return None, EphemeralParent, index
            model[path] = (operation.value, 0, operation.ephemeral)
            continue
        if path not in model:
            return None, NoNode, index
        _, version, is_ephemeral = model[path]
        if operation.version not in (-1, version):
            return None, BadVersion, index
        if isinstance(operation, Set):
            model[path] = (operation.value, version + 1, is_ephemeral)
        elif isinstance(operation, Delete):
            if any(other.startswith(path + "/") for other in model):
                return None, NotEmpty, index
            del model[path]
    return model, None, None


def test_any_history_agrees_with_a_dictionary(engine):
    @settings(max_examples=engine.examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.lists(OPERATIONS, max_size=4), max_size=12))
    def agrees(transactions):
        run_on(engine, lambda connect: follow_model(connect, transactions))

    agrees()


async def follow_model(connect, transactions):
    store = await connect()
    for name in await store.list("/"):
        await remove(store, f"/{name}")
    model = {"/": (b"", 0, False)}
    for operations in transactions:
        after, error, index = apply_to_model(model, operations)
        if error is None:
            await store.txn(operations)
            model = after
        else:
            with pytest.raises(error) as caught:
                await store.txn(operations)
            assert caught.value.index == index
        for path in ("/a", "/b", "/a/c", "/a/d", "/a/c/e"):
            if path in model:
                node = await store.get(path)
                assert (node.value, node.version, node.owner == store.session_id) == model[path]
            else:
                with pytest.raises(NoNode):
                    await store.get(path)


async def remove(store, path):
    for name in await store.list(path):
        await remove(store, f"{path}/{name}")
    await store.txn([Delete(path)])
