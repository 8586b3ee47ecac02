"""Content that is read after the page is shown: from a store, or from topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from nicegui import background_tasks, ui
from nicegui.element import Element

from klamm.client.errors import ClientError
from klamm.console.shell.frame import heading
from klamm.operating.errors import CannotDo

Value = TypeVar("Value")


class Later(Generic[Value]):
    """A place on the page. It says that something is being read, then shows it or why it could not be."""

    def __init__(
        self, what: str, read: Callable[[], Awaitable[Value]], show: Callable[[Value], None]
    ) -> None:
        self._read = read
        self._show = show
        self._is_reading = False
        self._place: Element = ui.element("div")
        with self._place:
            heading("p", f"Reading {what} …", "k-sentence")
        self.start()

    def start(self) -> None:
        """Read again. What is shown stays until then."""
        if not self._is_reading:
            self._is_reading = True
            background_tasks.create(self._fill(), name="read")

    async def _fill(self) -> None:
        try:
            found = await self._read()
        except (CannotDo, ClientError) as error:
            with suppress(RuntimeError):  # another page is shown
                self._place.clear()
                with self._place, ui.element("div").classes("k-notice k-broken").props('role="alert"'):
                    ui.label(str(error))
            return
        finally:
            self._is_reading = False
        if self._place.is_deleted:
            return
        self._place.clear()
        with self._place:
            self._show(found)
