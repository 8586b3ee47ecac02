"""A graph of what flows from where to where, left to right; on a phone it is a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from nicegui.element import Element

from klamm.console.shell.visit import Visit
from klamm.console.views.graph import Graph


class GraphView(Element, component="klamm_graph.js"):
    """The graph that `load` returns, drawn anew with each new picture."""

    def __init__(self, visit: Visit, load: Callable[[], Graph]) -> None:
        super().__init__()
        self._load = load
        self._shown: dict[str, Any] = {}
        self.reload()
        visit.on_picture(self.reload)

    def reload(self) -> None:
        found = asdict(self._load())
        if found != self._shown:
            self._shown = found
            self._props.update(found)
            self.update()
