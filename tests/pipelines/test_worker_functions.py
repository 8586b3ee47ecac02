"""Functions of pipelines that run in Spark's workers leave what they have loaded to no collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

from klamm.lineformats.regex import regex_format
from klamm.pipelines.dead_letters import DeadLetters, send_batch
from klamm.pipelines.decoding import lines
from klamm.pipelines.decoding.workers import struct_udf
from klamm.pipelines.tables.appended import TableFile
from klamm.pipelines.tables.files import Target, write_files
from klamm.pipelines.tables.reading import read_files
from pyspark_klamm import worker_memory

ROWS = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())})
COLUMNS = StructType([StructField("n", LongType())])


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "_done", {})
    # A new context makes itself the one of its process: this ends with the test.
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    monkeypatch.setattr(TaskContext(), "_partitionId", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def write(folder: Path) -> list[dict[str, Any]]:
    reports = write_files(iter([ROWS]), Target(str(folder), ROWS.schema))
    return [report for batch in reports for report in batch.to_pylist()]


def read(folder: Path) -> None:
    path = write(folder)[0]["path"]
    forget()
    file = TableFile(path, 1, 3, {}, 0)
    list(read_files([file], str(folder), {}, COLUMNS))


def decode(folder: Path) -> None:
    values = pa.array([b"1"])
    struct_udf(COLUMNS, lambda: lambda value: {"n": int(value)}).func(values)


def decode_lines(folder: Path) -> None:
    result = StructType([StructField("n", StringType()), StructField("error", StringType())])
    lines._udf(regex_format(r"(?P<n>\S+)"), result).func(pa.array([b"1"]))  # type: ignore[attr-defined]


def send_dead_letters(folder: Path) -> None:
    good = pa.nulls(3, pa.string())
    send_batch(DeadLetters("dead", (), "orders", None), "orders", None, good)


def forget() -> None:
    gc.unfreeze()
    worker_memory._done.clear()


@pytest.mark.parametrize("work", [write, read, decode, decode_lines, send_dead_letters])
def test_what_a_worker_has_loaded_is_frozen(work: Callable[[Path], None], tmp_path: Path) -> None:
    work(tmp_path)
    assert gc.get_freeze_count() > 10_000, "the modules alone are more"
