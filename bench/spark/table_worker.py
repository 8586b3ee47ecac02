"""Measures tables without Spark: commits to a log that has few or many versions, and merges of small files.

    python -m bench.spark.table_worker commits|merge JSON

Rows are written as tasks write them, and committed as the driver does.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa

from klamm.pipelines.tables.files import Target, write_files
from klamm.pipelines.tables.table import Batch, Table, WrittenFile
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up

OWNER = "bench.orders"
ROWS = pa.schema([("n", pa.int64()), ("text", pa.string())])
VALUES = pa.schema([("value", pa.binary())])
VALUE_BYTES = 1024
MERGED_EVERY = 100
"""Small files are merged after so many commits, as they are while a pipeline runs."""
OPENED = 11


def commits(*, path: str, few: int, many: int, measured: int) -> dict[str, float]:
    """Times of a table with few commits, and with many, in milliseconds: to plan (open the table and find
    what the pipeline has reached), and for a batch of one row to be in the table."""
    table = Table(path)
    count = 0

    def grow(to: int) -> None:
        nonlocal count
        while count < to:
            _commit(table, count)
            count += 1
            if count % MERGED_EVERY == 0:
                keep_up(Table(path), UpkeepPolicy(), 0)

    found = {}
    try:
        for name, to in (("few", few), ("many", many)):
            grow(to)
            found[f"plan_{name}_ms"] = statistics.median(_opened(path) for _ in range(OPENED))
            times = []
            for _ in range(measured):
                times.append(_commit(table, count))
                count += 1
            found[f"commit_{name}_ms"] = statistics.mean(times)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return found


def _opened(path: str) -> float:
    started = time.perf_counter()
    if Table(path).reached(OWNER) is None:
        raise RuntimeError("the table does not know its batches")
    return (time.perf_counter() - started) * 1000


def _commit(table: Table, number: int) -> float:
    """Milliseconds of a batch, without those of its task."""
    rows = pa.RecordBatch.from_pylist([{"n": number, "text": f"row {number}"}], ROWS)
    files = _written(Target(table.location, ROWS), [rows])
    started = time.perf_counter()
    if (table.last_batch(OWNER, 1) or -1) >= number:
        raise RuntimeError("the batch is in the table already")
    position = {"orders": {"0": number}}
    table.append(files, Batch(OWNER, 1, number, position, {"orders": {"0": number + 1}}), ROWS, ())
    return (time.perf_counter() - started) * 1000


def merge(*, path: str, megabytes: int, file_megabytes: int) -> dict[str, float]:
    """Merge files of random values of 1 KB."""
    table = Table(path)
    rows = file_megabytes * 1_000_000 // VALUE_BYTES
    size, count = 0, megabytes // file_megabytes
    try:
        for number in range(count):
            data = os.urandom(rows * VALUE_BYTES)
            values = [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]
            files = _written(
                Target(path, VALUES), [pa.record_batch({"value": pa.array(values, pa.binary())})]
            )
            size += sum(file.bytes for file in files)
            table.append(files, Batch(OWNER, 1, number), VALUES, ())
        started = time.perf_counter()
        done = keep_up(Table(path), UpkeepPolicy(), 0)
        seconds = time.perf_counter() - started
        newest = table.newest()
        if newest is None or newest.count() != rows * count or done.merged != count:
            raise RuntimeError(f"the files were not merged: {done}")
    finally:
        shutil.rmtree(Path(path), ignore_errors=True)
    return {"megabytes": size / 1e6, "seconds": seconds}


def _written(target: Target, batches: list[pa.RecordBatch]) -> list[WrittenFile]:
    reports = write_files(iter(batches), target)
    return [WrittenFile.of(report) for batch in reports for report in batch.to_pylist()]


if __name__ == "__main__":
    task = {"commits": commits, "merge": merge}[sys.argv[1]]
    print(json.dumps(task(**json.loads(sys.argv[2]))), flush=True)
