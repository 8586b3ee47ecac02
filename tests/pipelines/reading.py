"""Readers that read a table again and again, each in a process of its own, while it is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any


def read_by_pandas(table: Path) -> list[int]:
    from deltalake import DeltaTable

    return [int(number) for number in DeltaTable(str(table)).to_pandas(columns=["n"])["n"]]


def read_by_polars(table: Path) -> list[int]:
    import polars

    return [int(number) for number in polars.scan_delta(str(table)).select("n").collect()["n"]]


def read_by_duckdb(table: Path) -> list[int]:
    import duckdb
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found = connection.execute("SELECT n FROM rows").fetchall()
    return [int(number) for (number,) in found]


@cache
def _spark() -> Any:
    import pyspark_klamm

    settings = {"spark.driver.memory": "512m", "spark.ui.enabled": "false"}
    return pyspark_klamm.session("reader", "local[1]", settings)


def read_by_spark(table: Path) -> list[int]:
    """Spark without a jar for Delta, as a table's files are given to it."""
    from deltalake import DeltaTable

    files = DeltaTable(str(table)).file_uris()
    if not files:
        return []
    return [row.n for row in _spark().read.schema("n BIGINT").parquet(*files).collect()]


READERS: dict[str, Callable[[Path], list[int]]] = {
    "pandas": read_by_pandas,
    "polars": read_by_polars,
    "duckdb": read_by_duckdb,
}
ALL_READERS = {**READERS, "spark": read_by_spark}


def complaint(found: list[int], least: int, most: int) -> str | None:
    """What is wrong with rows that were read while the numbers from `least` to `most` came in."""
    if len(found) != len(set(found)):
        return f"{len(found) - len(set(found))} rows twice"
    if missing := set(range(least)) - set(found):
        return f"{len(missing)} of {least} rows hidden"
    if unknown := set(found) - set(range(most)):
        return f"rows from nowhere: {sorted(unknown)[:5]}"
    return None


BATCH = 20
BAD = 7
"""Of each batch of BATCH numbers, the one that breaks the rule until it is mended."""


def not_whole_batches(found: list[int], least: int, most: int) -> str | None:
    """What is wrong with rows that should be the first batches, as a whole, and at least `least` of them.

    Of the numbers that break a rule all are there, or none: they come in one redrive.
    """
    if len(found) != len(set(found)):
        return f"{len(found) - len(set(found))} rows twice"
    good = sorted(number for number in found if number % BATCH != BAD)
    bad = sorted(number for number in found if number % BATCH == BAD)
    batches = len(good) // (BATCH - 1)
    if good != [number for number in range(BATCH * batches) if number % BATCH != BAD]:
        return f"not whole batches: {len(good)} good rows up to {good[-1]}"
    if bad not in ([], [BATCH * batch + BAD for batch in range(batches)]):
        return f"a part of a redrive: {len(bad)} bad rows beside {batches} batches"
    return f"{batches} of {least} batches" if batches < least else None


JUDGES: dict[str, Callable[[list[int], int, int], str | None]] = {
    "rows": complaint,
    "batches": not_whole_batches,
}


def read_on(
    reader: str,
    table: str,
    published: Synchronized[int],
    begun: Barrier,
    stop: Event,
    results: Any,
    judge: str = "rows",
    pause_s: float = 0.0,
) -> None:
    """Read until told to stop; put how often it went well, how often the reader gave up, and complaints."""
    read = ALL_READERS[reader]
    read(Path(table))  # imports what it needs
    begun.wait()
    good = 0
    gave_up: list[str] = []
    complaints: list[str] = []
    while not stop.wait(pause_s):
        least = published.value
        try:
            found = read(Path(table))
        except Exception as error:  # each reader has errors of its own
            gave_up.append(f"{type(error).__name__}: {error}")
            continue
        good += 1
        # One more may be in the table than was counted yet.
        if problem := JUDGES[judge](found, least, published.value + 1):
            complaints.append(problem)
    results.put((reader, good, gave_up[:5], complaints))
    results.close()
    results.join_thread()
    if reader == "spark":
        _spark().stop()
    os._exit(0)  # DuckDB complains when a process ends in the usual way
