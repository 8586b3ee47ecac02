"""What can be done with a group: move its offsets with a preview, copy it, delete it."""

from __future__ import annotations

from shlex import quote

from nicegui import background_tasks, ui

from klamm.client.errors import ClientError
from klamm.console.addresses import group_url
from klamm.console.shell import cells
from klamm.console.shell.dialog import Choice, Command, Dialog, Done, Field
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.operating.errors import CannotDo
from klamm.operating.groups import By, Goal, Like, To
from klamm.operating.ranges import parse_place, present
from klamm.operating.seeking import Move, SeekPlan, TopicChoice
from klamm.operating.units import count_text, several

PREVIEW = (
    Column("topic", "Topic", sort=False),
    Column("partition", "Partition", right=True, sort=False),
    Column("old", "Now", right=True, sort=False),
    Column("new", "Then", right=True, sort=False),
    Column("what", "", sort=False, hide="phone"),
)
WAYS = (
    ("start", "Start"),
    ("end", "End"),
    ("time", "A time"),
    ("by", "Shift by"),
    ("offset", "An offset"),
    ("like", "Like a group"),
)
HINTS = {
    "time": ("When", "-1h, 10:00 or 2026-01-01T10:00"),
    "by": ("How many records, back with a minus", "-100"),
    "offset": ("Offset, or the last so many with a minus", "0"),
    "like": ("Group", "billing"),
}
ALL_TOPICS = ""


def move_offsets(visit: Visit, group: str) -> None:
    """The dialog that moves a group's offsets: where to, the offsets of each partition before and after."""
    _Seek(visit, group)


class _Seek:
    """The plan is made anew with each choice; only the plan that is shown is carried out."""

    def __init__(self, visit: Visit, group: str) -> None:
        self._visit = visit
        self._group = group
        self._plan: SeekPlan | None = None
        self._asked = 0
        state = visit.picture.groups.get(group)
        topics = state.topics if state else []
        with Dialog(visit, f"Move the offsets of {group}", is_wide=True) as self._dialog:
            self._way = Choice("To", WAYS, self._changed)
            self._value_place = ui.element("div")
            self._topic: Choice | None = None
            if 1 < len(topics) <= 8:
                entries = [(ALL_TOPICS, "All"), *((topic, topic) for topic in topics)]
                self._topic = Choice("Topics", entries, self._changed)
            self._words = ui.label().classes("k-sentence")
            empty = Empty("Nothing to move yet", "Choose where to.")
            self._table = Table(visit, PREVIEW, self._list, TableSettings(search=False, empty=empty))
            self._command = Command()
            self._dialog.actions("Move the offsets", self._do, is_ready=False)
        self._value: Field | None = None
        self._shown_way = ""
        self._changed()

    def _changed(self) -> None:
        way = self._way.value
        if way != self._shown_way:
            self._shown_way = way
            self._value_place.clear()
            self._value = None
            if way in HINTS:
                label, hint = HINTS[way]
                with self._value_place:
                    self._value = Field(label, placeholder=hint, on_change=self._changed)
        self._asked += 1
        background_tasks.create(self._look(self._asked), name=f"planning for {self._group}")

    async def _look(self, asked: int) -> None:
        """Plan anew, and show the plan unless something else was chosen meanwhile."""
        plan: SeekPlan | None = None
        complaint = ""
        try:
            goal = self._goal()
            if goal is not None:
                plan = await self._visit.console.changes.plan_seek(self._group, goal, self._topics())
        except (ClientError, CannotDo) as error:
            complaint = str(error)
        if asked != self._asked:
            return
        self._plan = plan
        self._dialog.complain(complaint)
        self._table.reload()
        self._command.show(self._cli())
        self._dialog.ready(plan is not None and bool(plan.changes))
        self._words.set_text("" if plan is None else words_of(plan))

    def _goal(self) -> Goal | None:
        way = self._way.value
        value = self._value.value if self._value is not None else ""
        if way in HINTS and not value:
            return None
        if way == "by":
            try:
                return By(int(value))
            except ValueError:
                raise CannotDo(f"{value} is not a number of records") from None
        if way == "like":
            return Like(value)
        if way == "time":
            return To(parse_place(value if value.startswith(("-", "@")) else f"@{value}", present()))
        return To(parse_place(value if way == "offset" else way, present()))

    def _topics(self) -> list[TopicChoice]:
        chosen = self._topic.value if self._topic is not None else ALL_TOPICS
        return [TopicChoice(chosen)] if chosen else []

    def _cli(self) -> str:
        way = self._way.value
        value = self._value.value if self._value is not None else ""
        if way == "time":
            value = value if value.startswith(("-", "@")) else f"@{value}"
        flag = {"by": "--by", "like": "--like"}.get(way, "--to")
        text = f"klamm group seek {quote(self._group)} {flag}={quote(value if way in HINTS else way)}"
        text += "".join(f" --topic {quote(one.topic)}" for one in self._topics())
        return f"{text} -b {self._visit.console.settings.bootstrap}"

    def _list(self, _: object) -> Listing:
        moves = self._plan.moves if self._plan is not None else ()
        return Listing([_move_cells(one) for one in moves])

    async def _do(self) -> Done:
        plan, changes = self._plan, self._visit.console.changes
        assert plan is not None
        back = await changes.seek(plan)

        async def undo() -> None:
            await changes.seek(await changes.plan_seek(plan.group, back))

        return Done(f"Moved {plan.group}: {words_of(plan)}", undo)


