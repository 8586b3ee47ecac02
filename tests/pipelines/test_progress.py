from __future__ import annotations

import json
from typing import Any

from klamm.cli.pipelines.showing import remarks
from klamm.pipelines.progress import PipelineStatus, Tally, lag_of, rule_name, unseen


def progress(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 7, "latestOffset": 1, "triggerExecution": 10},
        "sources": [
            {
                "startOffset": {"orders": {"0": 0}},
                "endOffset": {"orders": {"0": 10, "1": 4}},
                "latestOffset": {"orders": {"0": 15, "1": 4}},
            }
        ],
        "sink": {"numOutputRows": -1},
        **more,
    }


class Report:
    """A progress report as the JVM has it."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def batchId(self) -> int:
        return self._batch

    def timestamp(self) -> str:
        return f"2026-01-31T12:00:{self._batch:02d}.000Z"

    def json(self) -> str:
        return json.dumps({"batchId": self._batch})


class Recent(list[Report]):
    """A list in the JVM, which counts how often it was asked for a report."""

    calls = 0

    def __getitem__(self, index: Any) -> Any:
        self.calls += 1
        return super().__getitem__(index)


def test_only_new_reports_are_fetched() -> None:
    recent = Recent(Report(batch) for batch in range(50))
    new, mark = unseen(recent, "")
    assert [report["batchId"] for report in new] == list(range(50))
    recent.append(Report(50))
    recent.append(Report(51))
    recent.calls = 0
    new, mark = unseen(recent, mark)
    assert [report["batchId"] for report in new] == [50, 51]
    assert recent.calls == 3, "the new ones, and the last one that was seen"
    assert unseen(recent, mark) == ([], mark)
    assert unseen(Recent(), mark) == ([], mark)


def test_counts_of_batches_add_up() -> None:
    tally = Tally("table", "parquet t", 0, sink_counts=True)
    tally.started(3, 10)
    tally.wrote(0, 8)
    tally.apply(progress(0, 10), 1000)
    tally.apply(progress(1, 20), 2000)
    status = tally.status
    assert (status.state, status.generation, status.batch) == ("running", 3, 1)
    assert (status.rows_in, status.rows_out, status.lag, status.rate) == (30, 8, 5, 15.0)
    assert status.batch_ms == 10


def test_counts_of_a_status_are_those_of_the_same_batches() -> None:
    tally = Tally("table", "parquet t", 0, sink_counts=True)
    tally.wrote(0, 20)
    tally.apply(progress(0, 20), 1000)
    tally.wrote(1, 19)
    status = tally.status
    assert (status.batch, status.rows_in, status.rows_out) == (0, 20, 20), "batch 1 has not been told of"
    # What a query tells while it waits: the number of the next batch, which it may be writing by now.
    tally.apply(progress(1, 0, durationMs={"latestOffset": 1, "triggerExecution": 1}), 2000)
    assert tally.status.batch_ms == 10, "of a batch that was written"
    status = tally.status
    assert (status.batch, status.rows_in, status.rows_out) == (0, 20, 20)
    tally.apply(progress(1, 20), 3000)
    status = tally.status
    assert (status.batch, status.rows_in, status.rows_out) == (1, 40, 39)


def test_a_batch_that_is_run_again_counts_once() -> None:
    tally = Tally("table", "parquet t", 0, sink_counts=True)
    tally.wrote(0, 20)
    tally.started(1, 500)  # its query failed before it told of the batch, and was started again
    tally.apply(progress(0, 20), 1000)
    tally.apply(progress(1, 5), 2000)
    assert (tally.status.rows_in, tally.status.rows_out) == (25, 20)


def test_the_rate_falls_to_zero_when_nothing_comes() -> None:
    tally = Tally("table", "parquet t", 0)
    tally.apply(progress(0, 1000), 10_000)
    assert tally.status.rate == 100.0
    tally.passed(15_000)
    assert tally.status.rate == 100.0
    tally.passed(21_000)
    assert (tally.status.rate, tally.status.updated_ms) == (0.0, 21_000)
    tally.passed(22_000)
    assert tally.status.updated_ms == 21_000, "nothing has changed"


def test_rules_and_dead_letters_are_counted_by_node() -> None:
    rules = {rule_name("orders", "has a name"): "warn", rule_name("table", "is even"): "drop"}
    tally = Tally("table", "topic t", 0, rules)  # type: ignore[arg-type]
    observed = {
        "klamm.orders": {"rows": 10, "undecodable": 1, "dead_letters": 1, "rule:has a name": 4},
        "klamm.table": {"rows": 9, "rule:is even": 3, "dead_letters": 0},
        "of the user": {"rows": 77},
    }
    tally.apply(progress(0, 10, observedMetrics=observed), 1000)
    tally.apply(progress(1, 10, observedMetrics=observed), 2000)
    status = tally.status
    assert status.rules == {"orders: has a name": 8, "table: is even": 6}
    assert (status.dead_letters, status.undecodable, status.rows_out) == (2, 2, 12)


def test_a_sink_that_tells_its_rows_is_believed() -> None:
    tally = Tally("table", "topic t", 0)
    tally.apply(progress(0, 10, sink={"numOutputRows": 7}), 1000)
    assert tally.status.rows_out == 7


def test_the_lag_stays_as_it_is_when_nobody_tells() -> None:
    assert lag_of({"sources": [{"endOffset": None, "latestOffset": None}]}, 12) == 12
    assert lag_of({"sources": [{"endOffset": 5, "latestOffset": 9}]}, None) is None


def test_a_status_goes_through_json() -> None:
    status = PipelineStatus("table", "topic t", rules={"a: b": 1}, lag=None)
    assert PipelineStatus.from_json(status.to_json()) == status


def test_rows_that_a_watermark_drops_are_counted_and_told() -> None:
    tally = Tally("hourly", "table hourly", 0)
    for dropped in (3, 0, 4):
        operators = [{"numRowsDroppedByWatermark": dropped}, {"numRowsDroppedByWatermark": 1}, {}]
        tally.apply(progress(0, 10, stateOperators=operators), 1000)
    assert tally.status.too_late == 10
    (line,) = remarks([tally.status])
    assert line == "hourly: 10 rows came later than the watermark allows and are missing in the result"
