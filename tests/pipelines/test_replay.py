"""What a replay would do, planned without Spark: which rows of a table go, and which have to stay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.pipelines import replay
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import Position
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.starts import parse_point, resolve
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.status import write_status
from klamm.pipelines.tables.replacing import NOTHING, beside, kept_versions, swap
from klamm.pipelines.tables.table import Batch, Reached, Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up
from tests.pipelines.running import Shop
from tests.pipelines.tables.writing import SCHEMA, numbers_in, written

TABLE = """
@source(topic="{topic}", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    return orders

@pipeline(to=topic("{topic}.copies"))
def copies(orders):
    return orders
"""

BATCHES = 4
EACH = 10
"""Records of a batch, half of them in each of two partitions."""


@pytest.fixture
def shop(klamm_bootstrap: str, tmp_path: Path) -> Shop:
    """A table of four batches, as a run leaves it, and the topic that they were read from."""
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(BATCHES * EACH)
    table = Table(str(shop.table("orders")))
    for batch in range(BATCHES):
        add(shop, table, batch, at(shop, batch * EACH // 2), at(shop, (batch + 1) * EACH // 2))
    state = State(shop.project)
    for pipeline in ("table", "copies"):
        state.keep_attempt(pipeline, Attempt(1, {"orders": at(shop, 0)}))
    return shop


def add(shop: Shop, table: Table, batch: int, start: Position, end: Position, attempt: int = 1) -> None:
    rows = [{"n": batch * EACH + number} for number in range(EACH)]
    made = Batch(f"{shop.name}.table", attempt, batch, start, end)
    table.append(written(table, rows), made, SCHEMA, ())


def at(shop: Shop, offset: int, other: int | None = None) -> Position:
    return {shop.topic: {"0": offset, "1": offset if other is None else other}}


def delete_before(shop: Shop, partition: int, offset: int) -> None:
    with klamm.Admin(shop.bootstrap) as admin:
        admin.delete_records({(shop.topic, partition): offset})


def test_a_table_is_made_anew_from_the_batch_with_the_point(shop: Shop) -> None:
    planned = replay.plan(shop.project, "table", 7)
    assert planned.start == {"orders": at(shop, 5)}
    assert (planned.base, planned.replaced_rows, planned.warnings) == (0, 30, ())
    everything = replay.plan(shop.project, "table", "earliest")
    assert everything.start == {"orders": at(shop, 0)}
    assert (everything.base, everything.replaced_rows) == (None, 40)


def test_everything_begins_where_the_first_batch_began_or_earlier(shop: Shop) -> None:
    shutil.rmtree(shop.table("orders"))
    table = Table(str(shop.table("orders")))
    add(shop, table, 0, at(shop, 8, 9), at(shop, 20))
    assert replay.plan(shop.project, "table", "earliest").start == {"orders": at(shop, 0)}
    planned = replay.plan(shop.project, "table", {shop.topic: {"0": 12}})
    assert (planned.base, planned.start) == (None, {"orders": at(shop, 8, 9)})


def test_merged_files_change_nothing(shop: Shop) -> None:
    """What stays is a version of the table, and versions do not change when files are merged."""
    table = Table(str(shop.table("orders")))
    keep_up(table, UpkeepPolicy(least_files=2), 0)
    planned = replay.plan(shop.project, "table", 7)
    assert (planned.start, planned.base) == ({"orders": at(shop, 5)}, 0)
    batch = Batch(f"{shop.name}.table", 2, 0, at(shop, 5), at(shop, 20))
    beside_it = beside(table, 2)
    beside_it.append(written(beside_it, [{"n": 1000}]), batch, SCHEMA, ())
    assert swap(table, 2, planned.base, batch) == 1
    assert numbers_in(table) == [*range(10), 1000]
    assert table.reached(f"{shop.name}.table") == Reached(2, 0, False)
    # And it can be taken back again, as any change.
    newest = table.newest()
    assert newest is not None
    newest.restore(newest.version() - 1)
    assert numbers_in(table) == list(range(40))


def test_versions_that_a_replay_has_replaced_do_not_come_back(shop: Shop) -> None:
    table = Table(str(shop.table("orders")))
    batch = Batch(f"{shop.name}.table", 2, 3, at(shop, 5), at(shop, 20))
    swap(table, 2, 0, batch)
    add(shop, table, 4, at(shop, 20), at(shop, 25), attempt=2)
    newest = table.newest()
    assert newest is not None
    versions = kept_versions(newest, f"{shop.name}.table")
    assert [(each.version, each.position[shop.topic]["0"]) for each in versions] == [
        (newest.version() - 1, 20),
        (0, 5),
        (NOTHING, 0),
    ]


def test_files_that_vacuum_has_removed_cannot_stay(shop: Shop) -> None:
    table = Table(str(shop.table("orders")))
    keep_up(table, UpkeepPolicy(least_files=2), 0)
    keep_up(table, UpkeepPolicy(least_files=2, keep_hours=0, vacuum_every_s=0), 10**11)
    with pytest.raises(
        replay.ReplayRefused, match="version 0 of the table, whose rows would stay, has lost 1 files"
    ):
        replay.plan(shop.project, "table", 7)
    assert replay.plan(shop.project, "table", "earliest").base is None


def test_batches_whose_records_are_gone_stay_in_the_table(shop: Shop) -> None:
    delete_before(shop, 1, 7)
    planned = replay.plan(shop.project, "table", "earliest")
    assert planned.start == {"orders": at(shop, 10)}
    assert planned.replaced_rows == 20
    (warning,) = planned.warnings
    assert "20 rows stay as they are" in warning


def test_a_table_that_nothing_can_be_made_of_is_left_alone(shop: Shop) -> None:
    delete_before(shop, 0, 16)
    with pytest.raises(replay.ReplayRefused, match="nothing can be replayed"):
        replay.plan(shop.project, "table", "earliest")
    with klamm.Admin(shop.bootstrap) as admin:
        admin.delete_topic(shop.topic)
        admin.create_topic(shop.topic, 2)
    with pytest.raises(replay.ReplayRefused, match="nothing can be replayed"):
        replay.plan(shop.project, "table", {shop.topic: {"0": 0, "1": 0}})


def test_one_offset_is_brought_to_where_each_log_is(shop: Shop) -> None:
    with klamm.Producer(shop.bootstrap) as producer:
        for _ in range(20):
            producer.send(shop.topic, b"{}", partition=0)
    delete_before(shop, 1, 3)
    assert resolve(shop.project, [shop.topic], 30) == at(shop, 30, 20)
    assert resolve(shop.project, [shop.topic], 1) == at(shop, 1, 3)
    assert replay.plan(shop.project, "copies", "30").start == {"orders": at(shop, 30, 20)}


def test_offsets_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(PipelineError, match="is not a valid starting point"):
        parse_point('{"orders": {"0": "ten"}}')


def test_a_table_that_has_gone_on_is_planned_again(shop: Shop) -> None:
    planned = replay.plan(shop.project, "copies", 7)
    assert (planned.rebuilds, planned.base) == (False, None)
    planned = replay.plan(shop.project, "table", 7)
    add(shop, Table(str(shop.table("orders"))), BATCHES, at(shop, 20), at(shop, 25))
    session: Any = None
    with pytest.raises(replay.ReplayRefused, match="has run since"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "make_session", lambda project: MagicSession())
        replay.carry_out(shop.project, planned, spark=session)


class MagicSession:
    """Stands in for a session that is not used."""

    def stop(self) -> None:
        pass


def test_tables_whose_rows_change_are_replayed_from_the_beginning(shop: Shop) -> None:
    shop.write(TABLE.replace('to_table("orders")', 'to_table("orders"), mode="upsert", keys="n"'))
    with pytest.raises(replay.ReplayRefused, match="has the mode 'upsert'"):
        replay.plan(shop.project, "table", 7)
    assert replay.plan(shop.project, "table", "earliest").base is None


def test_a_replay_with_a_watermark_says_that_other_rows_may_be_too_late(shop: Shop) -> None:
    state = State(shop.project)
    checkpoint = Path(state.checkpoint("table", Attempt(1)))
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True)

    def warnings_with(watermark_ms: int) -> tuple[str, ...]:
        settings = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1})
        (offsets / "3").write_text("\n".join(["v1", settings, json.dumps(at(shop, 20))]))
        return replay.plan(shop.project, "table", "earliest").warnings

    assert warnings_with(1000) == (), "without state no row is dropped"
    (checkpoint / "state").mkdir()
    (checkpoint / "state/0").mkdir()
    assert warnings_with(0) == ()
    (warning,) = warnings_with(1000)
    assert "table drops rows that come later than its watermark allows. Which rows" in warning
    write_status(state, PipelineStatus("table", "table orders", generation=1, too_late=3075))
    assert "watermark allows (its last run dropped 3,075). Which" in warnings_with(1000)[0]
    write_status(state, PipelineStatus("table", "table orders", generation=2, too_late=3075))
    assert "3,075" not in warnings_with(1000)[0], "that was another attempt"
    planned = replay.plan(shop.project, "table", 7)
    assert len(planned.warnings) == 2 and "begins without it" in planned.warnings[0]


def test_sources_that_read_a_topic_at_two_speeds_are_replayed_from_the_beginning(shop: Shop) -> None:
    offsets = Path(State(shop.project).checkpoint("table", Attempt(1))) / "offsets"
    offsets.mkdir(parents=True)
    ends = [json.dumps(at(shop, 20)), json.dumps(at(shop, 13))]
    (offsets / str(BATCHES - 1)).write_text("\n".join(["v1", "{}", *ends]))
    with pytest.raises(replay.ReplayRefused, match=r"reads a topic through several sources.*from earliest"):
        replay.plan(shop.project, "table", 7)
    assert replay.plan(shop.project, "table", "earliest").start == {"orders": at(shop, 0)}
