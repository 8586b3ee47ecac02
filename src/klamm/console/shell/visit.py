"""One page in one browser: what is shown anew with each picture, and where the browser is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from nicegui import ui
from nicegui.client import Client

from klamm.console.console import Console
from klamm.console.watching.picture import Picture


class Visit:
    """A browser that has the console open. It counts as somebody who looks while it is connected."""

    def __init__(self, console: Console, client: Client) -> None:
        self.console = console
        self.client = client
        self._of_page: list[Callable[[], None]] = []
        self._of_frame: list[Callable[[], None]] = []
        self._is_looking = False
        self.floor = ui.element("div")
        """Where dialogs stand: it stays when another page is shown."""
        self.floor_snack = ui.element("div")
        """Where it is said what was done."""
        client.on_connect(self._connected)
        client.on_delete(self._deleted)

    @property
    def picture(self) -> Picture:
        """The newest picture. Pages are shown only when there is one."""
        picture = self.console.collector.picture
        assert picture is not None
        return picture

    def on_picture(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` with each new picture, until another page is shown."""
        self._of_page.append(refresh)

    def always_on_picture(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` with each new picture, on all pages."""
        self._of_frame.append(refresh)

    def begin_page(self, title: str) -> None:
        """Another page is shown from here on."""
        self._of_page.clear()
        ui.page_title(f"{title} · Klamm")

    def replace_url(self, path: str) -> None:
        """Have the browser show this path, as the page shows something else of the same thing."""
        text = json.dumps(path)
        self.client.run_javascript(f"history.replaceState({{page: {text}}}, '', {text})")

    def show_again(self) -> None:
        """Build the page once more."""
        self.client.run_javascript("klamm.again()")

    def go(self, path: str) -> None:
        self.client.run_javascript(f"klamm.go({json.dumps(path)})")

    def _connected(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self.console.collector.add_looker(self._refresh)

    def _deleted(self) -> None:
        self.console.collector.remove_looker(self._refresh)

    def _refresh(self) -> None:
        # Another page may be shown while one is refreshed; its elements are gone then.
        with suppress(RuntimeError), self.client:
            for refresh in [*self._of_frame, *self._of_page]:
                refresh()
