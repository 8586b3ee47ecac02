"""Charts over time: lines with their names at the end, a shared cursor, gaps where there was no look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import nicegui.elements.echart  # noqa: F401  (registers the module that the component loads)
from nicegui.element import Element

from klamm.console.shell.visit import Visit
from klamm.console.watching.history import SHORT_RANGE_MS, Point

RANGES = {"15m": SHORT_RANGE_MS, "1h": 3_600_000, "6h": 6 * 3_600_000}
LONGEST_STEP_MS = 3 * 60_000
"""Values further apart have a gap between them."""


@dataclass(frozen=True)
class Line:
    """A line of a chart. `hue` is a colour of the theme: produce, consume, lag, broken or muted."""

    name: str
    points: Sequence[Point]
    hue: str
    area: bool = False

    def as_prop(self) -> dict[str, Any]:
        points: list[Point] = []
        for time_ms, value in self.points:
            if points and time_ms - points[-1][0] > LONGEST_STEP_MS:
                points.append((points[-1][0] + 1, None))
            points.append((time_ms, None if value is None else round(value, 3)))
        return {"name": self.name, "points": points, "hue": self.hue, "area": self.area}


class Chart(Element, component="klamm_chart.js"):
    """A chart of the lines that `load` returns, drawn anew with each new picture."""

    def __init__(
        self,
        visit: Visit,
        load: Callable[[], Sequence[Line]],
        *,
        unit: str = "",
        height: int = 200,
        range_ms: int = SHORT_RANGE_MS,
    ) -> None:
        super().__init__()
        self._visit = visit
        self._load = load
        self._props.update({"unit": unit, "height": height, "rangeMs": range_ms})
        self.reload()
        visit.on_picture(self.reload)

    def reload(self) -> None:
        picture = self._visit.console.collector.picture
        self._props["nowMs"] = picture.taken_ms if picture else 0
        self._props["series"] = [line.as_prop() for line in self._load()]
        self.update()
