"""`make simulate`: what is reported of many seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from klamm.testing.simulation import __main__ as command
from klamm.testing.simulation.cluster import Result, SimulationFailed

HALF_AN_HOUR = Result(
    seconds=1800.0,
    committed=1,
    acknowledged=1,
    read=1,
    elections=1,
    commits=1,
    rebalances=1,
    fenced=1,
    checks=1,
    faults=Counter({"kill": 2}),
    digest=0,
)


def test_an_interrupted_run_reports_what_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulate(seed: int) -> Result:
        if seed == 8:
            raise SimulationFailed("seed 8 failed: two brokers lead")
        if seed == 9:
            raise KeyboardInterrupt
        return HALF_AN_HOUR

    monkeypatch.setattr(command, "simulate", simulate)
    assert command._run_many(7, hours=1000.0, workers=1) == 130
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["seed 8 failed: two brokers lead", "interrupted"]
    assert {"| seeds | 7 to 8 |", "| cluster-hours | 0.5 |", "| fault: kill | 2 |"} <= set(said)
    assert said[-2] == "| violated invariants | 1 |"
    assert said[-1].startswith("failed: 8;")
