"""Which aims a run reaches, from the medians of its figures."""

from __future__ import annotations

import pytest
from bench.aims import AIMS, CLIENT_AIMS, Compared, evaluate
from bench.layouts import LAYOUTS
from bench.python_clients import AIO, AIOKAFKA, COLUMNS
from bench.runner import Results

SEND = next(aim for aim in CLIENT_AIMS if aim.compared is Compared.TO_AIOKAFKA and aim.contestant == AIO)
POLL_ARROW = next(aim for aim in CLIENT_AIMS if aim.contestant == COLUMNS and aim.compared is Compared.ALONE)


def results_of(*figures: tuple[str, float], of: object = SEND) -> Results:
    results = Results()
    for contestant, value in figures:
        results.add(of.section, of.case, contestant, {of.metric: value})  # type: ignore[attr-defined]
    return results


@pytest.mark.parametrize(("ours", "reached"), [(200.0, True), (199.0, False)])
def test_a_client_is_held_against_another(ours: float, reached: bool) -> None:
    evaluation = evaluate(results_of((AIO, ours), (AIOKAFKA, 100.0)), SEND)
    assert evaluation.measured == ours / 100
    assert evaluation.is_reached is reached


def test_an_aim_is_neither_reached_nor_missed_without_its_reference() -> None:
    assert evaluate(results_of((AIO, 200.0)), SEND).is_reached is None
    assert evaluate(results_of((COLUMNS, 5e6), of=POLL_ARROW), POLL_ARROW).is_reached


def test_every_aim_names_a_contestant_of_its_table() -> None:
    for layout in LAYOUTS:
        assert {aim.contestant for aim in layout.aims} <= set(layout.contestants)
        references = {aim.compared.reference for aim in layout.aims} - {None}
        assert references <= set(layout.contestants)
    assert len(AIMS) == sum(len(layout.aims) for layout in LAYOUTS)
