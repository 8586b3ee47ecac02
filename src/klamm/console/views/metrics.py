"""The charts of what happened: rates, lag, sizes, and how quickly brokers answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from klamm.console.views.rates import rate
from klamm.console.watching import history as series
from klamm.console.watching.history import History, Point
from klamm.console.watching.picture import Picture

MOST_LINES = 5
"""Lines of a chart; more cannot be told apart."""


class Unit(StrEnum):
    """What the values of a chart are."""

    RECORDS = "records"
    PER_SECOND = "records/s"
    BYTES = "bytes"
    MILLISECONDS = "ms"


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    points: list[Point]


@dataclass(frozen=True, slots=True)
class ChartView:
    """A chart: what it shows, and its lines, the largest first."""

    title: str
    note: str
    unit: Unit
    lines: list[ChartLine]


def charts(picture: Picture, history: History, range_ms: int) -> list[ChartView]:
    def line(name: str, key: str) -> ChartLine:
        return ChartLine(name, history.points(key, picture.taken_ms, range_ms))

    topics = _largest(
        {
            name: rate(history, series.produced(name))
            for name, topic in picture.topics.items()
            if not topic.is_internal
        }
    )
    readers = _largest({name: rate(history, series.consumed(name)) for name in picture.groups})
    behind = _largest({name: group.lag for name, group in picture.groups.items()})
    brokers = [broker for broker in picture.brokers.values() if not broker.is_gone][:MOST_LINES]
    return [
        ChartView(
            "Written and read",
            "all topics; all groups that commit",
            Unit.PER_SECOND,
            [line("written", series.ALL_PRODUCED), line("read", series.ALL_CONSUMED)],
        ),
        ChartView("Lag", "of all groups together", Unit.RECORDS, [line("lag", series.ALL_LAG)]),
        ChartView(
            "Written by topic",
            "the busiest now",
            Unit.PER_SECOND,
            [line(name, series.produced(name)) for name in topics],
        ),
        ChartView(
            "Lag by group",
            "the furthest behind now",
            Unit.RECORDS,
            [line(name, series.lag(name)) for name in behind],
        ),
        ChartView(
            "Read by group",
            "the fastest now",
            Unit.PER_SECOND,
            [line(name, series.consumed(name)) for name in readers],
        ),
        ChartView(
            "On disk",
            "by broker",
            Unit.BYTES,
            [line(f"broker {one.id}", series.size(one.id)) for one in brokers],
        ),
        ChartView(
            "Time to answer",
            "the slowest answer to a look of the console, by broker",
            Unit.MILLISECONDS,
            [line(f"broker {one.id}", series.answer_time(one.id)) for one in brokers],
        ),
    ]


def _largest(values: dict[str, float | None] | dict[str, int | None]) -> list[str]:
    known = [(name, value) for name, value in values.items() if value]
    return [name for name, _ in sorted(known, key=lambda one: (-one[1], one[0]))[:MOST_LINES]]
