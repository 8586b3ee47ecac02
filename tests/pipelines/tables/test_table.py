"""A table's log: what a pipeline has reached, and that a batch is in it once."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from klamm.pipelines.tables.columns import delta_schema
from klamm.pipelines.tables.table import Batch, BatchCommittedElsewhere, Reached
from klamm.pipelines.tables.upkeep import Done, UpkeepPolicy, keep_up
from tests.pipelines.tables.writing import OWNER, SCHEMA, append, make_table, numbers_in, written

MERGE = UpkeepPolicy(least_files=2)
AT_ONCE = UpkeepPolicy(least_files=2, keep_hours=0, vacuum_every_s=0)
LATER_S = 10**11


def test_a_table_tells_what_its_pipeline_has_reached(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    assert (table.newest(), table.reached(OWNER), table.last_batch(OWNER, 1)) == (None, None, None)
    append(table, range(0, 5), 0)
    append(table, range(5, 9), 1)
    assert table.reached(OWNER) == Reached(1, 1, False)
    assert table.reached("shop.other") is None
    assert table.offsets(OWNER, {"orders": ["0", "1"]}) == {"orders": {"0": 9}}
    assert numbers_in(table) == list(range(9))


def test_what_a_table_knows_of_its_own_commits_is_what_the_log_has(tmp_path: Path) -> None:
    """A writer does not look into the log for what it has committed itself, unless others commit too."""
    table, other = make_table(tmp_path), make_table(tmp_path)
    owners = OWNER, "shop.other"
    partitions = {"orders": ["0", "1"]}

    def agrees() -> bool:
        log = make_table(tmp_path)
        return [(table.reached(owner), table.offsets(owner, partitions)) for owner in owners] == [
            (log.reached(owner), log.offsets(owner, partitions)) for owner in owners
        ]

    append(table, range(0, 5), 0)
    assert agrees()
    append(table, range(5, 9), 1)
    assert table.reached(OWNER) == Reached(1, 1, False)
    assert agrees()
    append(other, range(9), 0, owner="shop.other")
    assert agrees()
    append(table, range(9, 10), 2)  # the version before was not its own
    assert agrees()
    append(other, range(10, 12), 0, attempt=2)
    assert table.reached(OWNER) == Reached(2, 0, False)
    assert agrees()


def test_what_a_pipeline_has_reached_outlives_the_metadata_of_commits(tmp_path: Path) -> None:
    """Delta removes old commits after a month; what it keeps of them is in the log's checkpoint."""
    table = make_table(tmp_path)
    for batch in range(3):
        append(table, range(batch, batch + 1), batch)
    newest = table.newest()
    assert newest is not None
    newest.create_checkpoint()
    for commit in (tmp_path / "orders/_delta_log").glob("*.json"):
        commit.unlink()
    again = make_table(tmp_path)
    assert again.reached(OWNER) == Reached(1, 2, False)
    assert again.offsets(OWNER, {"orders": ["0"]}) == {"orders": {"0": 3}}


def test_a_batch_is_committed_once(tmp_path: Path) -> None:
    """Also by two runs that do not know of each other: the second one fails."""
    table, other = make_table(tmp_path), make_table(tmp_path)
    append(table, range(0, 5), 0)
    assert other.is_there()
    append(table, range(5, 9), 1)
    with pytest.raises(BatchCommittedElsewhere, match="has committed batch 1"):
        append(other, range(5, 9), 1)
    assert numbers_in(table) == list(range(9))


def test_a_later_attempt_fences_an_earlier_one(tmp_path: Path) -> None:
    """A driver that hung goes on after another has taken over, in a new attempt."""
    table, hung = make_table(tmp_path), make_table(tmp_path)
    append(table, range(0, 5), 0)
    append(table, range(5, 9), 0, attempt=2)
    with pytest.raises(BatchCommittedElsewhere, match="or a later attempt"):
        append(hung, range(5, 9), 1)
    assert table.reached(OWNER) == Reached(2, 0, False)
    assert numbers_in(table) == list(range(9))


def test_of_many_runs_at_once_one_commits_a_batch(tmp_path: Path) -> None:
    append(make_table(tmp_path), range(0, 1), 0)
    begin = threading.Barrier(4)
    failed: list[str] = []

    def commit() -> None:
        table = make_table(tmp_path)
        begin.wait()
        for batch in range(1, 6):
            try:
                append(table, range(batch, batch + 1), batch)
            except BatchCommittedElsewhere as error:
                failed.append(str(error))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers_in(make_table(tmp_path)) == list(range(6))
    assert len(failed) == 15


