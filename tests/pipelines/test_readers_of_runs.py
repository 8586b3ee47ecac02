"""Readers that know nothing of us read a table all the while: pandas, polars, DuckDB and Spark.

Meanwhile batches are written, small files merged, dead-letter records redriven, all rows replayed and old
files removed, and the driver is killed at each step. No reader ever fails, or sees a part of a batch, of a
redrive or of a replay, or a row twice, or fewer batches than were committed before it began to read.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.pipelines import replay
from klamm.pipelines.redrive_to_table import redrive_to_table
from klamm.pipelines.runner import run
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up
from klamm.testing.faults import MOMENTS
from tests.pipelines.killed_run import SWAPS, UPKEEP, killed
from tests.pipelines.reading import ALL_READERS, BAD, BATCH, read_on
from tests.pipelines.running import Shop

PIPELINE = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": BATCH})
@expect("is good", "n % BATCH <> BAD", otherwise="dead_letter")
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    return orders
""".replace("BATCH", str(BATCH)).replace("BAD", str(BAD))
MENDED = PIPELINE.replace(f"n % {BATCH} <> {BAD}", "n IS NOT NULL")

WRITING = ("after write", "before commit", "after commit")
"""The moments of a redrive and of a replay's batches, as far as they differ from each other."""
PAUSE_S = 0.3
"""Between two reads of a reader: four of them must leave some of the machine to the drivers."""
BEGUN_S = 150.0
LAST_READ_S = 300.0
"""A reader that is told to stop ends the read that it is in first: on a busy machine that takes its time."""
RETENTION_HOURS = 1
LONG_AGO_S = 2 * 3600


class Readers:
    """The processes that read."""

    def __init__(self, table: Path) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.batches = spawning.Value("q", 0)
        """How many batches each reader must see from now on."""
        self._stop, self._results = spawning.Event(), spawning.Queue()
        begun = spawning.Barrier(len(ALL_READERS) + 1)
        arguments = (str(table), self.batches, begun, self._stop, self._results, "batches", PAUSE_S)
        self._all = [spawning.Process(target=read_on, args=(name, *arguments)) for name in ALL_READERS]
        for reader in self._all:
            reader.start()
        begun.wait(BEGUN_S)

    def stop(self) -> None:
        """Raise if one of them has seen what it should not, or nothing at all."""
        self._stop.set()
        found = [self._results.get(timeout=LAST_READ_S) for _ in self._all]
        for name, good, gave_up, complaints in found:
            assert complaints == [], (name, complaints[:5])
            assert gave_up == [], (name, gave_up)
            assert good > 10, name
        for reader in self._all:
            reader.join(60)

    def kill(self) -> None:
        for reader in self._all:
            reader.kill()


@contextmanager
def reading(table: Path) -> Iterator[Readers]:
    readers = Readers(table)
    try:
        yield readers
        readers.stop()
    finally:
        readers.kill()


def written(shop: Shop, readers: Readers) -> None:
    """All that was sent is in the table from now on."""
    readers.batches.value = shop.sent // BATCH


def leave_files_of_long_ago(shop: Shop) -> list[Path]:
    """Files of drivers that were killed: no commit has ever named them."""
    table = shop.delta("orders")
    known = {Path(uri).name for version in range(table.version() + 1) for uri in files_of(shop, version)}
    left = [file for file in shop.table("orders").rglob("rows-*.parquet") if file.name not in known]
    for file in left:
        os.utime(file, (time.time() - LONG_AGO_S,) * 2)
    return left


def files_of(shop: Shop, version: int) -> list[str]:
    return Table(str(shop.table("orders"))).at(version).file_uris()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_reader_sees_a_part_whatever_is_killed(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, PIPELINE)
    shop.send(BATCH)
    run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
    with reading(shop.table("orders")) as readers:
        written(shop, readers)
        for moment in MOMENTS:  # batches, and the merges after them
            shop.send(2 * BATCH)
            assert killed(shop, moment, 0 if "merge" in moment else 1) == -signal.SIGKILL, moment
        (status,) = run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
        assert status.state == "finished"
        written(shop, readers)

        shop.write(MENDED)
        for moment in WRITING:
            assert killed(shop, moment, work="redrive") == -signal.SIGKILL, moment
        assert redrive_to_table(shop.project, "table", spark=spark).rows == 0  # the last one was committed
        shop.assert_each_once("orders")

        shop.send(BATCH)
        (status,) = run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
        assert (status.state, status.rows_out) == ("finished", BATCH)
        written(shop, readers)
        for moment in (*WRITING, *SWAPS):
            assert killed(shop, moment, work="replay") == -signal.SIGKILL, moment
        replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"), spark=spark)
        shop.send(2 * BATCH)
        (status,) = run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
        assert status.state == "finished"
        written(shop, readers)

        left = leave_files_of_long_ago(shop)
        assert left, "a driver that is killed between its files and its commit leaves them"
        policy = UpkeepPolicy(least_files=2, keep_hours=RETENTION_HOURS, vacuum_every_s=0)
        done = keep_up(Table(str(shop.table("orders"))), policy, time.time())
        assert done.is_vacuumed and not any(file.exists() for file in left)
    shop.assert_each_once("orders")
