"""Starting the query of a pipeline, as far as it can be seen without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.sinks.writing import start_query
from klamm.pipelines.state import Attempt, State
from tests.pipelines.projects import make_project

TABLE = """
@source(topic="orders", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
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


@pytest.mark.parametrize(
    ("sink", "columns", "problem"),
    [
        ("parquet('t')", ["n", "Batch"], "has a column batch"),
        ("parquet('t', partition_by='day')", ["n"], "partition_by of table names day"),
        ("parquet('t', partition_by='_partition')", ["_partition"], "readers ignore folders"),
        ("to_table('t', sort_by=['n', 'day'])", ["n"], "sort_by of table names day"),
        ("to_table('t'), mode='upsert', keys='id'", ["n"], "keys of table names id"),
        ("to_table('t'), mode='upsert', keys='n', order_by='at'", ["n"], "order_by of table names at"),
    ],
)
def test_columns_that_a_table_cannot_have_are_refused(
    tmp_path: Path, sink: str, columns: list[str], problem: str
) -> None:
    project = make_project(tmp_path, TABLE.replace('to_table("orders")', sink))
    pipeline = load_definitions(project).pipelines["table"]
    frame: Any = Frame(columns)
    with pytest.raises(DefinitionError, match=problem):
        start_query(frame, pipeline, project, State(project), Attempt(1), once=True, on_rows=print)
