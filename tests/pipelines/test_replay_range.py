"""The replay of a range: what it plans and refuses, and that it leaves a running pipeline alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import replay
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import Position
from klamm.pipelines.redrive import redrive
from klamm.pipelines.redrive_to_table import redrive_to_table
from klamm.pipelines.replay import ReplayRefused
from klamm.pipelines.replay_range import RangePlan, carry_out_range, plan_range
from klamm.pipelines.runner import run
from klamm.pipelines.state import Attempt, EpochName, ProjectBusy, State
from klamm.pipelines.tables.range_replacing import Replay, Swapped, swap_range
from klamm.pipelines.tables.ranges import Range
from klamm.pipelines.tables.replacing import beside
from klamm.pipelines.tables.table import Batch, Table
from klamm.pipelines.tables.versions import history
from tests.pipelines.running import Shop
from tests.pipelines.tables.writing import written

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
SCHEMA = pa.schema(
    [("n", pa.int64()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())]
)
BATCHES = 4
EACH = 10
"""Records of a batch, half of them in each of two partitions."""


@pytest.fixture
def shop(klamm_bootstrap: str, tmp_path: Path) -> Shop:
    """A table of four batches, as a run leaves it, and the topic that they were read from."""
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(BATCHES * EACH)
    table = table_of(shop)
    for batch in range(BATCHES):
        add(shop, table, batch, batch * EACH // 2, (batch + 1) * EACH // 2)
    keep(shop, Attempt.first({"orders": at(shop, 0)}, "tables/orders"))
    return shop


def table_of(shop: Shop) -> Table:
    return Table(str(shop.table("orders")))


def keep(shop: Shop, attempt: Attempt) -> None:
    State(shop.project).keep_attempt("table", attempt)


def at(shop: Shop, offset: int, other: int | None = None) -> Position:
    return {shop.topic: {"0": offset, "1": offset if other is None else other}}


def rows(shop: Shop, start: int, end: int) -> list[dict[str, Any]]:
    return [
        {"n": 2 * offset + partition, "_topic": shop.topic, "_partition": partition, "_offset": offset}
        for partition in range(2)
        for offset in range(start, end)
    ]


def add(shop: Shop, table: Table, batch: int, start: int, end: int, schema: pa.Schema = SCHEMA) -> None:
    made = Batch(f"{shop.name}.table", 1, batch, at(shop, start), at(shop, end), f"a.{1}")
    table.append(written(table, rows(shop, start, end), schema), made, schema, ())


def ranges(plan: RangePlan) -> list[tuple[int, int, int]]:
    (partitions,) = plan.ranges.values()
    return [(number, each.start, each.end) for number, each in sorted(partitions.items())]


def refused(shop: Shop, words: str, from_: Any = "earliest", to: Any = "latest", name: str = "table") -> None:
    with pytest.raises(PipelineError, match=words):
        plan_range(shop.project, name, from_, to)


# ---- from where to where


def test_a_range_is_planned_by_offsets_and_reads_no_further_than_the_pipeline(shop: Shop) -> None:
    planned = plan_range(shop.project, "table", 7, 13)
    assert ranges(planned) == [(0, 7, 13), (1, 7, 13)]
    assert (planned.records, planned.replaced_rows, planned.warnings) == (12, 12, ())
    assert (planned.attempt, planned.number) == (1, 1)
    shop.send(20)
    planned = plan_range(shop.project, "table", "15", "25")
    assert ranges(planned) == [(0, 15, 20), (1, 15, 20)]
    assert planned.warnings == (
        f"the pipeline has read {shop.topic}-0 up to offset 20, {shop.topic}-1 up to offset 20: the replay "
        "ends there, and the pipeline reads what follows",
    )
    assert ranges(plan_range(shop.project, "table", "earliest", "latest")) == [(0, 0, 20), (1, 0, 20)]
    assert plan_range(shop.project, "table", "earliest", "latest").warnings == ()
    refused(shop, "has not come to that range yet", 20, 25)
    refused(shop, "no record in that range", 7, 7)
    refused(shop, "the end lies before the beginning: .*-0 would be read from offset 9 to 7", 9, 7)
    refused(shop, "the end lies before the beginning", "latest", "earliest")
    refused(shop, "is not a valid starting point", "soon")
    refused(shop, "is not a valid starting point", "earliest", "never")


def test_offsets_by_partition_choose_the_partitions(shop: Shop) -> None:
    def point(**offsets: int) -> str:
        return json.dumps({shop.topic: {number[1:]: offset for number, offset in offsets.items()}})

    planned = plan_range(shop.project, "table", point(p1=3), 9)
    assert (ranges(planned), planned.replaced_rows) == ([(1, 3, 9)], 6)
    assert ranges(plan_range(shop.project, "table", "earliest", point(p0=4))) == [(0, 0, 4)]
    assert ranges(plan_range(shop.project, "table", point(p0=-2), point(p0=-1, p1=5))) == [(0, 0, 20)]
    refused(shop, "no record in that range", point(p0=3), point(p1=5))
    refused(shop, "has no partition 7", point(p7=3))
    refused(shop, "which the pipeline does not read", json.dumps({"others": {"0": 1}}))


def test_times_are_offsets_of_records(shop: Shop) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)
    with klamm.Producer(shop.bootstrap) as producer:
        for offset in range(20, 25):
            sent_ms = int(later.timestamp() * 1000) + offset * 1000
            for partition in range(2):
                producer.send(shop.topic, b"{}", partition=partition, timestamp=sent_ms)
    add(shop, table_of(shop), BATCHES, 20, 25)
    time = (later + timedelta(seconds=22)).isoformat()
    planned = plan_range(shop.project, "table", time, "latest")
    assert ranges(planned) == [(0, 22, 25), (1, 22, 25)]
    assert ranges(plan_range(shop.project, "table", 18, time)) == [(0, 18, 22), (1, 18, 22)]


def test_a_backfill_ends_where_the_pipeline_began(shop: Shop) -> None:
    shutil.rmtree(shop.table("orders"))
    table = table_of(shop)
    add(shop, table, 0, 12, 20)
    begun = Attempt.first({"orders": at(shop, 12)}, "tables/orders")
    keep(shop, begun.again({"orders": at(shop, 18)}))
    planned = plan_range(shop.project, "table", "earliest", "start")
    assert (ranges(planned), planned.replaced_rows) == ([(0, 0, 12), (1, 0, 12)], 0)
    keep(shop, replace(begun, epochs=()))
    refused(shop, "does not know where the pipeline began", "earliest", "start")


def test_rows_whose_records_are_gone_stay(shop: Shop) -> None:
    with klamm.Admin(shop.bootstrap) as admin:
        admin.delete_records({(shop.topic, 1): 4})
    planned = plan_range(shop.project, "table", "earliest", 10)
    assert (ranges(planned), planned.replaced_rows) == ([(0, 0, 10), (1, 4, 10)], 16)
    assert planned.warnings == (
        "rows of older records, which are no longer in the topics, stay as they are: 4",
    )
    assert plan_range(shop.project, "table", 3, 10).warnings[0].endswith(": 1")
    refused(shop, "no record in that range", json.dumps({shop.topic: {"1": 0}}), 3)
    by_offset = json.dumps({shop.topic: {"1": 2}})
    planned = plan_range(shop.project, "table", by_offset, 10)
    assert (ranges(planned), planned.warnings[0][-3:]) == ([(1, 4, 10)], ": 2")
    with klamm.Admin(shop.bootstrap) as admin:
        admin.delete_topic(shop.topic)
        admin.create_topic(shop.topic, 2)
    refused(shop, "the topic was made anew")


# ---- what is refused


@pytest.mark.parametrize(
    ("old", "new", "name", "words"),
    [
        ("", "", "copies", "copies writes to topic .*can only be replaced in tables"),
        ("", "", "tabel", "no pipeline called 'tabel'"),
        ('to_table("orders")', 'to_table("orders"), mode="upsert", keys="n"', "table", "mode 'upsert'"),
        ('to_table("orders")', 'to_table("others")', "table", "has committed no batch to its table yet"),
        (
            "def table(orders):",
            'def table(others):\n    return others\n\n@source(table="orders")\ndef others(rows):\n'
            '    return rows\n\n@pipeline(to=to_table("unused"))\ndef unused(orders):',
            "table",
            "reads the table orders, of which only all rows can be read again",
        ),
        (
            "def table(orders):",
            'def table(orders, others):\n    return orders\n\n@source(topic="{topic}", schema="n BIGINT")\n'
            'def others(rows):\n    return rows\n\n@pipeline(to=to_table("unused"))\ndef unused(orders):',
            "table",
            "reads a topic through several sources",
        ),
    ],
)
def test_pipelines_that_cannot_have_a_range_replayed(
    shop: Shop, old: str, new: str, name: str, words: str
) -> None:
    shop.write(TABLE.replace(old, new, 1) if old else TABLE)
    refused(shop, words, name=name)


def test_tables_that_cannot_have_a_range_replayed(shop: Shop) -> None:
    offsets = Path(State(shop.project).checkpoint("table", _attempt(shop))) / "offsets"
    offsets.mkdir(parents=True)
    ends = [json.dumps(at(shop, 20)), json.dumps(at(shop, 13))]
    (offsets / str(BATCHES - 1)).write_text("\n".join(["v1", "{}", *ends]))
    refused(shop, "reads a topic through several sources")
    shutil.rmtree(offsets)
    keep(shop, replace(_attempt(shop), table="tables/others"))
    refused(shop, "writes to another table than in its last run")
    keep(shop, replace(_attempt(shop), table="tables/orders", number=0))
    refused(shop, "does not know the last attempt")
    keep(shop, replace(_attempt(shop), number=1))
    table = table_of(shop)
    without = pa.schema([("n", pa.int64())])
    made = Batch(f"{shop.name}.table", 1, BATCHES, at(shop, 20), at(shop, 20))
    table.append(written(table, [{"n": 1}, {"n": 2}], without), made, without, ())
    refused(shop, "2 rows of the table do not tell, by _topic, _partition, _offset, from which record")
    stateful = replace(made, number=BATCHES + 1, keeps_state=True)
    table.append([], stateful, SCHEMA, ())
    refused(shop, "table keeps state")


def test_a_table_without_coordinates_is_refused(shop: Shop) -> None:
    shutil.rmtree(shop.table("orders"))
    add(shop, table_of(shop), 0, 0, 20, pa.schema([("n", pa.int64())]))
    refused(shop, "has no _topic, _partition, _offset: its rows do not tell from which records")


def _attempt(shop: Shop) -> Attempt:
    found = State(shop.project).attempt("table")
    assert found is not None
    return found


class NoSession:
    """Stands in for a session that is not used."""


def test_a_plan_that_is_out_of_date_is_not_carried_out(shop: Shop) -> None:
    session: Any = NoSession()
    planned = plan_range(shop.project, "table", 5, 10)
    with State(shop.project).lock("redriving", "redrive.lock"), pytest.raises(ProjectBusy, match="redriving"):
        carry_out_range(shop.project, planned, spark=session)
    table = table_of(shop)
    other = Replay(f"{shop.name}.table", 1, "other", {shop.topic: {0: Range(1, 2)}})
    swap_range(table, other)
    with pytest.raises(ReplayRefused, match="was replayed after"):
        carry_out_range(shop.project, planned, spark=session)
    planned = plan_range(shop.project, "table", 5, 10)
    keep(shop, replace(_attempt(shop), number=2))
    with pytest.raises(ReplayRefused, match="was replayed after"):
        carry_out_range(shop.project, planned, spark=session)


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_a_killed_replay_has_left_is_removed_by_the_next(shop: Shop, is_committed: bool) -> None:
    """All of it, or only its log if its files are the table's."""
    state = State(shop.project)
    table = table_of(shop)
    begun = replace(_attempt(shop), replay="t1")
    other = beside(table, "t1")
    other.append(written(other, rows(shop, 5, 6), SCHEMA), Batch("any", 1, 0), SCHEMA, ())
    checkpoint = Path(state.checkpoint("table", begun))
    checkpoint.mkdir(parents=True)
    state.keep_range_replay("table", begun)
    planned = plan_range(shop.project, "table", 5, 10)
    if is_committed:
        owner = f"{shop.name}.table"
        swap_range(table, Replay(owner, 1, "t1", {shop.topic: {n: Range(5, 6) for n in range(2)}}))
    keep(shop, replace(_attempt(shop), number=2))  # so that the next one ends early
    session: Any = NoSession()
    with pytest.raises(ReplayRefused):
        carry_out_range(shop.project, planned, spark=session)
    assert (Path(other.location).exists(), checkpoint.exists()) == (is_committed, False)
    assert not (Path(other.location) / "_delta_log").exists()
    assert state.range_replay("table") is None
    assert len(shop.delta("orders").to_pyarrow_table()) == BATCHES * EACH


