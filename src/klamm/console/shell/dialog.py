"""Dialogs: they ask with the facts, say in place what went wrong, and offer the same as a command to copy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nicegui import background_tasks, ui
from nicegui.element import Element

from klamm.client.errors import ClientError
from klamm.console.shell.frame import heading
from klamm.console.shell.visit import Visit
from klamm.operating.errors import CannotDo

Undo = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Done:
    """What was done, in a sentence; how to undo it; the page to go to."""

    text: str
    undo: Undo | None = None
    path: str = ""


class Dialog:
    """A dialog that is open. Its parts are made within `with dialog:`."""

    def __init__(self, visit: Visit, title: str, text: str = "", *, is_wide: bool = False) -> None:
        self.visit = visit
        self._is_busy = False
        with visit.floor, ui.dialog() as self._dialog:
            self._card = ui.element("div").classes("k-dialog k-wide" if is_wide else "k-dialog")
        self._card.props('role="dialog" aria-modal="true"')
        with self._card:
            heading("h2", title)
            if text:
                heading("p", text, "k-muted")
        self._dialog.on("hide", self._dialog.delete)
        self._complaint: Element | None = None
        self._go: Element | None = None
        self._dialog.open()

    def __enter__(self) -> Dialog:
        self._card.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._card.__exit__()

    def close(self) -> None:
        self._dialog.close()

    # ---- parts

    def actions(
        self, label: str, do: Callable[[], Awaitable[Done]], *, is_danger: bool = False, is_ready: bool = True
    ) -> None:
        """The last row: cancel, and the button that does it. An error is shown above it."""
        self._complaint = heading("p", "", "k-complaint").props('role="alert"')
        self._complaint.set_visibility(False)
        with ui.element("div").classes("k-actions"):
            heading("button", "Cancel", "k-button").props('type="button"').on("click", self.close)
            kind = "k-button k-primary k-danger" if is_danger else "k-button k-primary"
            self._go = heading("button", label, kind).props('type="button"')
            self._go.on("click", lambda: background_tasks.create(self._do(do), name=label))
        self.ready(is_ready)

    def ready(self, is_ready: bool) -> None:
        """Whether the button can be pressed."""
        assert self._go is not None
        if self._go.props.get("disabled", False) == is_ready:
            self._go.props["disabled"] = not is_ready
            self._go.update()

    def complain(self, text: str) -> None:
        assert self._complaint is not None
        self._complaint._text = text
        self._complaint.set_visibility(bool(text))
        self._complaint.update()

    async def _do(self, do: Callable[[], Awaitable[Done]]) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        self.complain("")
        try:
            done = await do()
        except (ClientError, CannotDo) as error:
            self.complain(f"{error}")
            return
        finally:
            self._is_busy = False
        self.close()
        say(self.visit, done)


class Field:
    """A labelled input of a dialog."""

    def __init__(
        self,
        label: str,
        value: str = "",
        *,
        placeholder: str = "",
        on_change: Callable[[], object] | None = None,
        is_number: bool = False,
    ) -> None:
        self.value = value
        self._on_change = on_change
        with ui.element("div").classes("k-field"):
            heading("label", label)
            self.element = ui.element("input").classes("k-input")
            self.element.props(
                f'type="{"number" if is_number else "text"}" spellcheck="false" autocomplete="off"'
            )
            self.element.props["aria-label"] = label
            self.element.props["placeholder"] = placeholder
            self.element.props["value"] = value
            self.element.on("input", self._set, js_handler="(event) => emit(event.target.value)")

    def _set(self, event: object) -> None:
        self.value = str(getattr(event, "args", "")).strip()
        if self._on_change is not None:
            self._on_change()

    @property
    def number(self) -> int | None:
        """The number that was typed; None for nothing. CannotDo for anything else."""
        if not self.value:
            return None
        try:
            return int(self.value)
        except ValueError:
            raise CannotDo(f"{self.value} is not a number") from None


class Choice:
    """Buttons of which one is chosen."""

    def __init__(
        self, label: str, entries: Sequence[tuple[str, str]], on_change: Callable[[], object]
    ) -> None:
        self.value = entries[0][0]
        self._on_change = on_change
        self._buttons: dict[str, Element] = {}
        with ui.element("div").classes("k-field"):
            heading("span", label, "k-label")
            with (
                ui.element("div"),
                ui.element("div").classes("k-choice").props(f'role="group" aria-label="{label}"'),
            ):
                for key, name in entries:
                    button = heading("button", name).props('type="button"')
                    button.on("click", lambda key=key: self._choose(key))
                    self._buttons[key] = button
        self._show()

    def _choose(self, key: str) -> None:
        self.value = key
        self._show()
        self._on_change()

    def _show(self) -> None:
        for key, button in self._buttons.items():
            button.props["aria-pressed"] = "true" if key == self.value else "false"
            button.update()


class Command:
    """The same as a command of `klamm`, which a click copies."""

    def __init__(self, text: str = "") -> None:
        self._element = heading("div", text, "k-command").props('title="Copy as CLI"')
        self.show(text)

    def show(self, text: str) -> None:
        self._element._text = text
        self._element.props["data-copy"] = text
        self._element.update()


def say(visit: Visit, done: Done) -> None:
    """Say what was done, with a button that undoes it while the line is shown."""
    visit.floor_snack.clear()
    with visit.floor_snack, ui.element("div").classes("k-snack").props('role="status"'):
        ui.label(done.text)
        if done.undo is not None:
            undo = done.undo
            button = heading("button", "Undo", "k-button").props('type="button"')
            button.on("click", lambda: background_tasks.create(_undo(visit, undo), name="undo"))
        button = heading("button", "×", "k-button k-plain").props('type="button" aria-label="Close"')
        button.on("click", visit.floor_snack.clear)
    if done.path:
        visit.go(done.path)


async def _undo(visit: Visit, undo: Undo) -> None:
    try:
        await undo()
    except (ClientError, CannotDo) as error:
        say(visit, Done(f"It was not undone: {error}"))
        return
    say(visit, Done("Undone"))
