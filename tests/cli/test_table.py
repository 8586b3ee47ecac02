"""`klamm table …` on a table that a pipeline has written, without a project and in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.projects import make_project
from tests.pipelines.tables.writing import append
from typer.testing import CliRunner

from klamm.cli.main import app
from klamm.pipelines.tables.table import Table


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    table = Table(f"{project.tables}/orders")
    append(table, range(0, 3), 0)
    append(table, range(3, 5), 1)
    return tmp_path


def type_table(folder: Path, *words: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(app, ["table", *words])


def test_a_table_is_looked_at_compared_and_restored(shop: Path) -> None:
    told = type_table(shop, "history", "orders", "-o", "json")
    versions = json.loads(told.stdout)
    assert [(each["version"], each["what"], each["rows"]) for each in versions] == [
        (1, "batch 1 of attempt 1", 2),
        (0, "batch 0 of attempt 1", 3),
    ]
    differing = type_table(shop, "diff", "orders", "-o", "json")
    assert (differing.exit_code, json.loads(differing.stdout)) == (
        1,
        {"added": [{"n": 3}, {"n": 4}], "gone": []},
    )
    assert "2 rows added, 0 gone" in type_table(shop, "diff", "orders").stderr
    refused = type_table(shop, "restore", "orders", "0")
    assert refused.exit_code == 1 and "confirm with --yes" in refused.stderr
    assert type_table(shop, "restore", "orders", "0", "--yes").exit_code == 0
    assert type_table(shop, "diff", "orders", "--from", "0").exit_code == 0
    by_path = type_table(shop.parent, "history", str(shop / "tables/orders"))
    assert "version 0 restored" in by_path.stdout and by_path.exit_code == 0


def test_what_is_not_there_is_told_in_one_line(shop: Path) -> None:
    for words, told in (
        (("history", "other"), "there is no table at"),
        (("diff", "orders", "--from", "9"), "has no version 9"),
        (("restore", "orders", "soon"), "'soon' is not a version"),
    ):
        done = type_table(shop, *words)
        assert done.exit_code == 1 and told in done.stderr, words
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("klamm: ")