def words_of(plan: SeekPlan) -> str:
    """What a plan does: "3 partitions, 12,402 records will be read again"."""
    if not plan.changes:
        return "It is there already: nothing changes."
    text = several(len(plan.changes), "partition")
    if plan.read_again:
        text += f", {several(plan.read_again, 'record')} will be read again"
    if plan.passed_over:
        text += f", {several(plan.passed_over, 'record')} will not be read"
    return f"{text}."


def _move_cells(move: Move) -> Row:
    what = move.note
    if move.read_again:
        what = f"{count_text(move.read_again)} again" + (f"; {what}" if what else "")
    elif move.passed_over:
        what = f"{count_text(move.passed_over)} skipped" + (f"; {what}" if what else "")
    return Row(
        str(move.partition),
        {
            "topic": cells.text(move.partition.topic),
            "partition": {"t": str(move.partition.partition)},
            "old": cells.offset(None if move.old is None else move.old.offset),
            "new": cells.offset(None if move.new is None else move.new.offset),
            "what": cells.text(what, tone="look" if move.passed_over else "muted") if what else cells.BLANK,
        },
    )


def copy_group(visit: Visit, group: str) -> None:
    """The dialog that makes another group with the same offsets."""
    changes = visit.console.changes

    def show() -> None:
        target = quote(name.value or "NAME")
        bootstrap = visit.console.settings.bootstrap
        command.show(f"klamm group seek {target} --like={quote(group)} -b {bootstrap}")
        dialog.ready(bool(name.value) and name.value != group)

    async def do() -> Done:
        if name.value in visit.picture.groups:
            raise CannotDo(f"there is a group {name.value} already", advice="Move its offsets instead")
        plan = await changes.plan_seek(name.value, Like(group))
        await changes.seek(plan)
        return Done(f"{name.value} is where {group} is", path=group_url(name.value))

    text = "The other group begins where this one is now, so that it reads the same records from here on."
    with Dialog(visit, f"Copy {group}", text) as dialog:
        name = Field("Name of the new group", placeholder=f"{group}-copy", on_change=show)
        command = Command()
        dialog.actions("Copy", do, is_ready=False)
    show()


def delete_group(visit: Visit, group: str) -> None:
    state = visit.picture.groups.get(group)
    if state is None:
        return
    facts = f"Its committed offsets of {several(len(state.offsets), 'partition')} are gone. A consumer that"
    facts += " joins it again begins at the start or the end, as it is set up."

    async def do() -> Done:
        if name.value != group:
            raise CannotDo(f"this is not the name: {group}")
        await visit.console.changes.delete_group(group)
        return Done(f"Deleted {group}", path="/groups")

    with Dialog(visit, f"Delete {group}", facts) as dialog:
        name = Field(f"Type {group} to delete it", on_change=lambda: dialog.ready(name.value == group))
        Command(f"klamm group delete {quote(group)} -b {visit.console.settings.bootstrap}")
        dialog.actions("Delete", do, is_danger=True, is_ready=False)
