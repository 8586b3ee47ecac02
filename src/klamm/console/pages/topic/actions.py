"""What can be done with topics: create, delete, more partitions. Each asks in a dialog, with the facts."""

from __future__ import annotations

from shlex import quote

from klamm.console.addresses import topic_url
from klamm.console.shell.dialog import Command, Dialog, Done, Field
from klamm.console.shell.visit import Visit
from klamm.operating.errors import CannotDo
from klamm.operating.units import several, size_text


def create_topic(visit: Visit) -> None:
    changes, bootstrap = visit.console.changes, visit.console.settings.bootstrap

    def show() -> None:
        words = f"klamm topic create {quote(name.value or 'NAME')}"
        words += f" --partitions {partitions.value}" if partitions.value else ""
        words += f" --replicas {replicas.value}" if replicas.value else ""
        words += "".join(f" --config {quote(one)}" for one in settings.value.split())
        command.show(f"{words} -b {bootstrap}")
        dialog.ready(bool(name.value))

    async def do() -> Done:
        made = await changes.create_topic(
            name.value, partitions.number, replicas.number, _pairs(settings.value)
        )
        of = f" with {several(made.partitions, 'partition')}" if made.partitions > 0 else ""
        return Done(f"Created {made.name}{of}", path=topic_url(made.name))

    with Dialog(visit, "Create a topic") as dialog:
        name = Field("Name", placeholder="orders", on_change=show)
        partitions = Field("Partitions", placeholder="as the brokers say", on_change=show, is_number=True)
        replicas = Field("Replicas", placeholder="as the brokers say", on_change=show, is_number=True)
        settings = Field(
            "Settings", placeholder="retention.ms=86400000 cleanup.policy=compact", on_change=show
        )
        command = Command()
        dialog.actions("Create", do, is_ready=False)
    show()


def delete_topic(visit: Visit, topic: str) -> None:
    state = visit.picture.topics.get(topic)
    if state is None:
        return
    facts = f"{several(state.records or 0, 'record')} in {several(state.partitions, 'partition')}"
    facts += f" ({size_text(state.size_bytes)}) are gone for good."
    readers = visit.picture.consumers.get(topic, ())
    if readers:
        facts += f" {several(len(readers), 'group')} read it: {', '.join(readers[:3])}"
        facts += " and others." if len(readers) > 3 else "."

    async def do() -> Done:
        if name.value != topic:
            raise CannotDo(f"this is not the name: {topic}")
        await visit.console.changes.delete_topic(topic)
        return Done(f"Deleted {topic}", path="/topics")

    with Dialog(visit, f"Delete {topic}", facts) as dialog:
        name = Field(f"Type {topic} to delete it", on_change=lambda: dialog.ready(name.value == topic))
        Command(f"klamm topic delete {quote(topic)} -b {visit.console.settings.bootstrap}")
        dialog.actions("Delete", do, is_danger=True, is_ready=False)


def add_partitions(visit: Visit, topic: str) -> None:
    state = visit.picture.topics.get(topic)
    if state is None:
        return
    now = state.partitions

    def show() -> None:
        wanted = total.value or str(now + 1)
        bootstrap = visit.console.settings.bootstrap
        command.show(f"klamm topic alter {quote(topic)} --partitions {wanted} -b {bootstrap}")
        dialog.ready(total.value.isdecimal() and int(total.value) > now)

    async def do() -> Done:
        wanted = total.number or now
        await visit.console.changes.add_partitions(topic, wanted)
        return Done(f"{topic} has {several(wanted, 'partition')} now")

    text = f"It has {several(now, 'partition')}. Keys of new records go to other partitions than before,"
    with Dialog(visit, f"More partitions for {topic}", f"{text} and there is no way back.") as dialog:
        total = Field("How many it is to have", str(now), on_change=show, is_number=True)
        command = Command()
        dialog.actions("Add partitions", do, is_ready=False)
    show()


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise CannotDo(f"{word} is not a setting: expected KEY=VALUE")
        found[key] = value
    return found
