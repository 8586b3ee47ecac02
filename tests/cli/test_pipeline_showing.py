"""How a run is shown, on a terminal and elsewhere, and that Spark's own words stay out of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from klamm.cli.output import Output
from klamm.cli.pipelines.spark_logs import quiet_spark, tell_log
from klamm.cli.pipelines.watching import LINE_INTERVAL_S, Watch
from klamm.cli.showing import write_rows
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project

RUNNING = PipelineStatus(
    "orders_table", "table orders", state="running", batch=3, rows_in=1500, rows_out=1490
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_off_a_terminal_a_pipeline_has_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    with Watch("starting …", clock=lambda: now[0]) as watch:
        for _ in range(5):
            watch.show([RUNNING])
        now[0] += LINE_INTERVAL_S
        watch.show([replace(RUNNING, rows_in=2500, rate=100.0)])
        finished = replace(RUNNING, state="finished", lag=0)
        watch.show([finished])
        now[0] += 10 * LINE_INTERVAL_S
        watch.show([finished])
    assert capsys.readouterr().err.splitlines() == [
        "starting …",
        "orders_table: running · batch 3 · 1,500 rows in · 1,490 out · 0/s · lag – · 0 dead letters",
        "orders_table: running · batch 3 · 2,500 rows in · 1,490 out · 100/s · lag – · 0 dead letters",
        "orders_table: finished · batch 3 · 1,500 rows in · 1,490 out · 0/s · lag 0 · 0 dead letters",
    ]


def test_on_a_terminal_the_last_table_stays_with_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Watch("starting …") as watch:
        watch.show([RUNNING])
        watch.show(
            [replace(RUNNING, state="failed", dead_letters=12, error="pipelines/orders.py:7: it broke")]
        )
    shown = terminal.getvalue()
    last = shown[shown.rindex("pipeline ") :]
    assert "failed" in last and "1,500" in last and "12" in last
    assert "orders_table failed: pipelines/orders.py:7: it broke" in last
    assert "\x1b[" in shown, "it was drawn in place"


def test_rows_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["text", "number", "when", "bytes", "nothing", "list"]
    row = [
        "a\nb" + "c" * 200,
        Decimal("1.50"),
        datetime(2026, 1, 31, 12),
        bytearray(b"raw"),
        None,
        [1, {"x": 2}],
    ]
    write_rows(columns, [row], Output.TABLE)
    header, _, line = capsys.readouterr().out.splitlines()
    assert header.split() == columns
    for cell in ("a bccc", "…", "1.50", "2026-01-31 12:00:00", "raw", "–", '[1, {"x": 2}]'):
        assert cell in line
    write_rows(columns, [row, row], Output.JSONL)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    value = json.loads(first)
    assert value["text"] == row[0] and value["when"] == "2026-01-31T12:00:00" and value["nothing"] is None
    write_rows(columns, [row], Output.JSON)
    assert json.loads(capsys.readouterr().out) == [value]


def test_what_other_processes_say_goes_to_a_file(tmp_path: Path) -> None:
    """Children inherit the descriptor of stderr, not Python's stream."""
    (tmp_path / "klamm.toml").write_text(
        '[project]\nname = "shop"\n[spark]\n"spark.driver.extraJavaOptions" = "-Dmine=1"'
    )
    code = (
        "import subprocess, sys\n"
        "from klamm.cli.pipelines.spark_logs import quiet_spark\n"
        "from klamm.pipelines.project import Project\n"
        "with quiet_spark(Project.load('.')) as project:\n"
        "    subprocess.run(['sh', '-c', 'echo noise >&2'])\n"
        "    print('progress', file=sys.stderr)\n"
        "    print(project.spark['spark.driver.extraJavaOptions'])\n"
        "subprocess.run(['sh', '-c', 'echo after >&2'])\n"
        "print('end', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "progress\nafter\nend\n"
    assert (tmp_path / ".klamm/logs/output.log").read_text() == "noise\n"
    mine, log4j = done.stdout.split()
    assert mine == "-Dmine=1" and log4j.startswith("-Dlog4j2.configurationFile=file://")
    assert str(tmp_path / ".klamm/logs/spark.log") in (tmp_path / ".klamm/logs/log4j2.properties").read_text()


def test_a_submitted_driver_leaves_logs_to_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "klamm.toml").write_text('[project]\nname = "shop"\n')
    project = Project.load(tmp_path)
    tell_log(project)
    assert ".klamm/logs" in capsys.readouterr().err
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with quiet_spark(project) as quiet:
        assert quiet is project
    tell_log(project)
    assert capsys.readouterr().err == "" and not project.state.exists()
