"""The versions of a table: told in words, compared, and brought back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from klamm.pipelines.tables.replacing import beside, swap
from klamm.pipelines.tables.table import Batch, Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up
from klamm.pipelines.tables.versions import NoSuchVersion, diff, history, resolve_version, restore
from tests.pipelines.tables.writing import OWNER, SCHEMA, append, make_table, numbers_in, written


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two batches, whose files were merged."""
    table = make_table(tmp_path)
    append(table, range(0, 3), 0)
    append(table, range(3, 5), 1)
    keep_up(table, UpkeepPolicy(least_files=2), 0)
    return table


def numbers(rows: pa.Table) -> list[int]:
    return sorted(rows["n"].to_pylist())


def test_the_history_says_what_happened(table: Table) -> None:
    made = Batch(OWNER, 2, 0)
    other = beside(table, 2)
    other.append(written(other, [{"n": 7}]), made, SCHEMA, ())
    swap(table, 2, None, made)
    restore(table, 1)
    told = [(each.version, each.what, each.pipeline, each.rows) for each in history(table)]
    assert told == [
        (4, "version 1 restored", "", None),
        (3, "replay, attempt 2", OWNER, 1),
        (2, "small files merged", "", None),
        (1, "batch 1 of attempt 1", OWNER, 2),
        (0, "batch 0 of attempt 1", OWNER, 3),
    ]
    assert len(history(table, 2)) == 2
    assert numbers_in(table) == list(range(5))


def test_a_version_is_a_number_or_a_time(table: Table) -> None:
    assert [resolve_version(table, text) for text in ("0", "-1", None, "2")] == [0, 1, 2, 2]
    assert resolve_version(table, (datetime.now(UTC) + timedelta(hours=1)).isoformat()) == 2
    for text, words in (
        ("3", "has no version 3"),
        ("-7", "has no version -7"),
        ("soon", "'soon' is not a version"),
        ("2020-01-01", "has no version of 2020-01-01"),
    ):
        with pytest.raises(NoSuchVersion, match=words):
            resolve_version(table, text)


def test_versions_are_compared_by_their_rows(table: Table) -> None:
    found = diff(table, 0, 2)
    assert (numbers(found.added), numbers(found.gone)) == ([3, 4], [])
    merged = diff(table, 1, 2)
    assert (merged.added.num_rows, merged.gone.num_rows) == (0, 0), "merging changes no row"
    table.replace_all(written(table, [{"n": 4}, {"n": 4}, {"n": 9}]), Batch(OWNER, 1, 2), SCHEMA, ())
    found = diff(table, 2, 3)
    assert (numbers(found.added), numbers(found.gone)) == ([4, 9], [0, 1, 2, 3]), "rows may be there twice"


def test_versions_with_odd_partition_values_are_compared(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("p", pa.string())])
    for batch, value in enumerate(["12:00", "a%b c"]):
        rows = written(table, [{"n": batch, "p": value}], schema, ("p",))
        table.append(rows, Batch(OWNER, 1, batch), schema, ("p",))
    assert diff(table, 0, 1).added.to_pylist() == [{"n": 1, "p": "a%b c"}]


def test_what_vacuum_has_removed_is_told(table: Table) -> None:
    keep_up(table, UpkeepPolicy(keep_hours=0, vacuum_every_s=0), 10**11)
    with pytest.raises(NoSuchVersion, match="removed by vacuum"):
        diff(table, 0, 2)
    with pytest.raises(NoSuchVersion, match=r"version 0 .* cannot be restored"):
        restore(table, 0)
    with pytest.raises(NoSuchVersion, match="there is no table at"):
        history(Table(table.location + "-other"))
