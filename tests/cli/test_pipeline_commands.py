"""The commands of `klamm pipeline` that need no Spark: what they print, and what their exit status says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce
from tests.records.test_arrow_extra import WITHOUT
from tests.spark.topics import records_of
from typer.testing import CliRunner, Result

import klamm.testing
from klamm.cli.main import app
from klamm.pipelines.addressing import OFFSET, TOPIC
from klamm.pipelines.dead_letters import PARTITION, PIPELINE, RULE, TIMESTAMP
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.status import write_status

ORDERS = """
    @source(topic="orders", schema="order INT")
    @expect("small", "order < 10", otherwise="dead_letter")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"))
    def orders_table(orders):
        return orders
"""


@pytest.fixture
def shop(klamm: klamm.testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a broker of its own, in whose folder the commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KLAMM_BOOTSTRAP", raising=False)
    return make_project(tmp_path, ORDERS, toml=f'[project]\nname="shop"\nbootstrap="{klamm.bootstrap}"\n')


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *words])


def complaint(result: Result) -> str:
    """The line that it fails with."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("klamm: ")
    return line


def test_the_project_is_looked_for_upward(
    shop: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(shop.bootstrap, "orders", '{"order": 1}')
    monkeypatch.chdir(shop.pipelines)
    assert run("lint").exit_code == 0
    elsewhere = tmp_path.parent
    monkeypatch.chdir(elsewhere)
    assert "there is no project here" in complaint(run("status"))
    assert "there is no project at" in complaint(run("status", "--project", str(shop.pipelines)))
    assert run("lint", "--project", str(shop.root)).exit_code == 0


def test_lint_says_where_and_fails_on_errors(shop: Project) -> None:
    produce(shop.bootstrap, "orders", '{"order": 1}', '{"order": "many"}')
    done = run("lint")
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    assert line.startswith("pipelines/orders.py:") and "warning" in line and "order is 'many'" in line
    assert done.stderr == "shop: 0 errors, 1 warning\n"
    make_project(shop.root, ORDERS.replace("order < 10", "ordre < 10"))
    done = run("lint", "--bootstrap", shop.bootstrap, "-o", "json")
    assert done.exit_code == 1
    (finding,) = [each for each in json.loads(done.stdout) if each["severity"] == "error"]
    assert "ordre" in finding["what"] and finding["file"].endswith("orders.py") and finding["line"] > 1
    (shop.pipelines / "orders.py").write_text("from klamm.pipelines import sorce\n")
    done = run("lint")
    assert done.exit_code == 1 and "sorce" in done.stdout and "Traceback" not in done.output


def test_status_of_what_ran_and_of_what_failed(shop: Project) -> None:
    done = run("status")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no pipeline of shop has run yet" in done.stderr
    finished = PipelineStatus(
        "orders_table",
        "table orders",
        state="finished",
        batch=7,
        rows_in=1200,
        rows_out=1190,
        lag=3,
        dead_letters=10,
        rules={"orders: small": 10},
        unknown_fields={"orders": "colour"},
    )
    state = State(shop)
    write_status(state, finished)
    done = run("status")
    assert done.exit_code == 0, done.output
    words = done.stdout.split()
    for word in ("orders_table", "finished", "7", "1,200", "1,190", "3", "10"):
        assert word in words
    assert "10 rows broke the expectation 'orders: small'" in done.stdout
    assert "klamm pipeline schema orders --update" in done.stdout
    assert json.loads(run("status", "-o", "json").stdout) == [finished.to_json()]
    write_status(state, PipelineStatus("revenue", "topic revenue", state="failed", error="it broke"))
    done = run("status", "-o", "jsonl")
    assert done.exit_code == 1
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["finished", "failed"]
    assert "revenue failed: it broke" in run("status").stdout


def test_a_run_that_was_killed_is_not_called_running(shop: Project) -> None:
    write_status(State(shop), PipelineStatus("orders_table", "table orders", state="running"))
    done = run("status")
    assert done.exit_code == 1
    assert "killed" in done.stdout
    with State(shop).lock("a test"):
        done = run("status")
    assert done.exit_code == 0 and "running" in done.stdout


def test_redrive_says_what_waits_for_a_topic(shop: Project) -> None:
    headers = {PIPELINE: b"orders_table", RULE: b"small", "klamm.topic": b"orders", PARTITION: b"0"}
    with klamm.Admin(shop.bootstrap) as admin:
        admin.create_topic("orders", 1)
    with klamm.Producer(shop.bootstrap) as producer:
        producer.send(shop.dead_letters, b"bad", headers=headers).result()
    done = run("redrive", "--dry-run", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"pipelines": {}, "dry_run": True})
    assert "orders_table: 1 dead-letter records wait: its table has no batch yet; --to-topic" in done.stderr
    assert "no pipeline called 'other'" in complaint(run("redrive", "--pipeline", "other"))
    assert "give --to-topic too" in complaint(run("redrive", "--for-all"))


