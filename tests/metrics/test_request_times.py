from __future__ import annotations

import math
import random

import pytest

from klamm.metrics.request_times import BOUNDS_S, FETCH, RequestTimes, TimesByApi


def test_quantiles_are_right_within_a_fifth() -> None:
    times, seed = RequestTimes(), random.randrange(1 << 32)
    chance = random.Random(seed)
    took_s = sorted(chance.lognormvariate(-8, 1.5) for _ in range(5_000))
    for each in took_s:
        times.note(each)
    for quantile, found in zip((0.5, 0.99), times.quantiles_s((0.5, 0.99)), strict=True):
        true = took_s[int(quantile * len(took_s))]
        assert found == pytest.approx(true, rel=0.2), f"seed {seed}, quantile {quantile}"
    assert (times.count, times.sum_s) == (5_000, pytest.approx(sum(took_s)))


def test_one_timing_stands_for_all_that_were_only_counted() -> None:
    times = RequestTimes()
    times.untimed += 7
    assert times.count == 7 and math.isnan(times.quantiles_s((0.5,))[0])
    times.note_untimed(0.010, now_s=100.0)
    assert (times.count, times.untimed, times.sum_s) == (7, 0, pytest.approx(0.07))
    assert times.quantiles_s((0.5,))[0] == pytest.approx(0.010, rel=0.2)
    assert times.due_s > 100.0


def test_quantiles_forget_what_is_two_windows_ago_and_counts_do_not() -> None:
    times = RequestTimes()
    times.note(1.0)
    times.turn()
    assert times.quantiles_s((0.5,))[0] == pytest.approx(1.0, rel=0.2)
    times.note(0.001)
    assert times.quantiles_s((0.99,))[0] == pytest.approx(1.0, rel=0.2)
    times.turn()
    assert times.quantiles_s((0.99,))[0] == pytest.approx(0.001, rel=0.2)
    times.turn()
    assert math.isnan(times.quantiles_s((0.5,))[0])
    assert (times.count, times.sum_s) == (2, pytest.approx(1.001))


@pytest.mark.parametrize("took_s", [0.0, 1e-9, BOUNDS_S[-1], 1e6])
def test_times_outside_of_the_bounds(took_s: float) -> None:
    times = RequestTimes()
    times.note(took_s)
    assert 0 <= times.quantiles_s((0.5,))[0] <= BOUNDS_S[-1]


def test_fetches_of_followers_are_told_from_those_of_consumers() -> None:
    times = TimesByApi()
    times.of_clients[FETCH].note(0.5)
    times.of_brokers[FETCH].note(0.1)
    times.of_brokers[0].note(0.1)
    assert [times.of_clients[key].count for key in (0, FETCH)] == [1, 1]
    times.turn()
    times.turn()
    assert all(math.isnan(each.quantiles_s((0.5,))[0]) for each in (times.of_clients[0], times.of_brokers[1]))
