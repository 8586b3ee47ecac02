"""Rows of a range of records: found by the statistics of files or by reading them, and replaced in one commit
while others write to the table."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from klamm.pipelines.tables import range_replacing
from klamm.pipelines.tables.appended import TableLog
from klamm.pipelines.tables.range_replacing import (
    CannotReplace,
    Replay,
    Swapped,
    count_inside,
    dead_letters_before,
    is_in,
    replayed_range,
    replays_in,
    swap_range,
)
from klamm.pipelines.tables.ranges import (
    Bounds,
    Range,
    Ranges,
    between,
    count_records,
    ends,
    from_json,
    in_words,
    includes,
    rows_in,
    share,
    starts,
    to_json,
)
from klamm.pipelines.tables.replacing import beside, kept_versions
from klamm.pipelines.tables.table import Batch, Reached, Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up
from klamm.pipelines.tables.versions import diff, history, restore
from tests.pipelines.tables.writing import OWNER, make_table, written

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
BY_TEXT = ("text",)
MERGE = UpkeepPolicy(least_files=2)

Rows = list[dict[str, Any]]


def rows(numbers: Iterable[int], text: str = "old", partition: int = 0, topic: str = "orders") -> Rows:
    return [{"text": text, "_topic": topic, "_partition": partition, "_offset": number} for number in numbers]


def add(table: Table, batch: int, made: Rows, by: tuple[str, ...] = ()) -> None:
    end = max(row["_offset"] for row in made) + 1
    commit = Batch(OWNER, 1, batch, {"orders": {"0": end - len(made)}}, {"orders": {"0": end}})
    table.append(written(table, made, SCHEMA, by), commit, SCHEMA, by)


def make(tmp_path: Path, batches: int = 3, by: tuple[str, ...] = ()) -> Table:
    """Batches of ten rows."""
    table = make_table(tmp_path)
    for batch in range(batches):
        add(table, batch, rows(range(batch * 10, batch * 10 + 10)), by)
    return table


def replay(
    table: Table, ranges: Ranges, new: Rows, number: int = 1, by: tuple[str, ...] = (), **more: Any
) -> Swapped:
    token = f"t{number}"
    other = beside(table, token)
    other.append(written(other, new, SCHEMA, by), Batch(OWNER, 1, 0), SCHEMA, by)
    return swap_range(table, Replay(OWNER, number, token, ranges, **more))


def of_orders(start: int, end: int, partition: int = 0) -> Ranges:
    return {"orders": {partition: Range(start, end)}}


def texts(table: Table) -> dict[int, str]:
    """The text of each offset. No record may have two rows."""
    newest = Table(table.location).newest()
    assert newest is not None
    found = newest.to_pyarrow_table(columns=["_offset", "text"]).to_pylist()
    assert len({row["_offset"] for row in found}) == len(found), "a record has two rows"
    return {row["_offset"]: row["text"] for row in sorted(found, key=lambda row: row["_offset"])}


def expected(old: Iterable[int], new: Iterable[int]) -> dict[int, str]:
    return dict(sorted({**dict.fromkeys(old, "old"), **dict.fromkeys(new, "new")}.items()))


# ---- the core


def test_ranges_lie_between_two_positions() -> None:
    found = between({"a": {"0": 5, "1": 7, "2": 0}, "b": {"0": 1}}, {"a": {"0": 9, "1": 7}, "c": {"0": 1}})
    assert found == {"a": {0: Range(5, 9)}}
    assert (count_records(found), starts(found), ends(found)) == (4, {"a": {"0": 5}}, {"a": {"0": 9}})
    assert from_json(to_json(found)) == found
    assert [includes(found, "a", 0, offset) for offset in (4, 5, 8, 9, None)] == [0, 1, 1, 0, 0]
    assert not includes(found, "a", 1, 6) and not includes(found, "b", 0, 6)
    many = {"a": {number: Range(0, 1) for number in range(5)}}
    assert in_words(found) == "offsets 5 to 8 of a-0"
    assert in_words(many).endswith("offsets 0 to 0 of a-2 and 2 more partitions")


RANGES: Ranges = {"orders": {0: Range(10, 20), 1: Range(12, 30)}}


@pytest.mark.parametrize(
    ("topic", "partitions", "offsets", "nulls", "answer"),
    [
        ("orders", (0, 0), (10, 19), 0, "all"),
        ("orders", (0, 1), (12, 19), 0, "all"),
        ("orders", (0, 1), (10, 19), 0, "some"),
        ("orders", (0, 0), (9, 19), 0, "some"),
        ("orders", (0, 0), (10, 20), 0, "some"),
        ("orders", (0, 0), (20, 25), 0, "none"),
        ("orders", (0, 1), (20, 25), 0, "some"),
        ("orders", (2, 9), (10, 19), 0, "none"),
        ("others", (0, 0), (10, 19), 0, "none"),
        (None, (0, 0), (10, 19), 0, "some"),
        (None, (0, 0), (0, 9), 0, "none"),
        ("orders", (0, 0), (10, 19), 1, "some"),
        ("orders", (0, 0), (10, 19), None, "some"),
        ("orders", None, (10, 19), 0, "some"),
        ("orders", (0, 0), None, 0, "some"),
        ("orders", (0, 2**31), (12, 19), 0, "some"),
    ],
)
def test_statistics_tell_of_most_files(
    topic: str | None,
    partitions: tuple[int, int] | None,
    offsets: tuple[int, int] | None,
    nulls: int | None,
    answer: str,
) -> None:
    assert share(Bounds(10, topic, partitions, offsets, nulls), RANGES) == answer
    assert share(Bounds(0, topic, partitions, offsets, nulls), RANGES) == "none"


def test_statistics_and_rows_never_disagree() -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for _ in range(300):
        made = [
            (
                chance.choice(["a", "b", None]),
                chance.choice([0, 1, 2, None]),
                chance.choice([*range(8), None]),
            )
            for _ in range(chance.randint(1, 4))
        ]
        table = pa.table(
            {
                "_topic": pa.array([row[0] for row in made], pa.string()),
                "_partition": pa.array([row[1] for row in made], pa.int32()),
                "_offset": pa.array([row[2] for row in made], pa.int64()),
            }
        )
        ranges: Ranges = {
            topic: {number: Range(first, first + chance.randint(1, 5))}
            for topic in ("a", "b")
            if chance.random() < 0.7
            for number, first in [(chance.randint(0, 1), chance.randint(0, 5))]
        }
        mask = rows_in(table, ranges).tolist()
        wanted = [row[0] is not None and includes(ranges, row[0], row[1], row[2]) for row in made]
        assert mask == wanted, f"seed {seed}"
        known = [[row[index] for row in made if row[index] is not None] for index in range(3)]
        pairs: list[Any] = [(min(values), max(values)) if values else None for values in known]
        topic = pairs[0][0] if pairs[0] and pairs[0][0] == pairs[0][1] else None
        nulls = max(len(made) - len(values) for values in known)
        told = share(Bounds(len(made), topic, pairs[1], pairs[2], nulls), ranges)
        if nulls == 0:
            assert told == "some" or (told == "all") == all(mask), f"seed {seed}"
        assert told != "none" or not any(mask), f"seed {seed}"


def test_a_long_topic_is_not_known_by_its_statistics() -> None:
    name = "o" * 40
    action = {
        "num_records": 1,
        **{f"{kind}._topic": name[:32] for kind in ("min", "max")},
        **{f"{kind}.{each}": 0 for kind in ("min", "max") for each in ("_partition", "_offset")},
        **{f"null_count.{each}": 0 for each in ("_topic", "_partition", "_offset")},
    }
    assert Bounds.of(action) == Bounds(1, None, (0, 0), (0, 0), 0)
    by_partition = {**action, "partition._topic": "orders"}
    del by_partition["null_count._topic"]
    assert Bounds.of(by_partition) == Bounds(1, "orders", (0, 0), (0, 0), 0)
    assert Bounds.of({"num_records": 3}) == Bounds(3)


# ---- tables


@pytest.mark.parametrize("by", [(), BY_TEXT])
@pytest.mark.parametrize("is_merged", [False, True])
def test_rows_of_a_range_are_replaced_and_others_stay(
    tmp_path: Path, is_merged: bool, by: tuple[str, ...]
) -> None:
    table = make(tmp_path, by=by)
    if is_merged:
        assert keep_up(table, MERGE, 0).into == 1
    before = table.newest()
    assert before is not None
    version = before.version()
    ranges = of_orders(5, 22)
    assert count_inside(table, ranges) == (17, 0)
    done = replay(table, ranges, rows(range(6, 22), "new"), by=by)
    assert done == Swapped(16, 17)
    assert texts(table) == expected([*range(5), *range(22, 30)], range(6, 22))
    newest = Table(table.location).newest()
    assert newest is not None and newest.version() == version + 1, "one commit"
    # The pipeline is where it was, and goes on.
    assert table.reached(OWNER) == Reached(1, 2, False)
    assert table.offsets(OWNER, {"orders": ["0"]}) == {"orders": {"0": 30}}
    add(table, 3, rows(range(30, 40)), by)
    found = diff(table, version, version + 1)
    assert (found.gone.num_rows, found.added.num_rows) == (17, 16)
    told = history(table)[1]
    assert (told.what, told.rows) == ("replay of offsets 5 to 21 of orders-0, 17 rows replaced", 16)
    # The files that were written for rows that stay have statistics, so the next replay need not read them.
    assert count_inside(table, of_orders(0, 5)) == (5, 0)
    restore(table, version)
    assert texts(table) == expected(range(30), [])


def test_rows_of_other_partitions_and_topics_stay(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    add(table, 0, rows(range(10)) + rows(range(100, 110), "one", 1) + rows(range(200, 210), "x", 0, "others"))
    ranges: Ranges = {"orders": {0: Range(0, 300), 7: Range(0, 300)}}
    assert replay(table, ranges, []) == Swapped(0, 10)
    assert set(texts(table)) == {*range(100, 110), *range(200, 210)}


def test_a_backfill_replaces_nothing_and_streams_read_it_as_new_rows(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    add(table, 0, rows(range(50, 60)))
    log = TableLog(table)
    place = log.first_place("latest")
    assert replay(table, of_orders(0, 50), rows(range(50), "new")) == Swapped(50, 0)
    assert texts(table) == expected(range(50, 60), range(50))
    assert [file.rows for file in log.files_between(place, log.advance(place, 1))] == [50]
    # A later replay of everything reads these records too.
    newest = table.newest()
    assert newest is not None
    assert [each.position for each in kept_versions(newest, OWNER)] == [{"orders": {"0": 0}}]


def test_a_replay_without_an_end_keeps_what_a_range_has_replaced(tmp_path: Path) -> None:
    """It goes back to a version of the table. One from before the range has the old rows."""
    table = make(tmp_path)
    replay(table, of_orders(0, 5), rows(range(5), "new"))
    add(table, 3, rows(range(30, 40)))
    newest = table.newest()
    assert newest is not None
    versions = [(each.version, each.position["orders"]["0"]) for each in kept_versions(newest, OWNER)]
    assert versions == [(3, 30), (-1, 0)]


def test_what_was_replayed_is_in_the_log_for_good(tmp_path: Path) -> None:
    table = make(tmp_path)
    replay(table, of_orders(5, 9), [], dead_letters="bad", dead_letter_ends={0: 17})
    replay(table, of_orders(2, 30, partition=3), [], number=2)
    newest = table.newest()
    assert newest is not None
    newest.create_checkpoint()
    for commit in (tmp_path / "orders/_delta_log").glob("*.json"):
        commit.unlink()
    again = make_table(tmp_path)
    assert replays_in(again, OWNER) == 2
    assert (is_in(again, OWNER, "t1"), is_in(again, OWNER, "t3")) == (True, False)
    assert replayed_range(again, OWNER, 1, "orders", 0) == Range(5, 9)
    assert replayed_range(again, OWNER, 2, "orders", 0) is None
    assert dead_letters_before(again, OWNER, 1, "bad", 0) == 17
    assert dead_letters_before(again, OWNER, 2, "bad", 0) == 0


def test_columns_may_be_new_or_hold_partitions_or_be_missing_in_old_files(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    old = pa.schema([("text", pa.string())])
    table.append(written(table, [{"text": "?"}], old), Batch(OWNER, 1, 0), old, ())
    table.add_columns(_delta_fields(SCHEMA, ("_topic", "_partition", "_offset")))
    add(table, 1, rows(range(10)))
    assert count_inside(table, of_orders(3, 6)) == (3, 1), "the first row does not tell its record"
    newer = SCHEMA.append(pa.field("more", pa.int64()))
    other = beside(table, "t1")
    new = [{**row, "more": 7} for row in rows(range(3, 6), "new")]
    other.append(written(other, new, newer), Batch(OWNER, 1, 0), newer, ())
    assert swap_range(table, Replay(OWNER, 1, "t1", of_orders(3, 6))) == Swapped(3, 3)
    newest = table.newest()
    assert newest is not None
    found = newest.to_pyarrow_table().to_pylist()
    assert sorted(row["_offset"] for row in found if row["more"] == 7) == [3, 4, 5]
    assert len(found) == 11

    by = ("_topic", "_partition")
    split = make_table(tmp_path, "split")
    add(split, 0, rows(range(10)) + rows(range(20, 30), "one", 1), by)
    assert count_inside(split, of_orders(3, 25, 1)) == (5, 0)
    assert replay(split, of_orders(3, 25, 1), rows(range(22, 25), "new", 1), by=by) == Swapped(3, 5)
    assert {row: text for row, text in texts(split).items() if row >= 20} == {
        **dict.fromkeys(range(22, 25), "new"),
        **dict.fromkeys(range(25, 30), "one"),
    }


def _delta_fields(schema: pa.Schema, names: Sequence[str]) -> list[Any]:
    from klamm.pipelines.tables.columns import delta_schema

    return [each for each in delta_schema(schema).fields if each.name in names]


# ---- what goes wrong


def test_rows_of_other_records_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path)
    with pytest.raises(CannotReplace, match=r"2 of 5 new rows do not tell"):
        replay(table, of_orders(5, 8), rows(range(5, 10), "new"))
    with pytest.raises(CannotReplace, match=r"1 of 1 new rows do not tell"):
        replay(table, of_orders(5, 8), [{"text": "new"}], number=2)
    assert texts(table) == expected(range(30), [])


def test_files_that_are_gone_are_not_committed(tmp_path: Path) -> None:
    table = make(tmp_path)
    other = beside(table, "t1")
    (file,) = written(other, rows([5], "new"), SCHEMA)
    other.append([file], Batch(OWNER, 1, 0), SCHEMA, ())
    (Path(other.location) / file.path).unlink()
    with pytest.raises(CannotReplace, match="1 files that the replay has written"):
        swap_range(table, Replay(OWNER, 1, "t1", of_orders(5, 6)))
    assert texts(table) == expected(range(30), [])


def test_of_two_replays_of_the_same_number_one_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path)
    replay(table, of_orders(5, 8), rows(range(5, 8), "new"))
    with pytest.raises(CannotReplace, match="another replay"):
        swap_range(table, Replay(OWNER, 1, "other", of_orders(5, 8)))
    assert swap_range(table, Replay(OWNER, 1, "t1", of_orders(5, 8))).rows == 3, "it is there already"
    assert texts(table) == expected([*range(5), *range(8, 30)], range(5, 8))


def _append(table: Table) -> None:
    add(table, 3, rows(range(30, 40)))


def _merge(table: Table) -> None:
    assert keep_up(table, MERGE, 0).merged


def _redrive(table: Table) -> None:
    """A row of a record of the range, as another machine may write it."""
    add(table, 4, rows([50]))


@pytest.mark.parametrize("between", [_append, _merge, _redrive])
def test_a_commit_that_comes_between_is_looked_at(
    tmp_path: Path, between: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake itself does not notice that files which we remove were merged."""
    table = make(tmp_path)
    looked = range_replacing._check_there
    met = []

    def once(*arguments: Any) -> None:
        looked(*arguments)
        if not met:
            met.append(1)
            between(make_table(tmp_path))

    monkeypatch.setattr(range_replacing, "_check_there", once)
    ranges: Ranges = {"orders": {0: Range(5, 60)}} if between is _redrive else of_orders(5, 22)
    done = replay(table, ranges, rows(range(6, 22), "new"))
    assert met
    if between is _redrive:
        assert done == Swapped(16, 26)
        assert texts(table) == expected(range(5), range(6, 22))
    else:
        assert done == Swapped(16, 17)
        later = range(30, 40) if between is _append else range(0)
        assert texts(table) == expected([*range(5), *range(22, 30), *later], range(6, 22))


