from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.main import app
from klamm.pipelines.discovery import discover
from klamm.pipelines.outline import Outline, Rule, TableRead, outline
from tests.pipelines.projects import make_project

PIPELINES = """
    print("imported")

    from klamm.pipelines import table

    @source(topic=["orders", "returns"], schema="order INT", undecodable="drop")
    @expect("small", "order < 10", otherwise="dead_letter")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"), trigger="2 seconds")
    @expect("even", "order % 2 = 0", otherwise="warn")
    def orders_table(orders):
        return orders

    @source(table="orders")
    def stored(rows):
        return rows

    @pipeline(to=topic("totals", key="order"), mode="update")
    def totals(stored):
        return stored.groupBy("order").count()
"""


def outline_of(folder: Path, files: str) -> Outline:
    project = make_project(folder, files)
    found = discover(project)
    return outline(project, found.definitions, found.problems)


def test_an_outline_says_what_pipelines_read_write_and_expect(tmp_path: Path) -> None:
    told = outline_of(tmp_path, PIPELINES)
    assert told.problems == ()
    first, second = told.pipelines
    assert (first.topics, first.sink, first.target) == (("orders", "returns"), "table", "orders")
    assert (first.group, first.trigger, first.mode) == ("shop.orders_table", "2 seconds", "append")
    assert first.rules == (
        Rule("orders: decode", "", "drop"),
        Rule("orders: small", "order < 10", "dead_letter"),
        Rule("orders_table: even", "order % 2 = 0", "warn"),
    )
    assert second.tables == (TableRead("orders", first.location, "orders_table"),)
    assert (second.topics, second.sink, second.target) == ((), "topic", "totals")
    assert first.writes_dead_letters and not second.writes_dead_letters


def test_an_outline_passes_through_json(tmp_path: Path) -> None:
    told = outline_of(tmp_path, PIPELINES)
    assert Outline.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_a_pipeline_with_an_error_does_not_hide_the_others(tmp_path: Path) -> None:
    told = outline_of(
        tmp_path,
        """
        @source(topic="orders", schema="order INT")
        def orders(rows):
            return rows

        @pipeline(to=to_table("orders"))
        def good(orders):
            return orders

        @pipeline(to=to_table("others"))
        def bad(othrs):
            return othrs
        """,
    )
    assert [each.name for each in told.pipelines] == ["good"]
    (problem,) = told.problems
    assert "othrs" in problem


@pytest.mark.parametrize("output", ["json", "table"])
def test_the_command_prints_the_outline_alone(tmp_path: Path, output: str) -> None:
    make_project(tmp_path, PIPELINES)
    result = CliRunner().invoke(app, ["pipeline", "graph", "--project", str(tmp_path), "-o", output])
    assert result.exit_code == 0, result.output
    assert "imported" in result.stderr
    if output == "json":
        assert Outline.from_json(json.loads(result.stdout)).pipelines[0].name == "orders_table"
    else:
        assert "orders, returns" in result.stdout and "table orders" in result.stdout


def test_the_command_fails_for_files_with_errors(tmp_path: Path) -> None:
    make_project(tmp_path, "1 / 0")
    result = CliRunner().invoke(app, ["pipeline", "graph", "--project", str(tmp_path), "-o", "json"])
    assert result.exit_code == 1
    (problem,) = Outline.from_json(json.loads(result.stdout)).problems
    assert "division by zero" in problem
