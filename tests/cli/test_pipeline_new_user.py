"""The path of a new user, typed as docs/PIPELINES.md says it: from `init` to a table that DuckDB reads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import KLAMM, Command, clean_environment
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce
from tests.spark.topics import records_of
from tests.waiting import wait_until

import klamm.testing
from klamm.cli.pipelines.scaffold import SAMPLE_ORDERS
from klamm.pipelines.status import read_status

PATIENCE_SECONDS = 280.0
"""Spark's start, on a machine that runs other tests beside this one."""

BAD_ORDERS = 14
UNDECODABLE, NEGATIVE = 7, 7

QUERY = """\
import duckdb
from deltalake import DeltaTable
orders = DeltaTable("tables/orders").to_pyarrow_dataset()
columns = "count(*), count(distinct order_id), min(amount) > 0, count(day)"
print(duckdb.sql(f"select {columns} from orders").fetchall())
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def type_klamm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = run(folder, KLAMM, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "WARN" not in done.stderr, done.stderr
    return done


@pytest.fixture
def shop(klamm: klamm.testing.Broker, tmp_path: Path) -> Path:
    """A new project, whose sample is in its topic."""
    type_klamm(tmp_path, "pipeline", "init", "shop", "--bootstrap", klamm.bootstrap)
    folder = tmp_path / "shop"
    events = ("ingest", "replay", "events/orders.jsonl", "--topic", "orders", "--key", "customer")
    type_klamm(folder, *events, "--bootstrap", klamm.bootstrap)
    return folder


@pytest.mark.long
@pytest.mark.timeout(900)
def test_from_init_to_a_table(klamm: klamm.testing.Broker, shop: Path) -> None:
    type_klamm(shop, "pipeline", "lint")

    done = type_klamm(shop, "pipeline", "run", "--once")
    assert done.stdout == ""
    assert f"orders_table: {NEGATIVE} rows broke the expectation 'orders: amount is positive'" in done.stderr
    told = json.loads(type_klamm(shop, "pipeline", "status", "-o", "json").stdout)
    statuses = {status["pipeline"]: status for status in told}
    assert {name: status["state"] for name, status in statuses.items()} == {
        "orders_table": "finished",
        "revenue": "finished",
    }
    table = statuses["orders_table"]
    assert (table["rows_in"], table["rows_out"], table["lag"]) == (
        SAMPLE_ORDERS,
        SAMPLE_ORDERS - BAD_ORDERS,
        0,
    )
    assert (table["dead_letters"], table["undecodable"]) == (BAD_ORDERS, UNDECODABLE)

    good = SAMPLE_ORDERS - BAD_ORDERS
    assert run(shop, sys.executable, "-c", QUERY).stdout == f"[({good}, {good}, True, {good})]\n"
    letters = records_of(klamm.bootstrap, "shop.dead-letters")
    assert len(letters) == 2 * BAD_ORDERS, "each pipeline has its own"
    minutes = [json.loads(record.value or b"") for record in records_of(klamm.bootstrap, "revenue")]
    assert sum(minute["orders"] for minute in minutes) == good

    planned = type_klamm(
        shop, "pipeline", "replay", "orders_table", "--from", "earliest", "--dry-run", "-o", "json"
    )
    assert json.loads(planned.stdout)["replaced_rows"] == good


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_preview_shows_the_last_orders(shop: Path) -> None:
    shown = type_klamm(shop, "pipeline", "preview", "clean_orders", "--last", "4", "-o", "json")
    rows = json.loads(shown.stdout)
    assert rows and {row["order_id"] for row in rows} <= {
        f"o-{SAMPLE_ORDERS - number:06d}" for number in range(1, 5)
    }
    columns = {"order_id", "customer", "item", "quantity", "amount", "ordered_at", "day"}
    assert all(set(row) == columns for row in rows)


FAILING = """
    from pyspark.sql import functions as F

    @source(topic="orders", schema="order INT")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"))
    def orders_table(orders):
        return orders

    @pipeline(to=topic("halves"))
    def halves(orders):
        @F.udf("int")
        def half(number):
            return number // 0
        return orders.select(half("order").cast("string").alias("value"))
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_failure_is_named_others_go_on_and_ctrl_c_ends_it(
    klamm: klamm.testing.Broker, tmp_path: Path
) -> None:
    toml = f'[project]\nname="shop"\nbootstrap="{klamm.bootstrap}"\n[spark]\nmaster="local[2]"\n'
    toml += '[run]\nretries=0\non_failure="go on"\n'
    project = make_project(tmp_path, FAILING, toml=toml)
    produce(klamm.bootstrap, "orders", '{"order": 1}')

    def state(name: str) -> tuple[str, int]:
        found = {status.pipeline: status for status in read_status(project)}
        return (found[name].state, found[name].rows_out) if name in found else ("", 0)

    with Command([KLAMM, "pipeline", "run"], tmp_path) as command:
        wait_until(lambda: state("halves")[0] == "failed", "one fails", PATIENCE_SECONDS)
        wait_until(lambda: state("orders_table") == ("running", 1), "the other goes on", PATIENCE_SECONDS)
        produce(klamm.bootstrap, "orders", '{"order": 2}')
        wait_until(lambda: state("orders_table") == ("running", 2), "and on", PATIENCE_SECONDS)
        busy = run(tmp_path, KLAMM, "pipeline", "run", "--once")
        assert busy.returncode == 1 and "in use" in busy.stderr, busy
        assert command.stop(signal.SIGINT) == 1, command
    said = "\n".join(command.complained)
    assert "ZeroDivisionError" in said and f"{tmp_path}/pipelines/orders.py:" in said
    assert "orders_table: stopped" in said and ".klamm/logs" in said
    assert "Traceback" not in said and "\x1b" not in said, said
    assert "halves failed" in run(tmp_path, KLAMM, "pipeline", "status").stdout
