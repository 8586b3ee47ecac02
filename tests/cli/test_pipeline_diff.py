"""`klamm pipeline diff` as CI calls it: what it prints, and what its exit status says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import KLAMM, clean_environment
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce
from typer.testing import CliRunner, Result

import klamm.testing
from klamm.cli.main import app

ORDERS = """
    @source(topic="orders", schema="n INT")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"))
    def orders_table(orders):
        return orders.withColumn("n", orders.n * 2)
"""


def write(folder: Path, bootstrap: str, text: str = ORDERS) -> None:
    make_project(folder, text, toml=f'[project]\nname="shop"\nbootstrap="{bootstrap}"\n')


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "init")
    git(folder, "add", "-A")
    git(folder, "commit", "-m", "first")


def type_klamm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since the command stops its Spark."""
    return subprocess.run(
        [KLAMM, *words], cwd=folder, env=clean_environment(), capture_output=True, text=True
    )


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "diff", "--project", str(folder), *words])


def test_what_cannot_be_compared_has_a_status_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "localhost:1")
    without = run(tmp_path)
    assert (without.exit_code, without.stdout) == (2, "")
    assert "Keep the project in a git repository" in without.stderr
    commit(tmp_path)
    for words, told in (
        (["--base", "v9"], "'v9' is not a revision"),
        (["orders"], "orders is a source; only pipelines are compared"),
        (["order_table"], "Did you mean orders_table?"),
    ):
        result = run(tmp_path, *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_differences_have_the_status_1(klamm: klamm.testing.Broker, tmp_path: Path) -> None:
    produce(klamm.bootstrap, "orders", '{"n": 1}', '{"n": 2}')
    write(tmp_path, klamm.bootstrap)
    commit(tmp_path)
    same = type_klamm(tmp_path, "pipeline", "diff")
    assert same.returncode == 0, same.stderr
    assert same.stdout == "orders_table: no difference in 2 rows\n"
    write(tmp_path, klamm.bootstrap, ORDERS.replace("orders.n * 2", "orders.n * 3"))
    differs = type_klamm(tmp_path, "pipeline", "diff", "-o", "json", "--show", "1")
    assert differs.returncode == 1, differs.stderr
    found = json.loads(differs.stdout)
    assert (found["base"], found["last"]) == ("HEAD", 1000)
    (orders,) = found["pipelines"]
    assert orders["counts"] == {"added": 0, "gone": 0, "changed": 2}
    (changed,) = orders["rows"]["changed"]
    assert changed == {
        "key": {"_topic": "orders", "_partition": 0, "_offset": 1},
        "columns": {"n": {"before": 4, "after": 6}},
    }