def test_batches_without_rows_move_the_offsets(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.append([], Batch(OWNER, 1, 0, end={"orders": {"0": 7}}), SCHEMA, ())
    assert table.offsets(OWNER, {"orders": ["0"]}) == {"orders": {"0": 7}}
    assert numbers_in(table) == []


def test_all_rows_are_replaced_in_one_commit(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(5), 0)
    table.replace_all(written(table, [{"n": 7}]), Batch(OWNER, 1, 1), SCHEMA, ())
    assert numbers_in(table) == [7]
    assert DeltaTable(table.location, version=0).count() == 5


# ---- upkeep


def test_small_files_are_merged_and_old_ones_removed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 3), 0)
    assert keep_up(table, MERGE, 0) == Done()
    append(table, range(3, 6), 1)
    assert keep_up(table, MERGE, 0) == Done(merged=2, into=1)
    assert keep_up(table, MERGE, 0) == Done()
    assert numbers_in(table) == list(range(6))
    assert len(list(Path(table.location).glob("rows-*"))) == 2, "readers may still need them"
    done = keep_up(make_table(tmp_path), AT_ONCE, LATER_S)
    assert done.removed == 2 and not list(Path(table.location).glob("rows-*"))
    assert numbers_in(table) == list(range(6))
    assert table.last_batch(OWNER, 1) == 1


def test_files_that_no_commit_names_are_removed_and_tables_that_are_replaced_not_merged(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 3), 0)
    append(table, range(3, 6), 1)
    (lost,) = written(table, [{"n": 99}])
    assert keep_up(table, MERGE, 0, merges=False) == Done()
    done = keep_up(table, UpkeepPolicy(keep_hours=0, vacuum_every_s=0), LATER_S)
    assert (done.removed, done.is_vacuumed) == (1, True)
    assert not (Path(table.location) / lost.path).exists() and numbers_in(table) == list(range(6))
    day = UpkeepPolicy(keep_hours=0)
    assert not keep_up(table, day, LATER_S, vacuumed_s=LATER_S - 100).is_vacuumed


def test_merging_and_writing_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each changes the table while the other does, and every row is there once at every moment."""
    table = make_table(tmp_path)
    append(table, range(0, 1), 0)
    stop = threading.Event()
    problems: list[BaseException] = []

    def merge() -> None:
        try:
            while not stop.is_set():
                keep_up(make_table(tmp_path), MERGE, 0)
        except BaseException as error:
            problems.append(error)

    merging = threading.Thread(target=merge)
    merging.start()
    try:
        for batch in range(1, 40):
            append(table, range(batch, batch + 1), batch)
            assert numbers_in(table) == list(range(batch + 1))
    finally:
        stop.set()
        merging.join()
    assert not problems
    history = make_table(tmp_path).newest().history()  # type: ignore[union-attr]
    assert any(entry["operation"] == "OPTIMIZE" for entry in history)


def test_an_empty_table_is_created_with_its_columns(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.create_empty(delta_schema(SCHEMA), (), OWNER)
    assert table.is_created_by(OWNER) and not table.is_created_by("shop.other")
    assert keep_up(table, MERGE, 0) == Done() and numbers_in(table) == []


def test_old_versions_leave_the_log_with_the_old_files(tmp_path: Path) -> None:
    """Commits do not look for them: that would list the log each time."""
    table = make_table(tmp_path)
    append(table, range(0, 1), 0)
    newest = table.newest()
    assert newest is not None
    newest.alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "5"}
    )
    for batch in range(1, 9):
        append(table, range(batch, batch + 1), batch)
    log = tmp_path / "orders/_delta_log"
    assert (log / f"{0:020d}.json").exists()
    keep_up(table, UpkeepPolicy(vacuum_every_s=0), LATER_S)
    assert not (log / f"{0:020d}.json").exists()
    assert numbers_in(make_table(tmp_path)) == list(range(9))
    assert make_table(tmp_path).reached(OWNER) == Reached(1, 8, False)


def test_a_table_that_is_made_anew_is_noticed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(0, 5), 0)
    append(table, range(5, 9), 1)
    shutil.rmtree(tmp_path / "orders")
    with pytest.raises(DeltaError):
        append(table, range(9, 10), 2)
    append(make_table(tmp_path), range(3), 0)
    assert numbers_in(table) == [0, 1, 2]