def test_redrive_sends_to_a_retry_topic_what_a_table_cannot_take(shop: Project, tmp_path: Path) -> None:
    text = ORDERS.replace('to_table("orders")', 'to_table("orders"), mode="upsert", keys="order"')
    make_project(tmp_path, text, toml=(tmp_path / "klamm.toml").read_text())
    with klamm.Admin(shop.bootstrap) as admin:
        admin.create_topic("orders", 1)
    told = {PIPELINE: b"orders_table", RULE: b"small", TOPIC: b"orders", PARTITION: b"0", OFFSET: b"7"}
    with klamm.Producer(shop.bootstrap) as producer:
        producer.send(shop.dead_letters, b"bad", headers=told).result()
    assert "wait: it has not run yet in this folder" in run("redrive", "--dry-run").stderr
    State(shop).keep_attempt("orders_table", Attempt.first({}))
    done = run("redrive", "--yes", "-o", "json")
    said = "1 dead-letter records to send to its retry topic: rows of its table change (mode='upsert')"
    assert said in done.stderr and "orders_table: 1 sent; the next run reads them" in done.stderr
    sent = json.loads(done.stdout)["pipelines"]["orders_table"]["sent"]
    assert sent == {"shop.orders_table.orders.retry": 1}
    assert b"bad" in [record.value for record in records_of(shop.bootstrap, "shop.orders_table.orders.retry")]
    assert records_of(shop.bootstrap, "orders") == []
    assert "orders_table: 0 dead-letter records" in run("redrive", "--dry-run").stderr


def test_redrive_asks_counts_and_sends_once(shop: Project) -> None:
    produce(shop.bootstrap, "orders", "{}")
    with klamm.Producer(shop.bootstrap) as producer:
        for offset, rule in enumerate(("small", "small", "decode")):
            headers = {
                TOPIC: "orders",
                PARTITION: "0",
                OFFSET: str(offset),
                TIMESTAMP: "1700000000000",
                PIPELINE: "orders_table",
                RULE: rule,
            }
            sent = {name: text.encode() for name, text in headers.items()}
            producer.send(shop.dead_letters, b"bad", headers=sent)
    done = run("redrive", "--to-topic", "--to-topic")
    assert done.exit_code == 1, "nobody is there to be asked"
    assert "3 to orders" in done.stderr and "--yes" in done.stderr
    done = run("redrive", "--to-topic", "--rule", "small", "--dry-run", "-o", "json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "sent": {"orders": 2},
        "waiting": {},
        "kept": {},
        "repeated": 0,
        "rows": 0,
        "of_rows": 2,
        "dry_run": True,
    }
    assert len(records_of(shop.bootstrap, "orders")) == 1
    assert "2 sent" in run("redrive", "--to-topic", "--rule", "small", "--yes").stderr
    assert "1 sent" in run("redrive", "--to-topic", "--yes").stderr
    assert "none" in run("redrive", "--to-topic", "--yes").stderr
    assert len(records_of(shop.bootstrap, "orders")) == 4


def test_replay_refuses_what_cannot_be(shop: Project) -> None:
    assert "has not run yet" in complaint(run("replay", "orders_table", "--from", "earliest", "--yes"))
    assert "no pipeline called 'oders'" in complaint(run("replay", "oders", "--from", "earliest"))
    a_range = ("replay", "orders_table", "--from", "earliest", "--to", "latest", "--dry-run")
    assert "has committed no batch to its table yet" in complaint(run(*a_range))


def test_a_schema_is_shown_and_updated(shop: Project) -> None:
    produce(shop.bootstrap, "orders", '{"order": 1, "colour": "red"}')
    make_project(shop.root, ORDERS.replace('"order INT"', '"infer"'))
    bootstrap = ("--bootstrap", shop.bootstrap)
    assert "has not been inferred yet" in complaint(run("schema", "orders", *bootstrap))
    done = run("schema", "orders", "--update", *bootstrap)
    assert done.exit_code == 0, done.output
    assert "wrote schemas/orders.json" in done.stderr
    assert {"order", "bigint", "colour", "string"} <= set(done.stdout.split())
    produce(shop.bootstrap, "orders", '{"order": 1, "size": 4.5}')
    done = run("schema", "orders", "--update", "-o", "json", *bootstrap)
    assert "added: size" in done.stderr
    names = [field["name"] for field in json.loads(done.stdout)["fields"]]
    assert sorted(names) == ["colour", "order", "size"] and names[-1] == "size"
    assert "no new fields" in run("schema", "orders", "--update", *bootstrap).stderr


@pytest.mark.parametrize("words", [("lint",), ("preview", "orders"), ("run", "--once")])
def test_without_spark_the_extra_is_named(shop: Project, words: tuple[str, ...]) -> None:
    code = WITHOUT.format(missing="pyspark") + (
        f"import sys\nfrom klamm.cli.main import main\nsys.argv = ['klamm', 'pipeline', *{words!r}]\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'klamm[spark]'" in done.stderr and "Traceback" not in done.stderr


def test_help_and_init_cost_no_spark() -> None:
    """Whoever starts a broker, or asks for help, does not wait for what only pipelines need."""
    code = (
        "import sys, klamm.cli.main\nprint({'pyspark', 'pyarrow', 'numpy', 'rich.live'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
