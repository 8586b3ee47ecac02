"""Readers that know nothing of us, while batches are published and merged under their eyes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from klamm.pipelines.sinks.exchange import why_impossible
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.sinks.tables import LocalTable
from tests.pipelines.reading import READERS, complaint, read_on

ROUNDS_S = 8.0
BEGUN_S = 100.0
MERGED_AT_ONCE = 3
KEPT = 30


def staged(table: LocalTable, numbers: range) -> str:
    folder = Path(table.new_staging("test"))
    (folder / "day=1").mkdir(parents=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), folder / "day=1" / "part-0.parquet")
    return str(folder)


def changes(table: LocalTable) -> Iterator[int]:
    """Publish one row after the other for ever, and merge the older ones every few rows; yields how many."""
    number = 0
    while True:
        table.publish(staged(table, range(number, number + 1)), BatchFolder.of_batch(1, number))
        number += 1
        yield number
        if number > KEPT and number % MERGED_AT_ONCE == 0:
            # What stays beside the merged folder must not be taken for all there is.
            run = [folder for folder in table.folders() if folder.last < number - KEPT]
            into = BatchFolder(1, 0, run[-1].last)
            table.replace(run, staged(table, range(into.last + 1)), into)
            yield number


@pytest.fixture
def table(tmp_path: Path) -> LocalTable:
    if reason := why_impossible(tmp_path):
        pytest.skip(reason)
    table = LocalTable(tmp_path / "tables/orders")
    # So that there is something to read from the start.
    table.publish(staged(table, range(0, 0)), BatchFolder.of_batch(0, 0))
    return table


def test_no_reader_sees_a_row_twice_or_misses_one(table: LocalTable) -> None:
    spawning = multiprocessing.get_context("spawn")
    published, stop, results = spawning.Value("q", 0), spawning.Event(), spawning.Queue()
    begun = spawning.Barrier(len(READERS) + 1)
    arguments = (str(table.path), published, begun, stop, results)
    readers = [spawning.Process(target=read_on, args=(reader, *arguments)) for reader in READERS]
    for reader in readers:
        reader.start()
    begun.wait(BEGUN_S)
    # Chosen by time: the more often tables change under their readers, the more moments are met.
    deadline = time.monotonic() + ROUNDS_S
    for count in changes(table):
        published.value = count
        if time.monotonic() > deadline:
            break
    stop.set()
    found = [results.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join(60)
    for name, good, gave_up, complaints in found:
        assert complaints == [], (name, complaints[:5])
        assert good > 0, (name, gave_up)


@pytest.mark.long
def test_spark_reads_each_row_once_meanwhile(spark: SparkSession, table: LocalTable) -> None:
    good = 0
    count = 0
    changing = changes(table)
    for _ in range(10):
        for _ in range(8):
            count = next(changing)
        rows = [row.n for row in spark.read.parquet(str(table.path)).select("n").collect()]
        assert complaint(rows, count, count + 1) is None
        good += 1
    assert good == 10
