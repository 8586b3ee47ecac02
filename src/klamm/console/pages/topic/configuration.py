"""The tab of a topic's settings: what is set, where, and changing it with a preview and an undo."""

from __future__ import annotations

from shlex import quote

from nicegui import background_tasks, ui
from nicegui.element import Element
from nicegui.page_arguments import PageArguments

from klamm.client.admin.types import ConfigResource
from klamm.client.errors import ClientError
from klamm.console.addresses import topic_url
from klamm.console.changing import SettingsChange
from klamm.console.shell import cells
from klamm.console.shell.dialog import Command, Dialog, Done, Field
from klamm.console.shell.frame import heading
from klamm.console.shell.table import Column, Empty, Filter, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.paging import Query, page_of
from klamm.operating.configs import Setting
from klamm.operating.errors import CannotDo

TAB = "configuration"
CHANGED = "changed"

COLUMNS = (
    Column("name", "Setting"),
    Column("value", "Value", sort=False),
    Column("source", "Set by", hide="phone"),
    Column("default", "Default", sort=False, hide="narrow"),
    Column("documentation", "", sort=False, hide="narrow"),
)


def build(visit: Visit, topic: str, arguments: PageArguments) -> None:
    place = ui.element("div")
    tab = _Settings(visit, topic, place, dict(arguments.query_parameters))
    background_tasks.create(tab.load(), name=f"settings of {topic}")


class _Settings:
    """The settings of a topic, loaded when the tab is opened and after each change."""

    def __init__(self, visit: Visit, topic: str, place: Element, query: dict[str, str]) -> None:
        self._visit = visit
        self._topic = topic
        self._place = place
        self._query = query
        self._settings: list[Setting] = []
        self._table: Table | None = None

    async def load(self) -> None:
        try:
            self._settings = await self._visit.console.changes.settings(ConfigResource.topic(self._topic))
        except (ClientError, CannotDo) as error:
            with self._place, ui.element("div").classes("k-empty"):
                heading("h3", "The settings cannot be shown")
                ui.label(str(error))
            return
        if self._place.is_deleted:
            return
        if self._table is not None:
            self._table.reload()
            return
        settings = TableSettings(
            topic_url(self._topic, TAB),
            "name",
            placeholder="Search settings",
            filters=(Filter(CHANGED, "changed", "Only what is set for this topic"),),
            empty=Empty("Nothing is set for this topic", "All settings are those of the brokers."),
            act=self._act,
        )
        with self._place:
            self._table = Table(self._visit, COLUMNS, self._list, settings, self._query)

    def _list(self, query: Query) -> Listing:
        chosen = [one for one in self._settings if CHANGED not in query.filters or one.source == "topic"]
        found = page_of(
            chosen,
            query,
            name=lambda one: one.name,
            columns={"name": lambda one: one.name, "source": lambda one: one.source},
        )
        return Listing([self._cells(one) for one in found.rows], found.page, found.pages, found.total)

    def _cells(self, one: Setting) -> Row:
        is_own = one.source == "topic"
        actions = []
        if not one.read_only and not self._visit.console.changes.is_read_only:
            actions = [("edit", "Edit")] + ([("unset", "Unset")] if is_own else [])
        value = "secret" if one.sensitive else one.value
        return Row(
            one.name,
            {
                "name": cells.text(one.name, mono=True),
                "value": cells.text(value or None, mono=True, tone="good" if is_own else ""),
                "source": cells.text(one.source, tone="" if is_own else "muted"),
                "default": cells.text(one.default if is_own else None, mono=True) if is_own else cells.BLANK,
                "documentation": cells.text(one.documentation, tone="muted")
                if one.documentation
                else cells.BLANK,
            },
            actions=actions,
        )

    def _act(self, name: str, action: str) -> None:
        setting = next((one for one in self._settings if one.name == name), None)
        if setting is None or self._visit.console.changes.is_read_only:
            return
        if action == "edit":
            self._edit(setting)
        else:
            self._confirm(setting, SettingsChange({}, [name]), f"Unset {name}")

    def _edit(self, setting: Setting) -> None:
        def show() -> None:
            is_new = value.value != (setting.value or "")
            words = f"klamm config set topic {quote(self._topic)} {quote(f'{setting.name}={value.value}')}"
            command.show(f"{words} -b {self._visit.console.settings.bootstrap}")
            preview.set_text(f"{setting.value or 'not set'} → {value.value}" if is_new else "")
            dialog.ready(is_new)

        async def do() -> Done:
            return await self._change(SettingsChange({setting.name: value.value}))

        with Dialog(self._visit, setting.name, setting.documentation) as dialog:
            value = Field("Value", setting.value or "", on_change=show)
            preview = ui.label().classes("k-mono k-look-text")
            command = Command()
            dialog.actions("Set", do, is_ready=False)
        show()

    def _confirm(self, setting: Setting, change: SettingsChange, title: str) -> None:
        default = f"It becomes {setting.default}." if setting.default else "It gets its default."
        text = f"{self._topic} has {setting.value}. {default}"

        async def do() -> Done:
            return await self._change(change)

        with Dialog(self._visit, title, text) as dialog:
            bootstrap = self._visit.console.settings.bootstrap
            Command(f"klamm config unset topic {quote(self._topic)} {setting.name} -b {bootstrap}")
            dialog.actions("Unset", do)

    async def _change(self, change: SettingsChange) -> Done:
        changes, resource = self._visit.console.changes, ConfigResource.topic(self._topic)
        back = await changes.change_settings(resource, change)
        await self.load()

        async def undo() -> None:
            await changes.change_settings(resource, back)
            await self.load()

        names = ", ".join([*change.set, *change.unset])
        return Done(f"Changed {names} of {self._topic}", undo)
