"""Readers that know nothing of us, while batches are committed and files merged under their eyes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upkeep import UpkeepPolicy, keep_up
from tests.pipelines.reading import READERS, read_on
from tests.pipelines.tables.writing import append, make_table

ROUNDS_S = 5.0
BEGUN_S = 100.0
MERGED_AT_ONCE = 5


def changes(table: Table) -> Iterator[int]:
    """Commit one row after the other for ever, and merge their files every few rows; yields how many."""
    number = 0
    while True:
        append(table, range(number, number + 1), number)
        number += 1
        yield number
        if number % MERGED_AT_ONCE == 0:
            keep_up(table, UpkeepPolicy(least_files=2), 0)
            yield number


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path)


def test_no_reader_sees_a_row_twice_or_misses_one(table: Table) -> None:
    spawning = multiprocessing.get_context("spawn")
    published, stop, results = spawning.Value("q", 0), spawning.Event(), spawning.Queue()
    begun = spawning.Barrier(len(READERS) + 1)
    arguments = (table.location, published, begun, stop, results)
    readers = [spawning.Process(target=read_on, args=(reader, *arguments)) for reader in READERS]
    changing = changes(table)
    published.value = next(changing)  # so that there is something to read from the start
    for reader in readers:
        reader.start()
    begun.wait(BEGUN_S)
    # Chosen by time: the more often tables change under their readers, the more moments are met.
    deadline = time.monotonic() + ROUNDS_S
    for count in changing:
        published.value = count
        if time.monotonic() > deadline:
            break
    stop.set()
    found = [results.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join(60)
    for name, good, gave_up, complaints in found:
        assert complaints == [], (name, complaints[:5])
        assert gave_up == [], (name, "nobody has to read again")
        assert good > 0, name
