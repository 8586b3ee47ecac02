"""What the console makes of what brokers tell: histories, paces, pages of tables, addresses. Without IO."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.console.addresses import name_of, segment, topic_url
from klamm.console.shell.cells import duration_text, rate_text
from klamm.console.views.paging import Query, page_of
from klamm.console.watching import history as series
from klamm.console.watching.history import MOST_SERIES, SHORT_LENGTH, SHORT_RANGE_MS, History, Track
from klamm.console.watching.pace import Trend, pace


@given(st.text(min_size=1))
def test_a_name_is_a_segment_of_a_path(name: str) -> None:
    text = segment(name)
    assert name_of(text) == name
    assert text not in (".", "..") and set(text) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    )


def test_usual_names_stay_as_they_are() -> None:
    assert topic_url("orders.v1_x-y", "consumers") == "/topics/orders.v1_x-y/consumers"
    assert segment("a/b") == "a~2Fb"


# ---- histories


def test_a_track_keeps_the_newest_values_and_knows_gaps() -> None:
    track = Track(3)
    track.add(10, {"a": 1})
    track.add(20, {"b": 5})
    track.add(30, {"a": 3, "b": 6})
    assert track.points("a") == [(10, 1), (20, None), (30, 3)]
    track.add(40, {"a": 4})
    assert track.points("a") == [(20, None), (30, 3), (40, 4)]
    assert track.points("a", since_ms=31) == [(40, 4)]
    assert track.tail("a", 2) == [(30, 3), (40, 4)]
    assert track.points("never") == [(20, None), (30, None), (40, None)]


def test_a_series_that_has_ended_is_forgotten() -> None:
    track = Track(3)
    track.add(0, {"gone": 1})
    for time in range(1, 5):
        track.add(time, {"here": time})
    assert track.tail("gone", 3) == []


def test_a_track_holds_so_many_series() -> None:
    track = Track(2)
    track.add(0, {str(number): 1.0 for number in range(MOST_SERIES + 5)})
    assert track.tail(str(MOST_SERIES - 1), 1) and not track.tail(str(MOST_SERIES), 1)


def test_a_history_has_every_look_and_every_minute() -> None:
    history = History()
    for second in range(0, 3_600, 5):
        history.add(second * 1000, {"lag x": second})
    now = 3_595_000
    assert len(history.points("lag x", now)) == SHORT_LENGTH
    hour = history.points("lag x", now, 4 * SHORT_RANGE_MS)
    assert len(hour) == 60 and hour[1][0] - hour[0][0] == 60_000
    assert history.latest("lag x", 2) == [3_590, 3_595]
    assert series.lag("x") == "lag x"


# ---- paces


def points(*values: float) -> list[tuple[int, float | None]]:
    return [(place * 5_000, value) for place, value in enumerate(values)]


def test_a_group_that_catches_up_says_when() -> None:
    found = pace(points(1000, 900, 800, 700), 700)
    assert found.trend is Trend.CATCHING_UP
    assert found.per_s == pytest.approx(-20) and found.seconds_left == pytest.approx(35)


def test_a_group_that_falls_behind_says_how_fast() -> None:
    found = pace(points(0, 600, 1200), 1200)
    assert (found.trend, found.per_s) == (Trend.FALLING_BEHIND, pytest.approx(120))


def test_only_the_latest_values_say_how_it_goes_on() -> None:
    rose_long_ago = [(place * 1_000, 1000.0 * place) for place in range(100)]
    falls_now = [(200_000 + place * 5_000, 5000 - 100.0 * place) for place in range(10)]
    assert pace([*rose_long_ago, *falls_now], 4100).trend is Trend.CATCHING_UP


@pytest.mark.parametrize(
    ("values", "lag", "trend"),
    [
        ((50, 20, 0), 0, Trend.CAUGHT_UP),
        ((5, 5, 5), 5, Trend.STEADY),
        ((5, 9), 9, Trend.UNKNOWN),
        ((), None, Trend.UNKNOWN),
        ((5, 5, 5), None, Trend.UNKNOWN),
    ],
)
def test_other_paces(values: tuple[float, ...], lag: int | None, trend: Trend) -> None:
    assert pace(points(*values), lag).trend is trend


# ---- pages of tables


def paged(query: Query, rows: list[tuple[str, int | None]]) -> list[str]:
    found = page_of(rows, query, name=lambda row: row[0], columns={"size": lambda row: row[1]})
    return [name for name, _ in found.rows]


def test_rows_are_searched_by_all_words_and_sorted_with_the_unknown_last() -> None:
    rows = [("orders.eu", 3), ("orders.us", None), ("clicks", 9), ("Orders.at", 1)]
    assert paged(Query(search="ORD"), rows) == ["Orders.at", "orders.eu", "orders.us"]
    assert paged(Query(search="us ord"), rows) == ["orders.us"]
    assert paged(Query(sort="size"), rows) == ["Orders.at", "orders.eu", "clicks", "orders.us"]
    assert paged(Query(sort="-size"), rows) == ["clicks", "orders.eu", "Orders.at", "orders.us"]


def test_a_page_beyond_the_last_is_the_last() -> None:
    rows = [(f"{number:02d}", number) for number in range(25)]
    found = page_of(rows, Query(page=9, per_page=10), name=lambda row: row[0], columns={})
    assert (found.page, found.pages, found.total, len(found.rows)) == (3, 3, 25, 5)


def test_a_query_is_in_the_url() -> None:
    query = Query.of({"search": "a b", "sort": "-lag", "page": "3", "show": "internal,,unhealthy"}, "name")
    assert (query.column, query.is_descending, query.filters) == ("lag", True, ("internal", "unhealthy"))
    assert Query.of(query.as_texts("name"), "name") == query
    assert Query.of({"page": "-1"}).page == Query.of({"page": "x" * 9}).page == 1
    assert Query.of({}, "name").as_texts("name") == {}
    by_lag = query.sorted_by("lag", first_descending=True)
    assert (by_lag.sort, by_lag.page) == ("lag", 1)
    assert query.sorted_by("size", first_descending=True).sort == "-size"


def test_numbers_are_short() -> None:
    assert [rate_text(value) for value in (None, 0.01, 0.5, 12.3, 1234.5)] == [
        "–",
        "<0.1",
        "0.5",
        "12",
        "1,234",
    ]
    assert [duration_text(value) for value in (0.2, 40, 240, 9_000, 400_000)] == [
        "1 s",
        "40 s",
        "4 min",
        "2 h",
        "5 days",
    ]
