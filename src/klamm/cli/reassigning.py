"""What `klamm cluster reassign` does: plans, shows, begins, and waits with a progress bar on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from klamm.cli.asking import confirmed
from klamm.cli.connecting import Cluster
from klamm.cli.errors import CommandError
from klamm.cli.naming import chosen_names
from klamm.cli.output import Output
from klamm.cli.showing import write_rows, write_values
from klamm.client.results import TopicPartition
from klamm.operating import placing, replicas
from klamm.operating.placing import Change, Layout
from klamm.operating.units import several, size_text

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin
    from klamm.operating.replicas import PartitionMove

LOOK_INTERVAL_S = 0.5
"""How often a command that waits asks what is still moving."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where partitions are to go."""

    to: tuple[int, ...]
    leaving: tuple[int, ...]
    replication_factor: int | None
    file: Path | None


@dataclass(frozen=True, slots=True)
class How:
    """How a command goes about a plan."""

    save: Path | None
    throttle_bytes: int | None
    waits: bool
    dry_run: bool
    yes: bool


def move(cluster: Cluster, topics: list[str] | None, goal: Goal, how: How, output: Output) -> None:
    """Plan, show, ask, begin, and wait."""

    async def plan(admin: Admin) -> tuple[Layout, list[Change], dict[TopicPartition, int]]:
        layout = await replicas.layout_of(admin)
        changes = _plan(layout, topics, goal)
        return layout, changes, await replicas.sizes_of(admin, [each.partition for each in changes])

    layout, changes, sizes = cluster.run(plan)
    if output is Output.TABLE and changes:
        _show_changes(changes, sizes)
    if not changes:
        _write_changes(changes, sizes, output, done=False)
        typer.echo("klamm: nothing is to be moved", err=True)
        return
    copied = size_text(sum(sizes.get(each.partition, 0) * len(each.adding) for each in changes))
    what = f"{several(len(changes), 'partition')}, copying {copied}"
    if how.dry_run:
        _write_changes(changes, sizes, output, done=False)
        typer.echo(f"klamm: would reassign {what}", err=True)
        return
    if not confirmed(how.yes, f"Reassign {what}?"):
        return
    if how.save is not None:
        _save(how.save, changes)
    cluster.run(lambda admin: replicas.begin(admin, changes, how.throttle_bytes))
    _write_changes(changes, sizes, output, done=True)
    if how.save is not None:
        typer.echo(f"klamm: to undo it: klamm cluster reassign --file {how.save}", err=True)
    if not how.waits:
        typer.echo(f"klamm: reassigning {what}; look: klamm cluster reassign --status", err=True)
        if how.throttle_bytes is not None:
            typer.echo("klamm: then lift the limit: klamm cluster reassign --unthrottle", err=True)
        return
    try:
        stayed = cluster.run(lambda admin: _wait(admin, changes))
    except KeyboardInterrupt:
        typer.echo("klamm: the brokers go on; look: klamm cluster reassign --status", err=True)
        raise
    if how.throttle_bytes is not None:
        concerned = {each.partition.topic for each in changes}
        cluster.run(lambda admin: replicas.unthrottle(admin, concerned, layout.racks))
    if stayed:
        raise CommandError(
            f"{several(len(stayed), 'partition')} stayed where they were, such as {stayed[0].partition}",
            advice="Somebody else has cancelled or changed the moves",
        )
    typer.echo(f"klamm: reassigned {what}", err=True)


def show_status(cluster: Cluster, topics: list[str] | None, output: Output) -> None:
    moves = _moves(cluster, topics)
    if output is not Output.TABLE:
        write_values([_move_as_value(each) for each in moves], output)
        return
    rows = [
        (
            each.partition.topic,
            each.partition.partition,
            _ids(each.replicas),
            _ids(each.adding),
            _ids(each.removing),
            _progress(each),
        )
        for each in moves
    ]
    if rows:
        write_rows(("topic", "partition", "replicas", "adding", "removing", "copied"), rows, output)
    typer.echo(f"klamm: {several(len(rows), 'partition')} on the way", err=True)


def cancel(cluster: Cluster, topics: list[str] | None, dry_run: bool, yes: bool, output: Output) -> None:
    moves = _moves(cluster, topics)
    done = "would cancel" if dry_run else "cancelled"
    if moves and not dry_run:
        if not confirmed(yes, f"Cancel the moves of {several(len(moves), 'partition')}?"):
            return
        partitions = [each.partition for each in moves]
        cluster.run(lambda admin: replicas.cancel(admin, partitions))
        _unthrottle(cluster)
    if output is not Output.TABLE:
        write_values([_move_as_value(each) | {"cancelled": not dry_run} for each in moves], output)
    typer.echo(f"klamm: {done} the moves of {several(len(moves), 'partition')}", err=True)


