"""Old code against new on the same records: with a real broker, a real repository, and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import klamm
from klamm.cli.pipelines.differences import diff_lines, diff_value
from klamm.pipelines.diff import PipelineDiff, Records, diff, outcomes
from klamm.pipelines.discovery import isolated, load_definitions
from klamm.pipelines.project import Project
from klamm.pipelines.revisions import RevisionError, taken_out
from klamm.testing import Broker
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce

OLD = """
from pyspark.sql import functions as F

from lib.rates import RATE


@source(topic="orders", schema="id STRING, amount DOUBLE, tags MAP<STRING, DOUBLE>")
@expect("positive", "amount > 0", otherwise="dead_letter")
def orders(rows):
    return rows

@transform
def priced(orders):
    return orders.withColumn("price", orders.amount * RATE).withColumn("odd", F.lit("NaN").cast("double"))

@pipeline(to=to_table("orders"))
def orders_table(priced):
    return priced

@pipeline(to=to_table("newest"), mode="upsert", keys=["id"])
def newest(priced):
    return priced.select("id", "price")

@pipeline(to=to_table("totals"), mode="complete")
def totals(orders):
    return orders.groupBy("id").agg(F.sum("amount").alias("amount"))

@pipeline(to=to_table("old"))
def old_one(orders):
    return orders
"""

NEW = (
    OLD.replace("amount > 0", "amount > 1")
    .replace("orders.amount * RATE)", "orders.amount * RATE).withColumn('colour', F.lit('red'))")
    .replace("def old_one", "def new_one")
)
RATES = "from pipelines._double import double\n\nRATE = double({rate})\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders")
        values = [{"id": name, "amount": amount} for name, amount in zip("aabc", (1, 2, 3, 4), strict=True)]
        produce(broker.bootstrap, "orders", *map(json.dumps, values), '{"amount": "twelve"}')
        yield broker


def write(root: Path, broker: Broker, text: str, rate: float) -> Project:
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib/rates.py").write_text(RATES.format(rate=rate))
    files = {"orders.py": text, "_double.py": "def double(number):\n    return 2 * number\n"}
    return make_project(root, files, bootstrap=broker.bootstrap)


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "init")
    git(root, "add", "-A")
    git(root, "commit", "-m", "first")


def by_name(found: list[PipelineDiff]) -> dict[str, PipelineDiff]:
    return {each.pipeline: each for each in found}


def test_uncommitted_changes_are_compared_with_the_last_commit(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    root = tmp_path / "repository/shop"
    root.mkdir(parents=True)
    write(root, broker, OLD, rate=1)
    commit(root.parent)
    project = write(root, broker, NEW, rate=1.5)
    with isolated(root), taken_out(project, "HEAD") as base:
        assert base.root != root
        load_definitions(project)  # imported before: the base must not get these modules
        rates = sys.modules["lib.rates"]
        found = by_name(diff(project, base, last=4, spark=spark))
        assert sys.modules["lib.rates"] is rates
    assert not base.root.exists()
    assert "lib.rates" not in sys.modules

    by_record = found["orders_table"]
    assert by_record.matched_by == "record"
    assert by_record.new_columns == {"colour": "STRING"}
    # The newest four records are at the offsets 1 to 4; the last one cannot be decoded.
    changes = {each.after[by_record.columns.index("_offset")]: each for each in by_record.rows.changed}
    assert {
        offset: [by_record.columns[index] for index in each.columns] for offset, each in changes.items()
    } == {1: ["price"], 2: ["price"], 3: ["price"]}
    assert not by_record.rows.added
    assert not by_record.rows.gone

    by_keys = found["newest"]
    assert (by_keys.matched_by, by_keys.keys) == ("keys", ("id",))
    assert sorted((each.before, each.after) for each in by_keys.rows.changed) == [
        (("a", 4.0), ("a", 6.0)),
        (("b", 6.0), ("b", 9.0)),
        (("c", 8.0), ("c", 12.0)),
    ]
    assert (found["old_one"].after, found["new_one"].before) == (None, None)
    assert found["totals"].matched_by == "row"
    assert not found["totals"].is_different
    lines = list(diff_lines([by_record, found["totals"], found["old_one"], found["new_one"]], "HEAD", show=2))
    assert lines == [
        "orders_table: 3 rows before, 3 now: 0 added, 0 gone, 3 changed",
        "  new column colour STRING",
        *[f"  {line}" for line in (lines[2].strip(), lines[3].strip())],
        "  … and 1 more rows; --show 3 shows all",
        "totals: no difference in 3 rows",
        "old_one: gone, only HEAD has it",
        "new_one: new, HEAD does not have it: 3 rows",
    ]
    assert lines[2].startswith("  ~ orders-0 at offset ")
    assert "price " in lines[2]
    (price,) = [each["columns"]["price"] for each in diff_value(by_keys, 20)["rows"]["changed"][:1]]
    assert price["after"] == price["before"] * 1.5


def test_rows_that_break_more_rules_are_told_with_an_example(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    write(tmp_path, broker, OLD, rate=1)
    commit(tmp_path)
    stricter = OLD.replace("amount > 0", "amount > 2").replace("tags MAP<STRING, DOUBLE>", "tags STRING")
    project = write(tmp_path, broker, stricter.replace("amount DOUBLE", "amount FLOAT"), rate=1)
    with taken_out(project, "HEAD") as base:
        (found,) = diff(project, base, ["orders_table"], spark=spark)
    assert found.retyped["tags"] == ("MAP<STRING,DOUBLE>", "STRING")
    assert [(each.rule, each.before, each.after) for each in found.rules] == [("positive", 0, 2)]
    assert [each[found.columns.index("_offset")] for each in found.rows.gone] == [1, 0]
    assert not found.rows.changed, "the same numbers in another type"
    (rule,) = [line for line in diff_lines([found], "HEAD", show=20) if "positive" in line]
    assert rule == (
        "  orders: 2 rows break the expectation 'positive', 0 before; for example orders-0 at offset 0: "
        "amount is 1.0, so it is not true: amount > 2"
    )


def test_code_that_fails_is_told(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    write(tmp_path, broker, OLD, rate=1)
    commit(tmp_path)
    project = write(tmp_path, broker, OLD.replace('"id", "price"', '"id", "prize"'), rate=1)
    with taken_out(project, "HEAD") as base:
        (found,) = diff(project, base, ["newest"], spark=spark)
        assert "prize" in found.error
        (found,) = diff(base, project, ["newest"], spark=spark)
    assert not found.error
    assert found.before is not None
    assert found.before.error.startswith("pipelines/orders.py:")
    assert found.is_different


TABLES = """
@source(table="bronze")
def numbers(rows): return rows

