"""The frame of all pages: the rail, the head with the health of the cluster, and the page itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.sub_pages import SubPages
from nicegui.page_arguments import PageArguments

from klamm.console.guard.login import LOGOUT_PATH
from klamm.console.shell.icons import icon
from klamm.console.shell.palette import Palette
from klamm.console.shell.visit import Visit
from klamm.console.views.overview import Finding, Health, Tone, health

Builder = Callable[[Visit, PageArguments], None]


@dataclass(frozen=True)
class Place:
    """An entry of the rail."""

    path: str
    word: str
    icon: str


@dataclass(frozen=True)
class PageRoute:
    """A page: its path with names in braces, the place of the rail that it belongs to, and what builds it."""

    path: str
    place: str
    build: Builder


class Pages(SubPages):
    """The part of the frame that changes. A path without a page says so."""

    def _render_404(self) -> None:
        with ui.element("div").classes("k-empty"):
            heading("h3", "There is no such page")
            ui.html('<p>Go back to the <a href="/" class="k-good-text">overview</a>.</p>', sanitize=False)


class Frame:
    """Builds the frame around the page that the browser asks for."""

    def __init__(self, visit: Visit, places: list[Place], routes: list[PageRoute]) -> None:
        self._visit = visit
        self._places: dict[str, Element] = {}
        with ui.element("div").classes("k-app"):
            self._rail(places)
            with ui.element("div").classes("k-main"):
                self._header()
                with ui.element("main").classes("k-content"):
                    Pages({route.path: self._builder(route) for route in routes})
        Palette()

    def _rail(self, places: list[Place]) -> None:
        with ui.element("nav").classes("k-rail").props('aria-label="Pages"'):
            ui.html('<img src="/assets/icon.svg" alt=""><span>Klamm</span>', sanitize=False).classes(
                "k-brand"
            )
            for place in places:
                self._places[place.path] = _markup(
                    "a", f'{icon(place.icon)}<span class="k-word">{place.word}</span>', "k-place"
                ).props(f'href="{place.path}"')
            ui.element("div").classes("k-gap")
            _markup("a", f'{icon("api")}<span class="k-word">JSON API</span>', "k-place k-foot").props(
                'href="/api/v1" target="_blank"'
            )
            themes = "".join(
                icon(name, f"k-{name}") + f'<span class="k-word k-{name}">{word}</span>'
                for name, word in (
                    ("system", "System theme"),
                    ("light", "Light theme"),
                    ("dark", "Dark theme"),
                )
            )
            _markup("button", themes, "k-place k-theme k-foot").props(
                'type="button" data-do="theme" aria-label="Theme"'
            )
            fold = f'{icon("fold")}<span class="k-word">Fold</span>'
            _markup("button", fold, "k-place k-fold k-foot").props(
                'type="button" data-do="fold" aria-label="Fold"'
            )
            if self._visit.console.settings.password_hash is not None:
                with ui.element("form").props(f'method="post" action="{LOGOUT_PATH}"').classes("k-foot"):
                    leave = f'{icon("leave")}<span class="k-word">Log out</span>'
                    _markup("button", leave, "k-place").props('type="submit" aria-label="Log out"')

    def _header(self) -> None:
        visit = self._visit
        with ui.element("header").classes("k-header"):
            ui.label(visit.console.settings.bootstrap.partition(",")[0]).classes("k-cluster")
            pill = ui.element("a").classes("k-pill").props('href="/"')
            with pill:
                word = ui.label()
            if visit.console.settings.is_read_only:
                ui.label("read-only").classes("k-tag")
            ui.element("div").classes("k-space")
            find = f'{icon("search")}<span>Search</span><span class="k-space"></span><kbd>⌘K</kbd>'
            _markup("button", find, "k-find").props(
                'type="button" data-do="search" aria-label="Search everything"'
            )

        def refresh() -> None:
            found = self._health()
            word.set_text(found.text)
            pill.classes(replace=f"k-pill k-{found.tone}")
            url = found.findings[0].url if found.findings else "/"
            if pill.props.get("href") != url:
                pill.props["href"] = url
                pill.update()

        refresh()
        visit.always_on_picture(refresh)

    def _health(self) -> Health:
        collector = self._visit.console.collector
        if collector.picture is None:
            return Health([Finding(Tone.BROKEN, "no broker answers", "/")])
        return health(collector.picture, int(time.time() * 1000))

    def _builder(self, route: PageRoute) -> Callable[[PageArguments], None]:
        def build(arguments: PageArguments) -> None:
            for path, element in self._places.items():
                element.classes(replace="k-place k-here" if path == route.place else "k-place")
            if self._visit.console.collector.picture is None:
                self._show_nothing(route, arguments)
            else:
                route.build(self._visit, arguments)

        # NiceGUI looks at the annotation, and `from __future__ import annotations` makes it a text.
        build.__annotations__ = {"arguments": PageArguments}
        return build

    def _show_nothing(self, route: PageRoute, arguments: PageArguments) -> None:
        """Say why there is no picture yet, and show the page as soon as there is one."""
        visit = self._visit
        visit.begin_page("No answer")
        place = ui.element("div")

        def refresh() -> None:
            if visit.console.collector.picture is not None:
                visit.show_again()
                return
            place.clear()
            with place, ui.element("div").classes("k-empty"):
                heading("h3", f"No broker answers at {visit.console.settings.bootstrap}")
                ui.label(visit.console.collector.problem or "The console is asking.")
                ui.label("This page goes on by itself when one does.")

        refresh()
        visit.on_picture(refresh)


def heading(tag: str, text: str, classes: str = "") -> Element:
    """An element of HTML with a text."""
    element = ui.element(tag).classes(classes)
    element._text = text
    return element


def _markup(tag: str, markup: str, classes: str) -> Element:
    """An element with markup of ours, never of anybody else's."""
    return ui.html(markup, sanitize=False, tag=tag).classes(classes)
