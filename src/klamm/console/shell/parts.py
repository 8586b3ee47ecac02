"""The parts that pages are made of: the head, sentences, figures, panels, tabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.label import Label

from klamm.console.shell.chart import RANGES
from klamm.console.shell.frame import heading
from klamm.console.shell.visit import Visit


@contextmanager
def page_head(title: str, *, above: tuple[str, str] | None = None) -> Iterator[None]:
    """The title row of a page; tags and buttons go into it. `above` is a link to the page above: its path and
    its name."""
    if above is not None:
        with ui.element("span").classes("k-crumb"):
            link(above[1], above[0])
    with ui.element("div").classes("k-head"):
        heading("h1", title, "k-title")
        yield


def space() -> None:
    ui.element("div").classes("k-space")


def tag(text: str, tone: str = "") -> Element:
    return heading("span", text, f"k-tag k-{tone}" if tone else "k-tag")


def link(text: str, path: str, classes: str = "") -> Element:
    element = heading("a", text, classes)
    element.props["href"] = path
    return element


def button(text: str, on_click: Callable[[], object], classes: str = "") -> Element:
    return heading("button", text, f"k-button {classes}").props('type="button"').on("click", on_click)


def sentence(visit: Visit, text: Callable[[], tuple[str, str]]) -> Element:
    """The line that says how it is in words. `text` returns the line and its tone."""
    element = heading("p", "")

    def refresh() -> None:
        line, tone = text()
        if element._text != line:
            element._text = line
            element.classes(replace=f"k-sentence k-{tone}" if tone else "k-sentence")
            element.update()

    refresh()
    visit.on_picture(refresh)
    return element


@contextmanager
def panel(title: str, note: str = "") -> Iterator[Element]:
    """A surface with a heading; yields the heading row, for what stands at its right."""
    with ui.element("section").classes("k-panel"):
        with ui.element("div").classes("k-panel-head") as row:
            heading("h2", title)
            if note:
                heading("span", note, "k-note")
        yield row


class Figure:
    """A number with a name, in a row of figures."""

    def __init__(self, label: str, path: str = "") -> None:
        self._element = ui.element("a" if path else "div").classes("k-figure")
        if path:
            self._element.props["href"] = path
        with self._element:
            heading("span", label, "k-label")
            self._value: Label = ui.label().classes("k-value")
            self._note: Label = ui.label().classes("k-note")

    def show(self, value: str, note: str = "", tone: str = "") -> None:
        self._value.set_text(value)
        self._note.set_text(note)
        self._element.classes(replace=f"k-figure k-{tone}" if tone else "k-figure")


def figures() -> Element:
    return ui.element("div").classes("k-figures")


def ranges(path: str, chosen: str) -> None:
    """The choice of how far back charts go; each is a URL."""
    with ui.element("div").classes("k-ranges"):
        for name in RANGES:
            link(name, f"{path}?range={name}", "k-here" if name == chosen else "")


def tabs(entries: Sequence[tuple[str, str]], here: str) -> None:
    """The parts of one thing, as (name, path); `here` is the path of the one that is shown."""
    with ui.element("nav").classes("k-tabs"):
        for name, path in entries:
            chosen = link(name, path, "k-here" if path == here else "")
            if path == here:
                chosen.props('aria-current="page"')
