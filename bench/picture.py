"""The picture of the ratios: docs/benchmarks/ratios.svg, drawn from the published figures.

One bar per aim that compares Klamm with somebody else, and a few comparisons without an aim, on a logarithmic
scale. A bar to the right of 1× says that Klamm is that many times faster (or smaller, for memory), a bar to
the left that the other is. A mark shows the aim. Bars of missed aims are hatched and say so, so that no
reader depends on colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.aims import AIMS, SHOWN_WITHOUT_AIM, Aim, Compared, evaluate
from bench.runner import Results

FILE = Path("docs/benchmarks/ratios.svg")

HEADINGS = {
    Compared.TO_KAFKA: "Broker, compared with Apache Kafka",
    Compared.TO_KAFKA_CLUSTER: "Three brokers, compared with three of Apache Kafka",
    Compared.TO_AIOKAFKA: "Client, compared with aiokafka",
    Compared.TO_CONFLUENT: "Client, compared with confluent-kafka (librdkafka)",
    Compared.TO_OFFICIAL: "Spark, compared with its official Kafka connector",
}
"""The groups of bars, in their order."""

WIDTH = 960
LEFT, RIGHT = 350, 790  # between them lie the bars
TOP, ROW, GROUP = 78, 19, 34
BAR = 11
VALUE_GAP = 6
STATE_X = 858

STYLE = """
text{font:12.5px sans-serif;fill:#1c2b33}
.title{font-size:17px;font-weight:600}
.group{font-size:13px;font-weight:600}
.note,.axis{font-size:11.5px;fill:#51636d}
.page{fill:#ffffff}
.grid{stroke:#dde4e8}
.one{stroke:#51636d;stroke-width:1.4}
.reached{fill:#2f7f95}
.missed{fill:url(#hatch);stroke:#b4431a;stroke-width:1.2}
.none{fill:none;stroke:#51636d;stroke-width:1.2}
.line{stroke:#b4431a;stroke-width:2.4}
.aim{stroke:#1c2b33;stroke-width:2}
@media (prefers-color-scheme: dark){
text{fill:#e8eff3}
.note,.axis{fill:#a5b6bf}
.page{fill:#11181d}
.grid{stroke:#2a363d}
.one{stroke:#a5b6bf}
.reached{fill:#4fa9c2}
.missed,.line{stroke:#ff8f5c}
.none{stroke:#a5b6bf}
.aim{stroke:#e8eff3}
}
"""


class Bar(NamedTuple):
    """One comparison. `factor` says how many times better Klamm is, `bound` how many times it aims to be."""

    heading: str
    text: str
    factor: float | None
    bound: float | None
    is_reached: bool | None


def bars(results: Results) -> list[Bar]:
    """The comparisons with somebody else, by the groups of the picture."""
    return [
        _bar(results, aim, heading)
        for compared, heading in HEADINGS.items()
        for aim in (*AIMS, *SHOWN_WITHOUT_AIM)
        if aim.compared is compared
    ]


def _bar(results: Results, aim: Aim, heading: str) -> Bar:
    measured, is_reached = evaluate(results, aim)
    if aim.at_most is None:
        return Bar(heading, aim.text, measured, aim.at_least, is_reached)
    # Less time or memory is better: the factor is turned round, so that right is better in every row.
    return Bar(heading, aim.text, 1 / measured if measured else None, 1 / aim.at_most, is_reached)


def draw(results: Results) -> str:
    drawn = bars(results)
    scale = _Scale([factor for bar in drawn for factor in (bar.bound, bar.factor) if factor])
    height = TOP + ROW * len(drawn) + GROUP * len({bar.heading for bar in drawn}) + 44
    reached = sum(bar.is_reached is True for bar in drawn)
    judged = sum(bar.is_reached is not None for bar in drawn)
    summary = f"{reached} of {judged} aims reached"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="How many times faster Klamm is than others; {summary}">',
            '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><path class="line" d="M0,0 L0,6"/></pattern></defs>',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>',
            '<text class="title" x="24" y="32">How many times faster Klamm is (smaller, for memory)</text>',
            *_legend(summary),
            *_grid(scale, height - 36),
            *_rows(drawn, scale),
            "</svg>\n",
        )
    )


def _legend(summary: str) -> Iterator[str]:
    y = 54
    yield f'<rect class="reached" x="24" y="{y - 9}" width="26" height="{BAR}"/>'
    yield f'<text class="note" x="56" y="{y}">aim reached</text>'
    yield f'<rect class="missed" x="136" y="{y - 9}" width="26" height="{BAR}"/>'
    yield f'<text class="note" x="168" y="{y}">aim missed</text>'
    yield f'<rect class="none" x="246" y="{y - 9}" width="26" height="{BAR}"/>'
    yield f'<text class="note" x="278" y="{y}">no aim</text>'
    yield f'<path class="aim" d="M332,{y - 11} V{y + 3}"/>'
    yield f'<text class="note" x="340" y="{y}">the aim; {summary}</text>'


def _grid(scale: _Scale, bottom: int) -> Iterator[str]:
    for power in range(scale.least, scale.most + 1):
        x = scale.x(2.0**power)
        css_class = "one" if power == 0 else "grid"
        label = f"{2**power}×" if power >= 0 else f"1/{2**-power}"
        yield f'<path class="{css_class}" d="M{x:.1f},{TOP - 6} V{bottom}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    note = "left of 1×: Klamm is slower; right of it: faster"
    yield f'<text class="axis" x="{LEFT - 40}" y="{bottom + 18}" text-anchor="end">{note}</text>'


def _rows(drawn: list[Bar], scale: _Scale) -> Iterator[str]:
    y, heading = TOP, ""
    for bar in drawn:
        if bar.heading != heading:
            heading = bar.heading
            yield f'<text class="group" x="24" y="{y + 22}">{escape(heading)}</text>'
            y += GROUP
        base = y + BAR - 1
        yield f'<text x="{LEFT - 12}" y="{base}" text-anchor="end">{escape(bar.text)}</text>'
        if bar.factor is not None:
            begin, end = sorted((scale.x(1.0), scale.x(bar.factor)))
            state = {True: "reached", False: "missed", None: "none"}[bar.is_reached]
            width = max(end - begin, 1.0)
            yield f'<rect class="{state}" x="{begin:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
        if bar.bound is not None:
            yield f'<path class="aim" d="M{scale.x(bar.bound):.1f},{y - 2} V{y + BAR + 2}"/>'
        yield f'<text x="{STATE_X - 8}" y="{base}" text-anchor="end">{format_factor(bar.factor)}</text>'
        yield f'<text x="{STATE_X}" y="{base}">{_state(bar)}</text>'
        y += ROW


def _state(bar: Bar) -> str:
    if bar.factor is None:
        return "not measured"
    return {True: "✓", False: "✗ missed", None: "no aim"}[bar.is_reached]


def format_factor(factor: float | None) -> str:
    return "–" if factor is None else f"{factor:.2f}×"


class _Scale:
    """Factors as positions between LEFT and RIGHT, on a logarithmic axis that ends at powers of two."""

    def __init__(self, factors: list[float]) -> None:
        self.least = min(-1, math.floor(math.log2(min(factors))))
        self.most = max(1, math.ceil(math.log2(max(factors))))

    def x(self, factor: float) -> float:
        share = (math.log2(factor) - self.least) / (self.most - self.least)
        return LEFT + share * (RIGHT - LEFT)
