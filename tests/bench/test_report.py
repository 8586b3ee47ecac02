"""What the bench makes of figures: verdicts, and tables that leave each other's place alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.aims import AIMS, CLIENT_AIMS, Compared, judge
from bench.layouts import BROKERS, CLIENTS, LAYOUTS
from bench.python_clients import AIO, AIOKAFKA, COLUMNS
from bench.runner import Results

from bench import markdown, report

PAGE = "".join(
    f"<!-- tables of the {name} -->\nold {name}\n<!-- end of the tables of the {name} -->\n"
    for name in (layout.name for layout in LAYOUTS)
)
SEND = next(aim for aim in CLIENT_AIMS if aim.compared is Compared.TO_AIOKAFKA and aim.contestant == AIO)
POLL_ARROW = next(aim for aim in CLIENT_AIMS if aim.contestant == COLUMNS and aim.compared is Compared.ALONE)


def results_of(*figures: tuple[str, float], of: object = SEND) -> Results:
    results = Results()
    for contestant, value in figures:
        results.add(of.section, of.case, contestant, {of.metric: value})  # type: ignore[attr-defined]
    return results


@pytest.mark.parametrize(("ours", "reached"), [(200.0, True), (199.0, False)])
def test_a_client_is_held_against_another(ours: float, reached: bool) -> None:
    verdict = judge(results_of((AIO, ours), (AIOKAFKA, 100.0)), SEND)
    assert verdict.measured == ours / 100
    assert verdict.is_reached is reached


def test_an_aim_is_not_judged_without_its_reference() -> None:
    assert judge(results_of((AIO, 200.0)), SEND).is_reached is None
    assert judge(results_of((COLUMNS, 5e6), of=POLL_ARROW), POLL_ARROW).is_reached


def test_a_run_fills_only_the_tables_it_has_figures_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, run = tmp_path / "page.md", tmp_path / "run.json"
    page.write_text(PAGE)
    monkeypatch.setattr(markdown, "PAGE", page)
    report.write_json(run, results_of((AIO, 200.0), (AIOKAFKA, 100.0)), is_quick=True, seconds=1.0)
    assert markdown.main([str(run)]) == 0
    text = page.read_text()
    assert f"old {BROKERS.name}" in text
    assert f"old {CLIENTS.name}" not in text
    assert "| 2.00× | yes |" in text


def test_every_aim_names_a_contestant_of_its_table() -> None:
    for layout in LAYOUTS:
        assert {aim.contestant for aim in layout.aims} <= set(layout.contestants)
        references = {aim.compared.reference for aim in layout.aims} - {None}
        assert references <= set(layout.contestants)
    assert len(AIMS) == sum(len(layout.aims) for layout in LAYOUTS)
