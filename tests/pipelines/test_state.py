from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import (
    Position,
    completed,
    merged,
    parse_offset_log,
    reaches,
    records_between,
)
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.state import MOST_EPOCHS, Attempt, ProjectBusy, State
from klamm.pipelines.status import is_due, read_status, tidy_up, write_status
from tests.pipelines.projects import make_project

# ---- the lock


def test_one_process_has_a_project_at_a_time(tmp_path: Path) -> None:
    state = State(make_project(tmp_path))
    assert not state.in_use()
    with state.lock("running its pipelines"):
        assert state.in_use()
        with pytest.raises(ProjectBusy, match=r"in use: process \d+, running its pipelines"), state.lock("x"):
            pass
    assert not state.in_use()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    code = (
        "import sys, time\n"
        "from klamm.pipelines.project import Project\n"
        "from klamm.pipelines.state import State\n"
        "with State(Project.load(sys.argv[1])).lock('test'):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"locked\n"
        assert State(project).in_use()
        child.kill()
    with State(project).lock("test"):
        pass


# ---- attempts


def test_a_attempt_is_kept_whole(tmp_path: Path) -> None:
    state = State(make_project(tmp_path))
    assert state.attempt("orders_table") is None
    start = {"orders": {"orders": {"0": 17}}}
    attempt = Attempt.first(start, "tables/orders").next(start).again({})
    state.keep_attempt("orders_table", attempt)
    assert state.attempt("orders_table") == attempt


def test_the_attempt_of_a_replay_is_kept_beside_the_present_one(tmp_path: Path) -> None:
    state = State(make_project(tmp_path))
    first = Attempt.first({})
    state.keep_attempt("orders_table", first)
    assert state.next_attempt("orders_table") is None
    state.keep_next_attempt("orders_table", first.next({}))
    assert state.next_attempt("orders_table") == first.next({})
    assert state.attempt("orders_table") == first
    state.keep_next_attempt("orders_table", None)
    assert state.next_attempt("orders_table") is None


def test_an_epoch_that_was_given_up_is_not_used_again() -> None:
    first = Attempt.first({"orders": {}}).again({"orders": {"orders": {"0": 5}}})
    failed = first.next({"orders": {"orders": {"0": 2}}})
    assert failed.epoch.endswith(".3")
    kept = replace(first, used_epochs=failed.epochs[-1].number)
    assert kept.is_given_up(failed.epoch) and not kept.is_given_up(first.epoch)
    assert not kept.is_given_up("other.3") and not kept.is_given_up("")
    assert kept.next({}).epoch.endswith(".4")


def test_an_attempt_of_version_0_1_is_read(tmp_path: Path) -> None:
    state = State(make_project(tmp_path))
    state.keep_attempt("orders_table", Attempt(3))
    file = state.folder / "generations/orders_table.json"
    file.write_text(file.read_text().replace('"table"', '"retire": [], "cut": null, "table"'))
    found = state.attempt("orders_table")
    assert found is not None and found.number == 3


def test_a_damaged_attempt_is_told_with_its_file(tmp_path: Path) -> None:
    state = State(make_project(tmp_path))
    state.keep_attempt("orders_table", Attempt(1))
    (state.folder / "generations/orders_table.json").write_text("{")
    with pytest.raises(PipelineError, match=r"orders_table\.json"):
        state.attempt("orders_table")


# ---- a state that drivers on all machines share


@pytest.fixture
def shared(tmp_path: Path) -> Project:
    """By a URI of this machine's disk, with what reads and writes stores."""
    project = make_project(tmp_path / "here")
    return replace(project, shared_state=f"file://{tmp_path}/store", state=tmp_path / "here/.klamm")


def test_a_driver_in_another_folder_finds_the_attempt(shared: Project, tmp_path: Path) -> None:
    state = State(shared)
    assert state.attempt("a") is None and state.next_attempt("a") is None
    state.keep_attempt("a", Attempt(3, table="orders"))
    state.keep_next_attempt("a", Attempt(4))
    with state.lock("running its pipelines"):
        elsewhere = State(replace(shared, state=tmp_path / "there/.klamm"))
        assert (elsewhere.attempt("a"), elsewhere.next_attempt("a")) == (
            Attempt(3, table="orders"),
            Attempt(4),
        )
    elsewhere.keep_next_attempt("a", None)
    elsewhere.keep_next_attempt("a", None)
    assert state.next_attempt("a") is None
    assert [each.name for each in shared.state.iterdir()] == ["lock"], "only the lock belongs to the machine"


def test_a_damaged_attempt_is_told_with_its_uri(shared: Project, tmp_path: Path) -> None:
    state = State(shared)
    state.files.write("generations/a.json", "{")
    with pytest.raises(PipelineError, match=f"file://{tmp_path}/store/generations/a.json cannot be read"):
        state.attempt("a")


def test_a_status_from_another_machine_says_how_old_it_is(shared: Project) -> None:
    state = State(shared)
    assert read_status(shared) == []
    write_status(state, PipelineStatus("a", "table a", state="running", updated_ms=10_000))
    write_status(state, PipelineStatus("b", "table b", state="finished", updated_ms=10_000))
    write_status(state, PipelineStatus("gone", "table gone", state="running", updated_ms=10_000))
    tidy_up(state, ["a", "b"], ["b"])
    assert [(each.state, each.note) for each in read_status(shared, lambda: 11_000)] == [
        ("running", ""),
        ("finished", ""),
    ]
    assert [each.note for each in read_status(shared, lambda: 99_000)] == ["no news for 89 s", ""]


def test_a_status_in_a_store_is_not_written_all_the_time(shared: Project, tmp_path: Path) -> None:
    first = PipelineStatus("a", "table a", state="running", updated_ms=10_000)
    soon, later = (replace(first, rows_in=7, updated_ms=at) for at in (11_000, 15_000))
    ended = replace(soon, state="finished")
    state = State(shared)
    due = [is_due(state, each, first) for each in (first, soon, later, ended)]
    assert due == [False, False, True, True]
    assert is_due(state, first, None) and is_due(state, replace(ended, rows_out=7), ended)
    assert is_due(State(make_project(tmp_path / "local")), soon, first)


# ---- positions


def test_a_checkpoint_tells_where_its_sources_are() -> None:
    text = (
        'v1\n{"batchWatermarkMs":0}\n{"orders": {"0": 5}}\n-\n{"logOffset":3}\n{"clicks": {"0": 1, "1": 2}}\n'
    )
    assert parse_offset_log(text) == [{"orders": {"0": 5}}, {"clicks": {"0": 1, "1": 2}}]


def test_positions_of_one_topic_that_two_sources_read_are_merged() -> None:
    positions = [{"orders": {"0": 5, "1": 7}}, {"orders": {"0": 9}}]
    assert merged(positions, min) == {"orders": {"0": 5, "1": 7}}
    assert merged(positions, max) == {"orders": {"0": 9, "1": 7}}


def test_a_batch_reaches_a_point_if_any_partition_does() -> None:
    end = {"orders": {"0": 10, "1": 10}}
    assert reaches(end, {"orders": {"0": 9}})
    assert not reaches(end, {"orders": {"0": 10, "1": 10}})
    assert reaches(end, {"orders": {"0": 10, "1": 3}})


def test_records_are_counted_and_new_partitions_begin_at_their_start() -> None:
    assert records_between({"o": {"0": 5, "1": -2}}, {"o": {"0": 9, "1": 3, "2": 4}}) == 11
    assert completed({"o": {"0": 5}}, {"o": [0, 1]}) == {"o": {"0": 5, "1": -2}}


# ---- status


def test_a_status_that_runs_in_no_process_was_killed(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    state = State(project)
    write_status(state, PipelineStatus("a", "parquet a", state="running", rows_in=7, rate=3.0))
    write_status(state, PipelineStatus("b", "topic b", state="failed", error="boom"))
    with state.lock("running its pipelines"):
        assert [status.state for status in read_status(project)] == ["running", "failed"]
    first, second = read_status(project)
    assert (first.state, first.rows_in, first.rate) == ("killed", 7, 0.0)
    assert (second.state, second.error) == ("failed", "boom")


def test_a_run_leaves_no_status_of_what_is_gone_or_not_run(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    state = State(project)
    for name in ("chosen", "gone", "other"):
        write_status(state, PipelineStatus(name, "topic t", state="running"))
    write_status(state, PipelineStatus("done", "topic t", state="finished"))
    with state.lock("running its pipelines"):
        tidy_up(state, ["chosen", "other", "done"], ["chosen"])
        states = {status.pipeline: status.state for status in read_status(project)}
    assert states == {"chosen": "running", "other": "killed", "done": "finished"}


def test_a_status_of_another_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    state = State(project)
    write_status(state, PipelineStatus("a", "parquet a", state="finished"))
    file = Path(state.files.where("status/a.json"))
    file.write_text(file.read_text().replace('"rows_in"', '"of_tomorrow": 1, "rows_in"'))
    (file.parent / "b.json").write_text("{")
    assert [status.pipeline for status in read_status(project)] == ["a"]


def test_epochs_that_were_wholly_read_again_are_forgotten() -> None:
    def at(offset: int, other: int = 0) -> dict[str, Position]:
        return {"orders": {"orders": {"0": offset, "1": other}}}

    begun = Attempt.first(at(0))
    assert begun.epoch == f"{begun.pipeline_id}.1"
    crashed = begun.again(at(10)).again(at(10)).again(at(10))
    assert [epoch.number for epoch in crashed.epochs] == [1, 4], "a batch that fails again and again is one"
    replayed = crashed.next(at(5, 7))
    assert [epoch.number for epoch in replayed.epochs] == [1, 4, 5], "of the other partition it reads less"
    assert [epoch.number for epoch in replayed.next(at(0)).epochs] == [6]
    assert replayed.number == 2 and replayed.epoch.endswith(".5")
    unnamed = Attempt.first(at(0)).again({"orders": {"orders": {"0": 5}}}).again(at(5, 7))
    assert [epoch.number for epoch in unnamed.epochs] == [1, 2, 3], (
        "what is not named is read from the oldest on"
    )
    many = begun
    for offset in range(1, 300):
        many = many.again(at(offset))
    assert len(many.epochs) == MOST_EPOCHS and many.epochs[-1].number == 300
