from __future__ import annotations

import math

import pytest

from klamm.metrics.text import Family, Sample, lines, number


def test_a_family_and_its_lines() -> None:
    family = Family("klamm_x_total", "counter", "How many x.")
    assert family.head == "# HELP klamm_x_total How many x.\n# TYPE klamm_x_total counter\n"
    samples = [
        Sample("klamm_x_total", (), 3),
        Sample("klamm_x_total", (("topic", "orders"), ("partition", "0")), 0.25),
    ]
    assert lines(samples) == 'klamm_x_total 3\nklamm_x_total{topic="orders",partition="0"} 0.25\n'


def test_names_that_a_client_chose_cannot_end_a_label_or_a_line() -> None:
    hostile = 'a"} 1\nkafka_brokers 9\\\ud800'
    assert lines([Sample("x", (("group", hostile),), 1)]) == ('x{group="a\\"} 1\\nkafka_brokers 9\\\\?"} 1\n')


@pytest.mark.parametrize(
    ("value", "text"),
    [(2**63, str(2**63)), (0.1, "0.1"), (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
