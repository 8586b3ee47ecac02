"""Starting the query of a pipeline, as far as it can be seen without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.sinks.writing import Started, start_query
from klamm.pipelines.state import Attempt, State
from tests.pipelines.projects import make_project

TABLE = """
@source(topic="orders", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=parquet("orders"))
def table(orders):
    return orders
"""


class Frame:
    """Stands in for a DataFrame and its writer: whatever is asked of it, it is there."""

    sparkSession = None

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns

    def __getattr__(self, name: str) -> Any:
        return self if name == "writeStream" else lambda *values, **named: self


def test_a_query_that_is_started_again_leaves_to_compaction_what_it_is_at(tmp_path: Path) -> None:
    project = make_project(tmp_path, TABLE)
    pipeline = load_definitions(project).pipelines["table"]
    frame: Any = Frame(["n"])

    def start(again: Started | None) -> Started:
        state, attempt = State(project), Attempt(1)
        return start_query(frame, pipeline, project, state, attempt, once=True, on_rows=print, again=again)

    first = start(None)
    assert first.table is not None
    merging = Path(first.table.new_staging("merged"))
    merging.mkdir(parents=True)
    second = start(first)
    assert merging.exists()
    assert second.table is first.table and second.log is first.log, "one lock, and one memory of the log"
    start(None)
    assert not merging.exists(), "a run of its own removes what a killed one has left"


@pytest.mark.parametrize(
    ("sink", "columns", "problem"),
    [
        ("parquet('t')", ["n", "Batch"], "has a column batch"),
        ("parquet('t', partition_by='day')", ["n"], "partition_by of table names day"),
        ("parquet('t', partition_by='_partition')", ["_partition"], "readers ignore folders"),
        ("delta('t', partition_by=['n', 'day'])", ["n"], "partition_by of table names day"),
    ],
)
def test_columns_that_a_table_cannot_have_are_refused(
    tmp_path: Path, sink: str, columns: list[str], problem: str
) -> None:
    project = make_project(tmp_path, TABLE.replace('parquet("orders")', sink))
    pipeline = load_definitions(project).pipelines["table"]
    frame: Any = Frame(columns)
    with pytest.raises(DefinitionError, match=problem):
        start_query(frame, pipeline, project, State(project), Attempt(1), once=True, on_rows=print)
