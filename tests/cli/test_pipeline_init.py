"""`klamm pipeline init` makes a project that has nothing to be complained of, and writes over nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import klamm.testing
from klamm.cli.main import app
from klamm.cli.pipelines.events import BAD_EVERY, order_lines
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.project import Project

FILES = ["klamm.toml", "pipelines/orders.py", "README.md", ".gitignore", "events/orders.jsonl"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KLAMM_BOOTSTRAP", raising=False)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_new_project_is_whole_and_says_what_comes_next(folder: Path) -> None:
    done = run("pipeline", "init", "shop")
    assert done.exit_code == 0, done.output
    for file in FILES:
        assert (folder / "shop" / file).is_file()
        assert f"shop/{file}" in done.stdout
    for command in ("klamm up", "klamm ingest replay events/orders.jsonl", "lint", "preview", "run --once"):
        assert command in done.stdout
    assert len((folder / "shop/README.md").read_text().splitlines()) <= 6
    project = Project.load(folder / "shop")
    assert (project.name, project.bootstrap) == ("shop", "localhost:9092")
    definitions = load_definitions(project)
    assert set(definitions.pipelines) == {"orders_table", "revenue"}


def test_another_broker_and_no_events(folder: Path) -> None:
    done = run("pipeline", "init", "shop", "--bootstrap", "kafka.example:9093", "--no-sample")
    assert done.exit_code == 0, done.output
    assert Project.load(folder / "shop").bootstrap == "kafka.example:9093"
    assert not (folder / "shop/events").exists()
    assert "klamm up" not in done.stdout and "ingest" not in done.stdout


def test_nothing_is_written_over(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop/README.md").write_text("mine")
    done = run("pipeline", "init", "shop")
    assert done.exit_code == 1
    assert "already has README.md" in done.stderr
    assert [file.name for file in (folder / "shop").iterdir()] == ["README.md"]
    assert (folder / "shop/README.md").read_text() == "mine"


def test_a_name_that_topics_cannot_have(folder: Path) -> None:
    done = run("pipeline", "init", "my shop")
    assert done.exit_code == 1
    assert "'my shop' is not a valid project name" in done.stderr
    assert list(folder.iterdir()) == []


def test_the_sample_has_each_kind_of_bad_order() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    orders = [json.loads(line) for line in order_lines(3 * BAD_EVERY, now, timedelta(seconds=1))]
    assert orders == [json.loads(line) for line in order_lines(3 * BAD_EVERY, now, timedelta(seconds=1))]
    bad = orders[BAD_EVERY - 1 :: BAD_EVERY]
    assert [(each["amount"] == "twelve", each["amount"] == -1, each["customer"] is None) for each in bad] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    good = [each for each in orders if each not in bad]
    assert all(each["amount"] > 0 and each["customer"] for each in good)
    assert orders[-1]["ordered_at"] == "2026-01-31T12:00:00.000Z"


def test_lint_takes_it_as_it_is(folder: Path, klamm: klamm.testing.Broker) -> None:
    run("pipeline", "init", "shop", "--bootstrap", klamm.bootstrap)
    sent = run(
        "ingest", "replay", "shop/events/orders.jsonl", "--topic", "orders", "--bootstrap", klamm.bootstrap
    )
    assert sent.exit_code == 0, sent.output
    done = run("pipeline", "lint", "--project", "shop", "-o", "json")
    assert done.exit_code == 0, done.output
    assert {finding["severity"] for finding in json.loads(done.stdout)} <= {"warning"}