def test_the_name_of_an_epoch_has_the_replay_in_it() -> None:
    attempt = Attempt.first({})
    name = replace(attempt, replay="t1").epoch
    assert name == f"{attempt.pipeline_id}.t1.1"
    assert EpochName.parse(name) == (attempt.pipeline_id, "t1", 1)
    assert EpochName.parse(attempt.epoch) == (attempt.pipeline_id, "", 1)
    assert [EpochName.parse(each).number for each in ("", "x", "x.y")] == [None, None, None]
    later = attempt.next({"orders": {"t": {"0": 5}}}).next({"orders": {"t": {"0": 9}}})
    assert later.is_given_up(f"{attempt.pipeline_id}.7") and not later.is_given_up(
        f"{attempt.pipeline_id}.t1.7"
    )
    read = [later.reads_anew(name, ["orders"], "t", 0, offset) for offset in (4, 5, None)]
    assert read == [False, True, False]


# ---- dead-letter records


def dead_letter(shop: Shop, offset: int, epoch: str) -> None:
    """A dead-letter record of partition 0."""
    headers = {
        "klamm.pipeline": "table",
        "klamm.rule": "rule",
        "klamm.source": "orders",
        "klamm.topic": shop.topic,
        "klamm.partition": "0",
        "klamm.offset": str(offset),
        "klamm.generation": epoch,
        "klamm.content": "record",
    }
    with klamm.Producer(shop.bootstrap) as producer:
        encoded = {name: value.encode() for name, value in headers.items()}
        producer.send(shop.project.dead_letters, b"{}", headers=encoded, partition=0).result()


