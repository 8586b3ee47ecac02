"""`klamm pipeline dev` as a user runs it: files are saved, broken and mended, and other commands use its
session."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cli.commands import KLAMM, Command, clean_environment, run_klamm
from tests.pipelines.projects import IMPORTS, make_project
from tests.pipelines.queries import produce
from tests.waiting import wait_until

import klamm.testing

ORDERS = """
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@source(topic="orders", schema="n BIGINT")
def orders(rows):
    return rows

@transform
def scaled(orders):
    @F.udf(LongType())
    def times(n):
        from pipelines._factor import FACTOR
        return n * FACTOR

    return orders.withColumn("m", times("n"))

@pipeline(to=to_table("scaled"))
def scaled_table(scaled):
    from pipelines._factor import FACTOR
    return scaled.withColumn("factor", F.lit(FACTOR))
"""

START_S = 240.0
SHOWN_S = 60.0
"""Beside other loads; on an idle machine two seconds are enough."""


def lines_after(dev: Command, start: int, text: str, patience_s: float) -> list[str]:
    """What it has printed since `start`, once a line with this text is there and the save is done."""

    def done() -> list[str]:
        lines = dev.printed[start:]
        is_done = any(text in line for line in lines) and any(line.endswith(" s") for line in lines)
        return lines if is_done else []

    return wait_until(done, lambda: f"{text!r} is shown: {dev}", patience_s)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_saves_are_shown_and_commands_answered(klamm: klamm.testing.Broker, tmp_path: Path) -> None:
    produce(klamm.bootstrap, "orders", '{"n": 1}', '{"n": 2}', '{"n": "x"}')
    make_project(tmp_path, ORDERS, toml=f'[project]\nname="shop"\nbootstrap="{klamm.bootstrap}"\n')
    pipelines = tmp_path / "pipelines"
    (pipelines / "_factor.py").write_text("FACTOR = 2\n")

    def save(name: str, text: str, shown: str) -> list[str]:
        start = len(dev.printed)
        (pipelines / name).write_text(text)
        began = time.monotonic()
        lines = lines_after(dev, start, shown, SHOWN_S)
        print(f"{name}: shown {time.monotonic() - began:.2f} s after it was saved")
        return lines

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [KLAMM, "pipeline", *words], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True
        )

    with run_klamm(tmp_path, "pipeline", "dev", "--last", "2") as dev:
        lines = lines_after(dev, 0, "scaled_table: 1 row of the newest 2 records", START_S)
        assert any("orders: 1 row could not be decoded" in line for line in lines)
        save("orders.py", IMPORTS + ORDERS.replace("n * FACTOR", "n * FACTOR + 1"), "2 changed")

        # A helper that workers import, twice in a second and with the same size.
        for factor, changes in ((3, "m 5 → 7"), (4, "m 7 → 9")):
            lines = save("_factor.py", f"FACTOR = {factor}\n", changes)
            assert any(f"factor {factor - 1} → {factor}" in line for line in lines), lines

        changed = IMPORTS + ORDERS.replace("n * FACTOR", "n * FACTOR + 1")
        lines = save("orders.py", changed + "def broken(:\n", "SyntaxError")
        assert any("pipelines/orders.py:" in line and ": error: " in line for line in lines), lines
        save("orders.py", changed, "scaled: 1 row of the newest 2 records")
        save("_factor.py", "FACTOR = 1 / 0\n", "ZeroDivisionError")
        lines = save("_factor.py", "FACTOR = 6\n", "factor 4 → 6")
        assert any("2 changed" in line for line in lines), "compared with the last version that worked"

        answered = ask("preview", "scaled", "-o", "jsonl")
        assert (answered.returncode, answered.stdout) == (0, '{"n": 2, "m": 13}\n{"n": 1, "m": 7}\n')
        dev.wait_for_line("answered klamm pipeline preview")
        linted = ask("lint", "--deep", "-o", "json")
        dev.wait_for_line("answered klamm pipeline lint")
        second = ask("dev")
        assert second.returncode == 1 and "is in use: process" in second.stderr
        dev.stop(signal.SIGKILL)

    assert (tmp_path / ".klamm/dev.sock").exists(), "nobody was there to remove it"
    alone = ask("preview", "scaled", "-o", "jsonl")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, answered.stdout, answered.stderr)
    assert ask("lint", "--deep", "-o", "json").stdout == linted.stdout

    with run_klamm(tmp_path, "pipeline", "dev", "scaled", "--last", "2") as dev:
        lines_after(dev, 0, "scaled: 1 row of the newest 2 records", START_S)
        assert dev.stop(signal.SIGINT) == 0
    assert not (tmp_path / ".klamm/dev.sock").exists()


def test_a_node_that_is_not_there_is_told_before_spark_starts(tmp_path: Path) -> None:
    make_project(tmp_path, ORDERS)
    with run_klamm(tmp_path, "pipeline", "dev", "scald") as dev:
        assert dev.wait() == 1
        assert dev.printed == []
        assert "Did you mean scaled" in dev.complained[0]
