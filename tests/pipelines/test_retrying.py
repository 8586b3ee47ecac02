"""When failed pipelines are started again, on a clock that the test moves, and how that is shown."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from klamm.cli.pipelines.showing import remarks, status_line
from klamm.pipelines import runner
from klamm.pipelines.definitions import Pipeline
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.progress import PipelineStatus, Tally
from klamm.pipelines.retrying import CALM_MS, MOST_PAUSE_MS, Retries, Retry, heals, pause_ms
from klamm.pipelines.state import State
from klamm.pipelines.tables.table import Table
from tests.pipelines.projects import make_project


def test_pauses_double_up_to_a_minute() -> None:
    pauses = [pause_ms(number) for number in (1, 2, 3, 4, 5, 6, 7, 8, 1000)]
    assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, *[MOST_PAUSE_MS] * 3]


def test_retries_are_used_up() -> None:
    retries = Retries(2)
    assert retries.failed(100, None) == Retry(1, 1100)
    assert not retries.is_due(1099) and retries.is_due(1100)
    retries.begun()
    assert not retries.is_due(5000), "it runs"
    assert retries.failed(5000, None) == Retry(2, 7000)
    retries.begun()
    assert retries.failed(9000, None) is None and retries.waiting is None


def test_a_finished_batch_lets_the_count_begin_anew() -> None:
    retries = Retries(1)
    assert retries.failed(0, 4) == Retry(1, 1000)
    retries.begun()
    assert retries.failed(5000, 5) == Retry(1, 6000)
    retries.begun()
    assert retries.failed(9000, 5) is None


def test_failures_long_ago_do_not_count() -> None:
    retries = Retries(1)
    for now_ms in (0, 1000 + CALM_MS, 2000 + 2 * CALM_MS):
        assert retries.failed(now_ms, 4) == Retry(1, now_ms + 1000)
        retries.begun()
    assert retries.failed(now_ms + 1000 + CALM_MS - 1, 4) is None


def test_without_retries_there_are_none() -> None:
    assert Retries(0).failed(0, None) is None


@pytest.mark.parametrize(
    ("report", "may_heal"),
    [
        ("[STREAM_FAILED] … OSError: the disk has gone away", True),
        ("… klamm.pipelines.sinks.table.RowsLost: a batch has 3 rows", True),
        ("… klamm.pipelines.errors.DecoderUnavailable: the registry does not answer", True),
        ("[USER_RAISED_EXCEPTION] the expectation 'is huge' of failing failed", False),
        ("… klamm.pipelines.tables.table.BatchCommittedElsewhere: another run has", False),
        ("… klamm.pipelines.tables.columns.TableRefused: the column n is STRING", False),
        ("… klamm.pipelines.errors.PipelineError: the checkpoint is an old copy", False),
        ("… klamm.pipelines.tables.appended.CannotRead: version 3 of the table", False),
        ("… klamm.pipelines.tables.appended.NoTable: there is no table at", True),
    ],
)
def test_what_the_next_try_would_repeat_is_not_tried(report: str, may_heal: bool) -> None:
    assert heals(report) is may_heal


def test_a_retry_is_shown_with_its_error() -> None:
    tally = Tally("orders", "table orders", 0)
    tally.retrying(Retry(2, 12_000), 3, 10_100, "orders.py:7: it broke", "much more")
    line = "orders: retrying, attempt 2 of 3, next in 2 s: orders.py:7: it broke"
    assert remarks([tally.status]) == [line] and status_line(tally.status) == line
    tally.waited(Retry(2, 12_000), 11_001)
    assert tally.status.retry_in_s == 1
    tally.started(1, 12_000)
    status = tally.status
    assert (status.state, status.error, status.error_detail, status.retry) == ("running", "", "", 0)


BRONZE_AND_SILVER = """
@source(topic="orders", schema="n BIGINT")
def orders(rows): return rows

@pipeline(to=to_table("bronze"))
def bronze(orders): return orders

@source(table="bronze")
def bronze_rows(rows): return rows

@pipeline(to=to_table("silver"))
def silver(bronze_rows): return bronze_rows
"""


def test_a_store_that_fails_does_not_start_a_pipeline_before_its_table_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = '[project]\nname = "shop"\n[run]\nretries = 1\n'
    project = make_project(tmp_path, BRONZE_AND_SILVER, toml=toml)
    definitions = load_definitions(project)
    bronze = tmp_path / "tables/bronze"
    started: list[tuple[str, bool]] = []
    stop = threading.Event()
    states: list[str] = []
    failures = iter([OSError("the store is away")])
    now_ms = itertools.count(0, 1000)

    class Store(Table):
        def is_there(self) -> bool:
            for failure in failures:
                raise failure
            return super().is_there()

    class Starts(runner._Run):
        def _start(self, pipeline: Pipeline) -> None:
            started.append((pipeline.name, bronze.exists()))
            self._tallies[pipeline.name].started(1, 0)

        def _wait_until_reading(self, name: str, stop: threading.Event) -> None:
            pass

    def on_status(statuses: Sequence[PipelineStatus]) -> None:
        silver = statuses[1]
        states.append(silver.state)
        if silver.note == "waits for the table bronze" and not bronze.exists():
            write_deltalake(str(bronze), pa.table({"n": [1]}))
        if silver.state in ("running", "failed"):
            stop.set()

    monkeypatch.setattr(runner, "Table", Store)
    monkeypatch.setattr(runner, "TABLE_LOOK_S", 0.0)
    no_session: Any = None
    run = Starts(
        project, definitions, State(project), no_session, False, on_status, None, lambda: next(now_ms)
    )
    run.run(list(definitions.pipelines.values()), stop)
    assert started == [("bronze", False), ("silver", True)]
    assert "retrying" in states