def waiting(shop: Shop) -> tuple[int, int]:
    """How many dead-letter records a redrive into the table finds, and one to the topics."""
    to_table = redrive_to_table(shop.project, "table", dry_run=True).total
    return to_table, redrive(shop.project, dry_run=True).total


def test_a_replay_settles_the_dead_letters_of_its_range(shop: Shop) -> None:
    with klamm.Admin(shop.bootstrap) as admin:
        admin.create_topic(shop.project.dead_letters, 1)
    epoch = _attempt(shop).epoch
    for offset in (4, 5, 9, 10):
        dead_letter(shop, offset, epoch)
    begun = replace(_attempt(shop), replay="t1")
    dead_letter(shop, 5, begun.epoch)
    assert waiting(shop) == (4, 4), "those of a replay that is not finished do not count"
    owner = f"{shop.name}.table"
    done = Replay(owner, 1, "t1", {shop.topic: {0: Range(5, 10)}}, shop.project.dead_letters, {0: 4})
    swap_range(table_of(shop), done)
    assert waiting(shop) == (3, 3), "5 and 9 were read again, 5 is still bad"
    dead_letter(shop, 6, replace(begun, replay="given up").epoch)
    assert waiting(shop) == (3, 3)
    # A later replay of everything reads all again.
    keep(shop, _attempt(shop).next({"orders": at(shop, 0)}))
    assert waiting(shop)[0] == 0