def lift_throttles(cluster: Cluster, dry_run: bool) -> None:
    if not dry_run:
        topics, brokers = _unthrottle(cluster)
    else:
        topics, brokers = cluster.run(replicas.throttled)
    done = "would lift" if dry_run else "lifted"
    typer.echo(
        f"klamm: {done} the limits of {several(len(topics), 'topic')} and {several(len(brokers), 'broker')}",
        err=True,
    )


# ---- the steps


def _plan(layout: Layout, topics: list[str] | None, goal: Goal) -> list[Change]:
    if goal.file is not None:
        try:
            text = goal.file.read_text()
        except (OSError, ValueError) as error:
            raise CommandError(f"{goal.file} cannot be read: {error}") from None
        return placing.explicit(layout, placing.parse_placement(text, str(goal.file)))
    partitions = _partitions(layout, topics)
    if goal.leaving:
        if unknown := sorted(set(goal.leaving) - set(layout.racks) - set(layout.loads)):
            raise CommandError(f"there is no broker {unknown[0]}")
        return placing.drain(layout, partitions, goal.leaving)
    if not topics:
        raise CommandError("which topics are to move?", advice="Give --topic, such as --topic '*'")
    if goal.to:
        return placing.spread(layout, partitions, goal.to, goal.replication_factor)
    assert goal.replication_factor is not None
    return placing.change_factor(layout, partitions, goal.replication_factor)


def _partitions(layout: Layout, topics: list[str] | None) -> list[TopicPartition]:
    there = {each.topic for each in layout.replicas}
    if not topics:
        return list(layout.replicas)
    names = set(chosen_names(topics, there, "topic"))
    if missing := sorted(names - there):
        raise CommandError(f"there is no topic {missing[0]}")
    return [each for each in layout.replicas if each.topic in names]


def _moves(cluster: Cluster, topics: list[str] | None) -> list[PartitionMove]:
    moves = cluster.run(replicas.moves_under_way)
    if not topics:
        return moves
    names = set(chosen_names(topics, {each.partition.topic for each in moves}, "moving topic"))
    return [each for each in moves if each.partition.topic in names]


def _unthrottle(cluster: Cluster) -> tuple[list[str], list[int]]:
    async def lift(admin: Admin) -> tuple[list[str], list[int]]:
        topics, brokers = await replicas.throttled(admin)
        await replicas.unthrottle(admin, topics, brokers)
        return topics, brokers

    return cluster.run(lift)


async def _wait(admin: Admin, changes: Sequence[Change]) -> list[Change]:
    """Wait until none of the partitions is on its way: on a terminal with a bar. Returns the changes that did
    not come about."""
    partitions = [each.partition for each in changes]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=float(len(partitions)))
        while moves := await replicas.moves_under_way(admin, partitions):
            left = sum(1 - _share(each) for each in moves)
            bar.update(
                task,
                description=f"{several(len(moves), 'partition')} on the way",
                completed=len(partitions) - left,
            )
            await asyncio.sleep(LOOK_INTERVAL_S)
    there = (await replicas.layout_of(admin)).replicas
    return [each for each in changes if set(there.get(each.partition, ())) != set(each.new)]


def _save(path: Path, changes: Iterable[Change]) -> None:
    try:
        path.write_text(placing.placement_text({each.partition: each.old for each in changes}))
    except OSError as error:
        raise CommandError(f"{path} cannot be written, and nothing was moved: {error.strerror}") from None


# ---- writing


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _share(each: PartitionMove) -> float:
    """How much of a partition is copied, from 0 to 1."""
    if not each.total_bytes:
        return 0.0
    return (each.copied_bytes or 0) / each.total_bytes


def _progress(each: PartitionMove) -> str:
    if each.total_bytes is None:
        return "–"
    return f"{size_text(each.copied_bytes)} of {size_text(each.total_bytes)}"


def _show_changes(changes: Sequence[Change], sizes: dict[TopicPartition, int]) -> None:
    rows = [
        (
            each.partition.topic,
            each.partition.partition,
            _ids(each.old),
            _ids(each.new),
            size_text(sizes.get(each.partition, 0) * len(each.adding)),
        )
        for each in changes
    ]
    write_rows(("topic", "partition", "replicas", "new replicas", "copies"), rows, Output.TABLE)


def _write_changes(
    changes: Sequence[Change], sizes: dict[TopicPartition, int], output: Output, *, done: bool
) -> None:
    if output is Output.TABLE:
        return
    values = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "replicas": list(each.old),
            "new_replicas": list(each.new),
            "copied_bytes": sizes.get(each.partition, 0) * len(each.adding),
            "begun": done,
        }
        for each in changes
    ]
    write_values(values, output)


def _move_as_value(each: PartitionMove) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "replicas": list(each.replicas),
        "adding": list(each.adding),
        "removing": list(each.removing),
        "copied_bytes": each.copied_bytes,
        "total_bytes": each.total_bytes,
    }
