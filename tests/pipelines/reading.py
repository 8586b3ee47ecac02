"""Readers that read a table again and again, each in a process of its own, while it is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
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


READERS: dict[str, Callable[[Path], list[int]]] = {
    "pandas": read_by_pandas,
    "polars": read_by_polars,
    "duckdb": read_by_duckdb,
}


def complaint(found: list[int], least: int, most: int) -> str | None:
    """What is wrong with rows that were read while the numbers from `least` to `most` came in."""
    if len(found) != len(set(found)):
        return f"{len(found) - len(set(found))} rows twice"
    if missing := set(range(least)) - set(found):
        return f"{len(missing)} of {least} rows hidden"
    if unknown := set(found) - set(range(most)):
        return f"rows from nowhere: {sorted(unknown)[:5]}"
    return None


def read_on(
    reader: str, table: str, published: Synchronized[int], begun: Barrier, stop: Event, results: Any
) -> None:
    """Read until told to stop; put how often it went well, how often the reader gave up, and complaints."""
    READERS[reader](Path(table))  # imports what it needs
    begun.wait()
    good = 0
    gave_up: list[str] = []
    complaints: list[str] = []
    while not stop.is_set():
        least = published.value
        try:
            found = READERS[reader](Path(table))
        except Exception as error:  # each reader has errors of its own
            gave_up.append(f"{type(error).__name__}: {error}")
            continue
        good += 1
        # One more may be in the table than was counted yet.
        if problem := complaint(found, least, published.value + 1):
            complaints.append(problem)
    results.put((reader, good, gave_up[:5], complaints))
    results.close()
    results.join_thread()
    os._exit(0)  # DuckDB complains when a process ends in the usual way