def test_dead_letters_that_went_back_to_the_topic_stand_in_the_way(shop: Shop) -> None:
    with klamm.Admin(shop.bootstrap) as admin:
        admin.create_topic(shop.project.dead_letters, 1)
    dead_letter(shop, 5, _attempt(shop).epoch)
    assert plan_range(shop.project, "table", 3, 9).warnings == ()
    redrive(shop.project)
    refused(shop, "1 dead-letter records of that range were handled by a redrive --to-topic", 3, 9)
    assert plan_range(shop.project, "table", 6, 9).replaced_rows == 6
    # A replay of everything since then has read the original, and skipped what was sent back.
    first = _attempt(shop)
    keep(shop, first.next({"orders": at(shop, 0)}))
    assert plan_range(shop.project, "table", 3, 9).warnings == ()
    keep(shop, first)
    with klamm.Admin(shop.bootstrap) as admin:
        admin.delete_records({(shop.project.dead_letters, 0): 1})
    (warning,) = plan_range(shop.project, "table", 3, 9).warnings
    assert "the oldest dead-letter records are no longer in" in warning


# ---- with Spark

RULES = """
@source(topic="{topic}", schema="n BIGINT")
@expect("n is even", "n % 2 = 0", otherwise="dead_letter")
def orders(rows):
    return rows.withColumn("twice", rows.n * 2)

@pipeline(to=to_table("orders"))
def table(orders):
    return orders
"""
MENDED = RULES.replace("n % 2 = 0", "n % 3 != 0").replace("rows.n * 2)", "rows.n * -2)")
FORGIVING = RULES.replace("n % 2 = 0", "n >= 0")