def test_a_pipeline_and_upkeep_go_on_meanwhile(tmp_path: Path) -> None:
    """Each batch of the pipeline is there once, and none fails, while ranges are replayed."""
    table = make(tmp_path)
    stop = threading.Event()
    failed: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            mine = make_table(tmp_path)
            while not stop.is_set():
                work(mine)
        except BaseException as error:
            failed.append(error)

    batches = iter(range(3, 10**6))

    def write(mine: Table) -> None:
        batch = next(batches)
        add(mine, batch, rows(range(batch * 10, batch * 10 + 10)))

    threads = [
        threading.Thread(target=run, args=(write,)),
        threading.Thread(target=run, args=(lambda mine: keep_up(mine, MERGE, 0),)),
    ]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 6):
            first = number * 4
            replay(table, of_orders(first, first + 7), rows(range(first, first + 7), "new"), number)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    last = next(batches) * 10
    assert texts(table) == expected([*range(4), *range(27, last)], range(4, 27))
    assert replays_in(table, OWNER) == 5
    reached = table.reached(OWNER)
    assert reached is not None and reached.batch == last // 10 - 1


def test_readers_find_a_version_that_has_begun_to_be_read(tmp_path: Path) -> None:
    table = make(tmp_path)
    reader = DeltaTable(table.location)
    replay(table, of_orders(5, 22), [])
    assert len(reader.to_pyarrow_table()) == 30
