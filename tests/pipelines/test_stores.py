"""Tables in a real object store and on a real HDFS: what holds on a disk holds there, and a lost driver disk
loses nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from klamm.pipelines import replay
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.runner import run
from klamm.pipelines.state import MOST_EPOCHS, Attempt, Epoch, State
from klamm.pipelines.status import read_status, write_status
from klamm.pipelines.tables.replacing import beside, missing_files, swap
from klamm.pipelines.tables.table import Batch, BatchCommittedElsewhere, Reached, Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up
from klamm.pipelines.tables.versions import diff, restore
from tests.conftest import cannot_run
from tests.peers.hdfs import Hdfs
from tests.peers.kafka_jars import PeerMissing
from tests.peers.s3_server import S3Server
from tests.pipelines.projects import make_project
from tests.pipelines.running import Shop
from tests.pipelines.tables.writing import OWNER, SCHEMA, append, numbers_in, written

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

TABLE = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 50})
def orders(rows):
    return rows.selectExpr("*", "n % 2 AS odd")

@pipeline(to=to_table("orders", partition_by="odd"))
def table(orders):
    return orders

@pipeline(to=to_table("newest"), mode="upsert", keys="odd")
def newest(orders):
    return orders
"""


class Store(NamedTuple):
    """Where tables lie, and the options of deltalake's store."""

    uri: str
    options: Mapping[str, str]


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp(request.param)
    try:
        server = S3Server(folder) if request.param == "s3" else Hdfs(folder)
    except PeerMissing as problem:
        cannot_run(problem)
    with server:
        if isinstance(server, S3Server):
            yield Store("s3://bucket", server.options)
        else:
            yield Store(server.uri, {})


def test_a_table_is_changed_by_whole_commits(store: Store) -> None:
    table, other = (Table(f"{store.uri}/plain/orders", store.options) for _ in range(2))
    assert table.newest() is None and not table.has_other_files()
    append(table, range(0, 3), 0)
    assert other.is_there()
    append(table, range(3, 6), 1)
    with pytest.raises(BatchCommittedElsewhere):
        append(other, range(3, 6), 1)
    assert table.reached(OWNER) == Reached(1, 1, False)
    assert keep_up(table, UpkeepPolicy(least_files=2), 0).merged == 2
    made = Batch(OWNER, 2, 0, {"orders": {"0": 3}}, {"orders": {"0": 6}})
    replayed = beside(table, 2)
    replayed.append(written(replayed, [{"n": 99}]), made, SCHEMA, ())
    assert missing_files(table, 0) == 0
    assert swap(table, 2, 0, made) == 1
    assert numbers_in(table) == [0, 1, 2, 99]
    assert sorted(diff(table, 1, 3).gone["n"].to_pylist()) == [3, 4, 5]
    restore(table, 1)
    assert numbers_in(table) == list(range(6))
    done = keep_up(table, UpkeepPolicy(least_files=2, keep_hours=0, vacuum_every_s=0), 10**11)
    assert done.removed > 0 and numbers_in(table) == list(range(6))


def test_the_state_of_a_project_lies_there(store: Store, tmp_path: Path) -> None:
    project = replace(make_project(tmp_path), shared_state=f"{store.uri}/state", storage=store.options)
    state, elsewhere = (State(replace(project, state=tmp_path / name)) for name in ("here", "there"))
    assert state.attempt("orders") is None and read_status(project) == []
    epochs = tuple(Epoch(number, {}) for number in range(MOST_EPOCHS))
    for attempt in (Attempt(1, epochs=epochs), Attempt(2)):
        state.keep_attempt("orders", attempt)
        assert elsewhere.attempt("orders") == attempt
    state.keep_next_attempt("orders", Attempt(3))
    elsewhere.keep_next_attempt("orders", None)
    assert state.next_attempt("orders") is None
    write_status(state, PipelineStatus("orders", "table orders", state="finished"))
    assert [status.state for status in read_status(project)] == ["finished"]


def test_pipelines_write_there_and_a_lost_disk_loses_nothing(
    store: Store, spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE, tables=f"{store.uri}/shop/tables", storage=store.options)

    def rows(name: str) -> list[int]:
        table = DeltaTable(f"{store.uri}/shop/tables/{name}", storage_options=dict(store.options))
        return sorted(table.to_pyarrow_table(columns=["n"])["n"].to_pylist())

    shop.send(120)
    statuses = run(shop.project, once=True, spark=spark, upkeep=UpkeepPolicy(least_files=3))
    assert {(status.state, status.error) for status in statuses} == {("finished", "")}
    assert rows("orders") == list(range(120)) and rows("newest") == [118, 119]
    assert not list(tmp_path.rglob("*.parquet")), "nothing is written on this machine"
    shutil.rmtree(shop.project.state)
    shop.send(60)
    statuses = run(shop.project, once=True, spark=spark)
    assert {(status.state, status.rows_in) for status in statuses} == {("finished", 60)}
    assert rows("orders") == list(range(180)) and rows("newest") == [178, 179]
    for pipeline in ("table", "newest"):
        replay.carry_out(shop.project, replay.plan(shop.project, pipeline, "earliest"), spark=spark)
    assert rows("orders") == list(range(180)) and rows("newest") == [178, 179]
