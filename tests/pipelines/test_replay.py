"""What a replay would do, planned without Spark: which batches of a table go, and which have to stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import klamm
from klamm.pipelines import replay
from klamm.pipelines.batch_log import BatchEntry, BatchLog
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import Position
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.starts import parse_point, resolve
from klamm.pipelines.state import Attempt, State
from tests.pipelines.running import Shop

TABLE = """
@source(topic="{topic}", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=parquet("orders"))
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
    state = State(shop.project)
    log = BatchLog(state.batches_file("table"))
    for batch in range(BATCHES):
        (shop.table("orders") / BatchFolder.of_batch(1, batch).name).mkdir(parents=True)
        start, end = at(shop, batch * EACH // 2), at(shop, (batch + 1) * EACH // 2)
        log.add(BatchEntry(1, batch, batch, start, end, EACH, 0))
    for pipeline in ("table", "copies"):
        state.keep_attempt(pipeline, Attempt(1, {"orders": at(shop, 0)}))
    return shop


def at(shop: Shop, offset: int, other: int | None = None) -> Position:
    return {shop.topic: {"0": offset, "1": offset if other is None else other}}


def delete_before(shop: Shop, partition: int, offset: int) -> None:
    with klamm.Admin(shop.bootstrap) as admin:
        admin.delete_records({(shop.topic, partition): offset})


def test_a_table_is_made_anew_from_the_batch_with_the_point(shop: Shop) -> None:
    planned = replay.plan(shop.project, "table", 7)
    assert planned.start == {"orders": at(shop, 5)}
    assert (len(planned.retired), planned.retired_rows, planned.warnings) == (3, 30, ())


def test_batches_whose_records_are_gone_stay_in_the_table(shop: Shop) -> None:
    delete_before(shop, 1, 7)
    planned = replay.plan(shop.project, "table", "earliest")
    assert planned.start == {"orders": at(shop, 10)}
    assert [BatchFolder.parse(name) for name in planned.retired] == [
        BatchFolder.of_batch(1, 2),
        BatchFolder.of_batch(1, 3),
    ]
    (warning,) = planned.warnings
    assert "20 rows from there on stay as they are" in warning


def test_merged_batches_stay_together(shop: Shop) -> None:
    folders = [BatchFolder.of_batch(1, batch) for batch in range(BATCHES)]
    (shop.table("orders") / folders[1].name).rmdir()
    (shop.table("orders") / folders[2].name).rename(shop.table("orders") / BatchFolder(1, 1, 2, 1).name)
    delete_before(shop, 0, 6)
    assert replay.plan(shop.project, "table", 12).start == {"orders": at(shop, 15)}


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


def test_before_the_first_batch_it_begins_where_it_was_asked_to(shop: Shop) -> None:
    state = State(shop.project)
    BatchLog(state.batches_file("table")).cut(1, 0)
    log = BatchLog(state.batches_file("table"))
    log.add(BatchEntry(1, 0, 3, at(shop, 8, 9), at(shop, 20), 23, 0))
    assert replay.plan(shop.project, "table", "earliest").start == {"orders": at(shop, 0)}
    assert replay.plan(shop.project, "table", 12).start == {"orders": at(shop, 8, 9)}


def test_a_table_that_has_gone_on_is_planned_again(shop: Shop) -> None:
    planned = replay.plan(shop.project, "table", 7)
    (shop.table("orders") / BatchFolder.of_batch(1, BATCHES).name).mkdir()
    with pytest.raises(replay.ReplayRefused, match="has run since"):
        replay.carry_out(shop.project, planned)


def test_sources_that_read_a_topic_at_two_speeds_are_replayed_from_the_beginning(shop: Shop) -> None:
    offsets = Path(State(shop.project).checkpoint("table", Attempt(1))) / "offsets"
    offsets.mkdir(parents=True)
    ends = [json.dumps(at(shop, 20)), json.dumps(at(shop, 13))]
    (offsets / str(BATCHES - 1)).write_text("\n".join(["v1", "{}", *ends]))
    with pytest.raises(replay.ReplayRefused, match=r"reads a topic through several sources.*from earliest"):
        replay.plan(shop.project, "table", 7)
    assert replay.plan(shop.project, "table", "earliest").start == {"orders": at(shop, 0)}


def test_batches_without_rows_go_too(shop: Shop) -> None:
    """They have no folder, but a line in the log, which a later replay would go by."""
    for batch in range(2):
        (shop.table("orders") / BatchFolder.of_batch(1, batch).name).rmdir()
    replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"))
    assert BatchLog(State(shop.project).batches_file("table")).entries == []
    attempt = State(shop.project).attempt("table")
    assert attempt is not None and (attempt.number, attempt.cut) == (2, None)


def test_a_table_that_the_pipeline_has_not_written_is_not_taken_apart(shop: Shop) -> None:
    state = State(shop.project)
    state.keep_attempt("table", Attempt.first({"orders": at(shop, 0)}, "tables/former"))
    with pytest.raises(replay.ReplayRefused, match="writes to another table than in its last run"):
        replay.plan(shop.project, "table", "earliest")
    state.keep_attempt("table", Attempt.first({"orders": at(shop, 0)}, "tables/orders"))
    assert replay.plan(shop.project, "table", "earliest").retired


def test_a_replay_that_was_broken_off_is_finished_by_the_next(shop: Shop) -> None:
    state = State(shop.project)
    planned = replay.plan(shop.project, "table", "earliest")
    present = state.attempt("table")
    assert present is not None
    state.keep_attempt("table", present.next(planned.start, planned.retired, planned.cut))
    with pytest.raises(replay.ReplayRefused, match="Plan the replay again"):
        replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"))
    finished = state.attempt("table")
    assert finished is not None and (finished.number, finished.cut, finished.retire) == (2, None, ())
    assert BatchLog(state.batches_file("table")).entries == []
