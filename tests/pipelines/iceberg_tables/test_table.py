"""An Iceberg table: what a pipeline has reached, and that a batch is in it once."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction

from klamm.pipelines.iceberg_tables import files as iceberg_files
from klamm.pipelines.iceberg_tables.table import CatalogUnknown, IcebergTable
from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.tables.columns import TableRefused
from klamm.pipelines.tables.table import BatchCommittedElsewhere, Reached
from tests.pipelines.iceberg_tables.writing import (
    NAME,
    OWNER,
    PLACE,
    append,
    batch_of,
    make_table,
    numbers_in,
    rows_in,
    write,
)


def test_a_table_tells_what_its_pipeline_has_reached(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    assert (table.newest(), table.reached(OWNER), table.last_batch(OWNER, 1)) == (None, None, None)
    append(table, range(0, 5), 0)
    append(table, range(5, 9), 1)
    assert (table.reached(OWNER), table.last_batch(OWNER, 1)) == (Reached(1, 1, False), 1)
    assert table.last_batch(OWNER, 2) is None
    assert table.reached("shop.other") is None
    assert table.offsets(OWNER, {"orders": ["0", "1"], "more": ["0"]}) == {"orders": {"0": 9}}
    append(table, range(9, 10), 0, attempt=2)
    assert table.epochs(OWNER) == [("id.1", {"orders": {"0": 0}}), ("id.2", {"orders": {"0": 9}})]
    assert numbers_in(table) == list(range(10))


def test_what_a_pipeline_has_reached_outlives_its_snapshots(tmp_path: Path) -> None:
    """Snapshots expire, and other writers add theirs."""
    table = make_table(tmp_path)
    append(table, range(0, 5), 0)
    append(table, range(5, 9), 1)
    newest = table.newest()
    assert newest is not None
    newest.append(pa.table({"n": pa.array([100], pa.int64())}))
    newest.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(hours=1)).commit()
    again = make_table(tmp_path)
    kept = again.newest()
    assert kept is not None
    assert len(kept.snapshots()) == 1
    assert again.reached(OWNER) == Reached(1, 1, False)
    assert again.offsets(OWNER, {"orders": ["0"]}) == {"orders": {"0": 9}}
    append(again, range(9, 10), 2)
    assert numbers_in(again) == [*range(10), 100]


def test_a_batch_is_committed_once(tmp_path: Path) -> None:
    """Also by two runs that do not know of each other: the second one fails, whenever it looked."""
    table, other = make_table(tmp_path), make_table(tmp_path)
    append(table, range(0, 5), 0)
    late = write(other, [{"n": number} for number in range(5, 9)])
    append(table, range(5, 9), 1)
    with pytest.raises(BatchCommittedElsewhere, match=f"has committed batch 1 of attempt 1.*{NAME}"):
        other.append(late, batch_of(range(5, 9), 1), pa.schema([]), ())
    with pytest.raises(BatchCommittedElsewhere):
        append(other, range(5, 9), 1)
    assert numbers_in(table) == list(range(9))


def test_a_batch_is_added_beside_what_others_have_added_meanwhile(tmp_path: Path) -> None:
    table, other = make_table(tmp_path), make_table(tmp_path)
    append(table, range(0, 5), 0)
    late = write(table, [{"n": number} for number in range(5, 9)])
    theirs = other.newest()
    assert theirs is not None
    theirs.append(pa.table({"n": pa.array([100], pa.int64())}))
    table.append(late, batch_of(range(5, 9), 1), pa.schema([]), ())
    assert numbers_in(table) == [*range(9), 100]


def test_a_later_attempt_fences_an_earlier_one(tmp_path: Path) -> None:
    table, hung = make_table(tmp_path), make_table(tmp_path)
    append(table, range(0, 5), 0)
    append(table, range(5, 9), 0, attempt=2)
    with pytest.raises(BatchCommittedElsewhere, match="or a later attempt"):
        append(hung, range(5, 9), 1)
    assert numbers_in(table) == list(range(9))


def test_of_many_runs_at_once_one_commits_a_batch(tmp_path: Path) -> None:
    append(make_table(tmp_path), range(0, 1), 0)
    begin = threading.Barrier(3)
    failed: list[str] = []

    def commit() -> None:
        table = make_table(tmp_path)
        begin.wait()
        for batch in range(1, 5):
            try:
                append(table, range(batch, batch + 1), batch)
            except BatchCommittedElsewhere as error:
                failed.append(str(error))

    runs = [threading.Thread(target=commit) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert numbers_in(make_table(tmp_path)) == list(range(5))
    assert len(failed) == 2 * 4


def test_a_commit_whose_answer_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try of the batch asks the table, as after a kill."""
    table = make_table(tmp_path)
    append(table, range(0, 5), 0)
    original = Transaction.commit_transaction

    def lost(transaction: Transaction) -> Any:
        original(transaction)
        raise ConnectionError("the catalog did not answer")

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(Transaction, "commit_transaction", lost)
        append(table, range(5, 9), 1)
    assert make_table(tmp_path).last_batch(OWNER, 1) == 1
    assert numbers_in(table) == list(range(9))


def test_a_commit_that_never_succeeds_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 5), 0)
    tries = 0

    def refused(transaction: Transaction) -> Any:
        nonlocal tries
        tries += 1
        raise CommitFailedException("always another one")

    with monkeypatch.context() as patch, pytest.raises(CommitFailedException):
        patch.setattr(Transaction, "commit_transaction", refused)
        append(table, range(5, 9), 1)
    assert tries == 10
    assert (numbers_in(table), table.last_batch(OWNER, 1)) == (list(range(5)), 0)