def made(shop: Shop) -> dict[int, int]:
    found = shop.delta("orders").to_pyarrow_table(columns=["n", "twice"]).to_pylist()
    assert len({row["n"] for row in found}) == len(found), "a record has two rows"
    return {row["n"]: row["twice"] for row in sorted(found, key=lambda row: row["n"])}


def expected(old: Iterable[int], new: Iterable[int]) -> dict[int, int]:
    found = {n: 2 * n for n in old if n % 2 == 0} | {n: -2 * n for n in new if n % 3}
    return dict(sorted(found.items()))


def test_a_range_is_made_anew_while_the_project_is_in_use(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, RULES)
    shop.send(40)  # n is at offset n // 2 of partition n % 2
    run(shop.project, once=True, spark=spark, upkeep=None)
    shop.write(MENDED)
    before = _attempt(shop), table_of(shop).reached(f"{shop.name}.table"), group(shop)
    with State(shop.project).lock("running its pipelines"):
        planned = plan_range(shop.project, "table", 5, 10)
        assert (planned.records, planned.replaced_rows) == (10, 5)
        done = carry_out_range(shop.project, planned, spark=spark)
    assert (done.rows, done.replaced) == (7, 5)
    assert made(shop) == expected([*range(10), *range(20, 40)], range(10, 20))
    assert (_attempt(shop), table_of(shop).reached(f"{shop.name}.table"), group(shop)) == before
    what = history(table_of(shop), 1)[0].what
    assert (
        what
        == f"replay of offsets 5 to 9 of {shop.topic}-0, offsets 5 to 9 of {shop.topic}-1, 5 rows replaced"
    )
    # Of the range, those are bad now that 3 divides; outside of it, those that are odd were bad.
    assert redrive_to_table(shop.project, "table", dry_run=True).total == 15 + 3
    left = [path.name for path in shop.table("orders").glob("replay-*/*") if path.suffix != ".parquet"]
    assert left == [] and State(shop.project).range_replay("table") is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_dead_letters_replays_and_redrives_in_any_order(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, RULES)
    shop.send(40)
    run(shop.project, once=True, spark=spark)

    def replay_range(start: Any, end: Any) -> Swapped:
        return carry_out_range(shop.project, plan_range(shop.project, "table", start, end), spark=spark)

    shop.write(MENDED)
    assert replay_range(5, 10) == (7, 5)
    assert made(shop) == expected([*range(10), *range(20, 40)], range(10, 20))

    # What is still bad is redriven, once: what was bad before in the range has its row already.
    shop.write(FORGIVING)
    assert redrive_to_table(shop.project, "table", spark=spark).rows == 15 + 3
    assert sorted(made(shop)) == list(range(40))
    assert waiting(shop) == (0, 0)

    # A range replaces the rows of redriven records, too.
    shop.write(MENDED)
    assert replay_range("earliest", "latest") == (26, 40)
    assert made(shop) == expected([], range(40))
    assert waiting(shop) == (14, 14)

    # What goes back to the topic has rows of its own, which a range would not find.
    shop.write(FORGIVING)
    assert redrive(shop.project).total == 14
    run(shop.project, once=True, spark=spark)
    assert sorted(made(shop)) == list(range(40))
    refused(shop, "14 dead-letter records of that range were handled by a redrive --to-topic", 0, 20)
    replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"), spark=spark)
    assert sorted(made(shop)) == list(range(40))
    assert replay_range("earliest", 20) == (40, 40)
    assert sorted(made(shop)) == list(range(40))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_replay_that_fails_leaves_the_table_as_it_was(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, RULES)
    shop.send(40)
    run(shop.project, once=True, spark=spark)
    before = made(shop)
    for code, words in (
        (MENDED.replace("return orders", 'return orders.dropDuplicates(["n"])'), "keeps state"),
        (MENDED.replace("return orders", 'return orders.drop("_offset")'), "have no _offset now"),
        (MENDED.replace("return orders", "return orders.union(orders)"), "through several sources"),
        (MENDED.replace("rows.n * -2)", "rows.n * -2.5)"), "twice is DOUBLE now, and BIGINT in the table"),
        (
            MENDED.replace("return orders", "return orders.filter('raise_error(n) IS NULL')"),
            "was not replayed, and its table is as it was",
        ),
        (
            MENDED.replace("return orders", "return orders.withColumn('_offset', orders._offset + 5)"),
            "do not",
        ),
    ):
        shop.write(code)
        planned = plan_range(shop.project, "table", 5, 10)
        with pytest.raises(PipelineError, match=words):
            carry_out_range(shop.project, planned, spark=spark)
        assert made(shop) == before, words
        assert not list(shop.table("orders").glob("replay-*"))
        assert waiting(shop)[0] == 20, words
    shop.write(MENDED)
    planned = plan_range(shop.project, "table", 5, 10)
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.delete_records({(shop.topic, 0): 7})
    with pytest.raises(PipelineError, match="was not replayed, and its table is as it was"):
        carry_out_range(shop.project, planned, spark=spark)
    assert made(shop) == before
    # Columns may be new.
    shop.write(MENDED.replace("return orders", "return orders.selectExpr('*', 'n AS more')"))
    planned = plan_range(shop.project, "table", 5, 10)
    assert planned.warnings[0].endswith("stay as they are: 2")
    assert carry_out_range(shop.project, planned, spark=spark).replaced == 3
    anew = [n for n in range(10, 20) if n % 2 or n >= 14]
    assert made(shop) == expected([n for n in range(40) if n not in anew], anew)


def group(shop: Shop) -> dict[Any, int]:
    with klamm.Admin(shop.bootstrap) as admin:
        found = admin.list_group_offsets(f"{shop.name}.table")
        return {place: committed.offset for place, committed in found.items()}
