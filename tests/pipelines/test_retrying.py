"""When failed pipelines are started again, on a clock that the test moves, and how that is shown."""

from __future__ import annotations

import pytest

from klamm.cli.pipelines.showing import remarks, status_line
from klamm.pipelines.progress import Tally
from klamm.pipelines.retrying import MOST_PAUSE_MS, Retries, Retry, heals, pause_ms


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