@source(table="bronze", snapshot=True)
def all_numbers(rows): return rows.groupBy().count()

@pipeline(to=to_table("silver"))
def silver(numbers, all_numbers): return numbers.crossJoin(all_numbers)
"""


def test_both_versions_get_the_same_rows_of_a_table_that_grows_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    project = make_project(tmp_path, TABLES)
    write_deltalake(str(tmp_path / "tables/bronze"), pa.table({"n": [1, 2, 3]}))
    records = Records(project, 2)
    found = []
    for _ in range(2):
        (outcome,) = outcomes(project, load_definitions(project), (), records, spark).values()
        assert not outcome.error
        found.append(sorted(outcome.rows))
        write_deltalake(str(tmp_path / "tables/bronze"), pa.table({"n": [4]}), mode="append")
    assert found == [[(2, 3), (3, 3)]] * 2


def test_revisions_that_are_not_there_are_told(broker: Broker, tmp_path: Path) -> None:
    project = write(tmp_path, broker, OLD, rate=1)
    with (
        pytest.raises(RevisionError, match="Keep the project in a git repository"),
        taken_out(project, "HEAD"),
    ):
        pass
    (tmp_path / "other").write_text("")
    git(tmp_path, "init")
    with pytest.raises(RevisionError, match="'HEAD' is not a revision"), taken_out(project, "HEAD"):
        pass
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "without the project")
    with pytest.raises(RevisionError, match=r"has no klamm\.toml"), taken_out(project, "HEAD"):
        pass
    with pytest.raises(RevisionError, match="'v9' is not a revision"), taken_out(project, "v9"):
        pass


def test_the_users_files_stay_as_they_are(broker: Broker, tmp_path: Path) -> None:
    project = write(tmp_path, broker, OLD, rate=1)
    commit(tmp_path)
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "inferred.json").write_text("{}")
    (tmp_path / "pipelines/orders.py").write_text("changed")
    with taken_out(project, "HEAD") as base:
        assert "def orders_table" in (base.pipelines / "orders.py").read_text()
        assert (base.schemas / "inferred.json").read_text() == "{}"
        assert base.tables == project.tables
    status = subprocess.run(["git", "status", "--short"], cwd=tmp_path, capture_output=True, text=True)
    assert status.stdout.split() == ["M", "pipelines/orders.py", "??", "schemas/"]
    assert (tmp_path / "pipelines/orders.py").read_text() == "changed"
