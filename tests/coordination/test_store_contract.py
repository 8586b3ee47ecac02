"""What every engine of the coordination store must do. An engine is added to ENGINES and nowhere else."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import (
    MAX_VALUE_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Set,
    Unavailable,
)
from tests.waiting import until

ENGINES = {"sqlite": lambda directory: SqliteStore(directory / "store.db")}


@pytest.fixture(params=ENGINES)
def run(request, tmp_path):
    """Runs a scenario with a way to connect to one store as often as it likes."""

    def run(scenario):
        async def main():
            opened = []

            async def connect():
                store = ENGINES[request.param](tmp_path)
                await store.open()
                opened.append(store)
                return store

            try:
                return await asyncio.wait_for(scenario(connect), 20)
            finally:
                for store in opened:
                    await store.close()

        return asyncio.run(main())

    return run


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
        await store.txn([Create("/a", b"kept"), Create("/a/b")])
        with pytest.raises(error, match=f"/{operation.path.split(chr(47))[1]}"):
            await store.txn([Set("/a", b"lost"), Create("/new"), operation, Create("/newer")])
        assert (await store.get("/a"))[:2] == (b"kept", 0)
        assert await store.list("/") == ["a"]
        await store.txn([Check("/a", 0), Delete("/a/b"), Delete("/a")])
        assert await store.list("/") == []

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
        fired = []
        watch = mine.watch("/a", lambda: fired.append("a"))
        mine.watch("/ab", lambda: fired.append("ab"))
        await mine.txn([Create("/a/x")])
        await until(lambda: fired)
        assert fired == ["a"]
        fired.clear()
        await other.txn([Set("/a", b"by another")])
        await until(lambda: "a" in fired)
        assert (await mine.get("/a")).value == b"by another"
        watch.cancel()
        fired.clear()
        await other.txn([Set("/a", b"again"), Set("/ab", b"again")])
        await until(lambda: "ab" in fired)
        assert "a" not in fired

    run(scenario)


def test_a_failed_transaction_and_a_check_fire_nothing(run):
    async def scenario(connect):
        store = await connect()
        await store.txn([Create("/a"), Create("/b")])
        fired = []
        store.watch("/a", lambda: fired.append("a"))
        store.watch("/b", lambda: fired.append("b"))
        with pytest.raises(NoNode):
            await store.txn([Set("/a", b"x"), Delete("/none")])
        await store.txn([Check("/a", 0), Set("/b", b"x")])
        await until(lambda: fired)
        assert fired == ["b"]

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
        with pytest.raises(ValueError):
            await store.txn([Create("/b"), Set("/a", bytes(MAX_VALUE_BYTES + 1))])
        assert await store.list("/") == ["a"]

    run(scenario)


def test_thousands_of_reads_sent_at_once_are_fast(run):
    async def scenario(connect):
        store = await connect()
        paths = [f"/{number}" for number in range(4000)]
        await store.txn([Create(path, b"x" * 60) for path in paths])
        started = time.process_time()
        nodes = await asyncio.gather(*(store.get(path) for path in paths))
        seconds = time.process_time() - started  # which does not pass while other processes run
        assert len(nodes) == 4000
        # A generous bound for a slow machine; without answering in batches it takes several times as long.
        assert seconds < 2.0, f"4,000 reads took {seconds:.2f} s"

    run(scenario)


PATHS = st.sampled_from(["/a", "/b", "/a/c", "/a/d", "/a/c/e"])
VERSIONS = st.integers(-1, 2)
VALUES = st.binary(max_size=3)
OPERATIONS = st.one_of(
    st.builds(Check, PATHS, st.integers(0, 2)),
    st.builds(Create, PATHS, VALUES),
    st.builds(Set, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
)


def apply_to_model(model, operations):
    """The same semantics on a dictionary: (new model, None) or (None, error class)."""
    model = dict(model)
    for operation in operations:
        path = operation.path
        if isinstance(operation, Create):
            parent = path.rpartition("/")[0] or "/"
            if parent not in model:
                return None, NoNode
            if path in model:
                return None, NodeExists
            model[path] = (operation.value, 0)
            continue
        if path not in model:
            return None, NoNode
        version = model[path][1]
        if operation.version not in (-1, version):
            return None, BadVersion
        if isinstance(operation, Set):
            model[path] = (operation.value, version + 1)
        elif isinstance(operation, Delete):
            if any(other.startswith(path + "/") for other in model):
                return None, NotEmpty
            del model[path]
    return model, None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(OPERATIONS, max_size=4), max_size=12))
def test_any_history_agrees_with_a_dictionary(run, transactions):
    async def scenario(connect):
        store = await connect()
        for name in await store.list("/"):
            await remove(store, f"/{name}")
        model = {"/": (b"", 0)}
        for operations in transactions:
            after, error = apply_to_model(model, operations)
            if error is None:
                await store.txn(operations)
                model = after
            else:
                with pytest.raises(error):
                    await store.txn(operations)
            for path in ("/a", "/b", "/a/c", "/a/d", "/a/c/e"):
                if path in model:
                    assert (await store.get(path))[:2] == model[path]
                else:
                    with pytest.raises(NoNode):
                        await store.get(path)

    run(scenario)


async def remove(store, path):
    for name in await store.list(path):
        await remove(store, f"{path}/{name}")
    await store.txn([Delete(path)])
