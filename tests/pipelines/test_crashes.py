"""Exactly once in the table, wherever a run is broken off."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from klamm.pipelines import replay
from klamm.pipelines.runner import run
from klamm.pipelines.state import ProjectBusy
from klamm.pipelines.status import read_status
from klamm.testing.faults import MOMENTS, striking
from tests.pipelines.killed_run import CHILD_S, UNTIL_A_SIGNAL, UPKEEP, killed
from tests.pipelines.running import Shop

TABLE = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 20})
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    return orders
"""
FEW_MOMENTS = ("after commit",)
"""That of `make test`: if a batch that is committed were written again, its rows would be there twice."""
STOPPED_S = 20.0


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(FEW_MOMENTS, id="at one moment"),
        pytest.param(tuple(MOMENTS), id="at each moment", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_fails_anywhere_is_in_the_table_once(
    moments: tuple[str, ...], spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)

    def strike() -> None:
        raise OSError("the disk has gone away")

    for moment in moments:
        shop.send(40)
        with striking(moment, strike, after=0 if "merge" in moment else 1):
            (status,) = run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
        if "merge" in moment:
            assert (status.state, status.note) == ("finished", "files not merged: the disk has gone away"), (
                moment
            )
            shop.assert_each_once("orders")
        else:
            assert (status.state, status.error) == ("failed", "OSError: the disk has gone away"), moment
    (status,) = run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
    assert status.state == "finished"
    shop.assert_each_once("orders")

    # The log of the table knows each record once too, and a replay finds its place by it.
    batches = [entry.get("klamm", {}) for entry in shop.delta("orders").history()]
    assert sum(batch.get("rows", 0) for batch in batches) == shop.sent
    replay.carry_out(shop.project, replay.plan(shop.project, "table", 10), spark=spark)
    shop.assert_each_once("orders")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_driver_is_followed_by_one_that_goes_on(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(60)
    assert killed(shop, "after commit", 1) == -signal.SIGKILL
    shop.assert_each_once("orders", numbers_of(shop, batches=2))
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "finished"
    shop.assert_each_once("orders")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_signal_ends_a_run_that_goes_on_for_ever(klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(20)
    command = [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), "local[2]", UNTIL_A_SIGNAL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        deadline = time.monotonic() + CHILD_S
        while not any(status.rows_out >= 20 for status in read_status(shop.project)):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(ProjectBusy, match=f"process {child.pid}, running its pipelines"):
            run(shop.project, once=True)
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=STOPPED_S)
    assert (child.returncode, output.strip()) == (0, "table: stopped 20")
    assert [status.state for status in read_status(shop.project)] == ["stopped"]
    shop.assert_each_once("orders")


def numbers_of(shop: Shop, batches: int) -> list[int]:
    """The first batches, which take ten records of each of the two partitions."""
    return list(range(20 * batches))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_replay_that_is_broken_off_has_replaced_all_rows_or_none(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    original = replay.swap

    def before(*arguments: Any) -> int:
        raise OSError("the disk has gone away")

    def after(*arguments: Any) -> int:
        original(*arguments)
        raise OSError("the disk has gone away")

    for moment, attempt in ((before, 1), (after, 2)):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="the disk has gone away"):
            patch.setattr(replay, "swap", moment)
            replay.carry_out(shop.project, replay.plan(shop.project, "table", 10), spark=spark)
        shop.assert_each_once("orders")
        shop.send(20)
        (status,) = run(shop.project, once=True, spark=spark)
        assert (status.state, status.generation, status.rows_out) == ("finished", attempt, 20)
        shop.assert_each_once("orders")
    replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"), spark=spark)
    shop.assert_each_once("orders")


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("moment", MOMENTS)
def test_drivers_are_killed_again_and_again(
    moment: str, spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    kills = 0
    for _ in range(4):
        shop.send(20 * chance.randint(1, 5))
        kills += killed(shop, moment, chance.randint(0, 3) if "merge" not in moment else 0) != 0
    run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
    print(f"seed {seed}: {kills} kills")
    shop.assert_each_once("orders")
