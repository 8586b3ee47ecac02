"""Replays of ranges that are killed at each moment, beside a pipeline that runs: readers find each record
once, all rows of a range are old or all are new, and the pipeline notices nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from klamm.pipelines.state import State
from klamm.pipelines.status import read_status
from klamm.pipelines.tables.range_replacing import replays_in
from klamm.pipelines.tables.table import Reached, Table
from tests.pipelines.killed_replay import MOMENTS
from tests.pipelines.killed_run import UNTIL_A_SIGNAL
from tests.pipelines.running import Shop

TABLE = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 100})
def orders(rows):
    return rows.selectExpr("n", "'old' as text", "_topic", "_partition", "_offset")

@pipeline(to=to_table("orders"))
def table(orders):
    return orders
"""
FIRST, LAST = 20, 70
"""The offsets of the range, in both partitions. The record n is at offset n // 2."""
BEGUN = 200
PAUSE_S = 0.5
CHILD_S = 400.0


def texts(where: Path) -> dict[int, str]:
    found = DeltaTable(str(where)).to_pyarrow_table(columns=["n", "text"]).to_pylist()
    numbers = {row["n"]: row["text"] for row in found}
    assert len(numbers) == len(found), "a record has two rows"
    assert sorted(numbers) == list(range(len(numbers))), "a record has no row"
    return numbers


def text_of_the_range(where: Path) -> str:
    """That of its rows; they all have the same one, which others do not have if it is new."""
    numbers = texts(where)
    (text,) = {numbers[n] for n in range(2 * FIRST, 2 * LAST)}
    others = {text for n, text in numbers.items() if not 2 * FIRST <= n < 2 * LAST}
    assert others == {"old"}
    return text


@contextmanager
def in_the_background(work: Callable[[], None], pause_s: float = 0.0) -> Iterator[list[BaseException]]:
    """Do something again and again. Gives a list of what went wrong."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def go_on() -> None:
        try:
            while not stop.wait(pause_s):
                work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield failed
    finally:
        stop.set()
        thread.join()


@contextmanager
def running(shop: Shop) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), "local[2]", UNTIL_A_SIGNAL]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            until(lambda: any(status.rows_out >= BEGUN for status in read_status(shop.project)))
            yield
            assert child.poll() is None
        finally:
            child.send_signal(signal.SIGTERM)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CHILD_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def replayed(shop: Shop, moment: str | None = None) -> str | None:
    """What a replay prints; None if it was killed."""
    command = [sys.executable, "-m", "tests.pipelines.killed_replay", str(shop.root), str(FIRST), str(LAST)]
    child = subprocess.run(
        [*command, *([moment] if moment else [])], capture_output=True, text=True, timeout=CHILD_S
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr[-3000:]
    return child.stdout.strip() if child.returncode == 0 else None


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_replays_are_killed_beside_a_pipeline_that_goes_on(klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE, spark='"spark.ui.enabled" = "false"')
    shop.send(BEGUN)
    where = shop.table("orders")
    table = Table(str(where))
    owner = f"{shop.name}.table"
    with running(shop):
        text = "old"
        seen: set[str] = set()
        with (
            in_the_background(lambda: shop.send(10), PAUSE_S) as not_sent,
            in_the_background(lambda: seen.add(text_of_the_range(where))) as misread,
        ):
            for number, moment in enumerate(MOMENTS):
                new = f"new {number}"
                shop.write(TABLE.replace("'old'", f"'{new}'"))
                assert replayed(shop, moment) is None, moment
                if moment in ("after the commit", "after the swap"):
                    text = new
                assert text_of_the_range(where) == text, moment
            shop.write(TABLE.replace("'old'", "'newest'"))
            assert replayed(shop) == f"{2 * (LAST - FIRST)} {2 * (LAST - FIRST)}"
            assert text_of_the_range(where) == "newest"
        assert not misread, misread
        assert not not_sent
        assert seen <= {"old", "newest", *(f"new {number}" for number in range(len(MOMENTS)))}
        until(lambda: len(texts(where)) == shop.sent)
        (status,) = read_status(shop.project)
        assert (status.state, status.generation, status.error) == ("running", 1, "")
        assert status.rows_out == shop.sent, "nothing was read again"
    reached = table.reached(owner)
    assert isinstance(reached, Reached) and reached.attempt == 1
    assert replays_in(table, owner) == 3
    # What killed replays have left beside the table is gone, and what stays is the table's.
    assert State(shop.project).range_replay("table") is None
    assert len(list(where.glob("replay-*"))) == 3
    assert not list(where.glob("replay-*/_delta_log"))