def test_a_batch_without_rows_is_noted(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 0), 0)
    assert (table.last_batch(OWNER, 1), rows_in(table)) == (0, [])
    append(table, range(0, 2), 1)
    assert numbers_in(table) == [0, 1]


def test_all_rows_are_replaced_in_one_snapshot(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for batch, numbers in enumerate((range(0, 5), range(5, 9), range(0, 0), range(3))):
        files = write(table, [{"n": number} for number in numbers])
        table.replace_all(files, batch_of(numbers, batch), pa.schema([]), ())
        newest = table.newest()
        assert newest is not None
        assert (numbers_in(table), len(newest.snapshots())) == (list(numbers), batch + 1)


def test_columns_are_added_and_older_rows_have_nulls(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 1), 0)
    wider = parse_ddl("colour string, n bigint, tags array<string>")
    files = write(table, [{"colour": "red", "n": 1, "tags": ["a"]}], wider)
    table.append(files, batch_of(range(1, 2), 1), pa.schema([]), ())
    append(table, range(2, 3), 2)
    assert sorted(rows_in(table), key=lambda row: row["n"]) == [
        {"n": 0, "colour": None, "tags": None},
        {"n": 1, "colour": "red", "tags": ["a"]},
        {"n": 2, "colour": None, "tags": None},
    ]


def test_rows_keep_their_columns_when_these_are_renamed(tmp_path: Path) -> None:
    """Files have the ids of columns, not only their names."""
    table = make_table(tmp_path)
    append(table, range(0, 2), 0)
    newest = table.newest()
    assert newest is not None
    with newest.update_schema() as update:
        update.rename_column("n", "number")
    assert sorted(row["number"] for row in rows_in(table)) == [0, 1]


def test_columns_are_spelt_as_the_table_does(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 1), 0)
    assert table.adapt(parse_ddl("N bigint"), (), OWNER, PLACE) == {"N": "n"}


PARTITIONS = [
    ("string", ["red", "", None, "a/b=c d", "x" * 200]),
    ("date", [datetime(2026, 1, 31).date(), None]),
    ("timestamp", [datetime(2026, 1, 31, 12, 30, 0, 123456, UTC)]),
    ("int", [-1, 0, 7]),
    ("boolean", [True, False, None]),
    ("decimal(20,2)", [None, 5]),
]


@pytest.mark.parametrize(("kind", "values"), PARTITIONS)
def test_each_partition_has_its_rows(kind: str, values: list[Any], tmp_path: Path) -> None:
    table = make_table(tmp_path)
    schema = parse_ddl(f"part {kind}, n bigint")
    rows = [{"part": value, "n": number} for number, value in enumerate([*values, *values])]
    table.append(write(table, rows, schema, ("part",)), batch_of(range(9), 0), pa.schema([]), ("part",))
    newest = table.newest()
    assert newest is not None
    assert len(list(newest.scan().plan_files())) == len(values)
    assert sorted(row["n"] for row in rows_in(table)) == list(range(2 * len(values)))
    from pyiceberg.expressions import EqualTo, IsNull

    for number, value in enumerate(values):
        condition = IsNull("part") if value is None else EqualTo("part", value)
        found = newest.scan(row_filter=condition).to_arrow()["n"].to_pylist()
        assert sorted(found) == [number, number + len(values)], value


def test_a_partition_that_statistics_do_not_tell_is_refused(tmp_path: Path) -> None:
    """Otherwise pyiceberg would file its rows under null, and readers who filter would miss them."""
    table = make_table(tmp_path)
    schema = parse_ddl("part string, n bigint")
    table.adapt(schema, ("part",), OWNER, PLACE)
    newest = table.newest()
    assert newest is not None
    with newest.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.column.part": "counts"})
    files = write(table, [{"part": "red", "n": 1}], schema, ("part",))
    with pytest.raises(TableRefused, match="no statistics of the partition column part"):
        table.append(files, batch_of(range(1), 0), pa.schema([]), ("part",))
    assert (rows_in(table), table.last_batch(OWNER, 1)) == ([], None)


def test_a_table_of_others_is_not_ours_unless_it_is_empty(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.adapt(parse_ddl("n bigint"), (), "shop.other", PLACE)
    assert table.is_created_by(OWNER)
    newest = table.newest()
    assert newest is not None
    newest.append(pa.table({"n": pa.array([1], pa.int64())}))
    assert (table.is_created_by(OWNER), table.is_created_by("shop.other")) == (False, True)


def test_metadata_is_synced_before_the_catalog_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss right after a commit must not leave a table whose metadata is empty."""
    synced: list[Path] = []
    monkeypatch.setattr(iceberg_files, "sync", synced.append)
    table = make_table(tmp_path)
    append(table, range(0, 5), 0)
    newest = table.newest()
    assert newest is not None
    snapshot = newest.current_snapshot()
    assert snapshot is not None
    names = [newest.metadata_location, snapshot.manifest_list]
    names += [each.manifest_path for each in snapshot.manifests(newest.io)]
    assert {Path(name) for name in names} <= set(synced)


def test_a_catalog_that_is_not_configured_is_named() -> None:
    with pytest.raises(
        CatalogUnknown, match=r"the catalog lake of .* Set type, uri and warehouse under \[ice"
    ):
        IcebergTable(NAME, {}).newest()
