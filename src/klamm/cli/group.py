"""`klamm group …`: consumer groups: who is in them, how far they are behind, and moving their offsets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.asking import DryRunOption, YesOption, confirmed
from klamm.cli.completing import group_names
from klamm.cli.connecting import Cluster, with_cluster
from klamm.cli.errors import CommandError
from klamm.cli.output import Output, OutputOption

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin
    from klamm.operating.groups import Goal, GroupDetails, GroupSummary
    from klamm.operating.seeking import SeekPlan, TopicChoice

MOST_NAMED_TOPICS = 3
"""Topics of a group that the list names; JSON has all of them."""

app = typer.Typer(help="Consumer groups: members, lag, offsets.", no_args_is_help=True, add_completion=False)

GroupArgument = Annotated[str, typer.Argument(help="A group.", autocompletion=group_names)]
GroupsArgument = Annotated[
    list[str],
    typer.Argument(help="Groups, or patterns in quotes: 'billing-*'.", autocompletion=group_names),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC[:0,1]", help="Only this topic or its partitions; may be repeated."
    ),
]


@app.callback()
def root() -> None:
    """Consumer groups: members, lag, offsets."""


@app.command("list")
@with_cluster
def list_(
    cluster: Cluster,
    groups: Annotated[
        list[str] | None, typer.Argument(help="Only these groups, or patterns in quotes.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only groups in this state, such as Stable or Empty; may be repeated."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show groups: state, members, topics, and the lag over all their partitions."""
    from klamm.cli.naming import chosen_names
    from klamm.cli.showing import write_rows, write_values
    from klamm.operating.groups import summarize
    from klamm.operating.units import count_text, several

    async def ask(admin: Admin) -> list[GroupSummary]:
        listings = await admin.list_groups(states=state or ())
        if groups:
            wanted = chosen_names(groups, [each.group for each in listings], "group")
            if missing := sorted(set(wanted) - {each.group for each in listings}):
                raise CommandError(f"there is no group {missing[0]}{' in this state' if state else ''}")
            listings = [each for each in listings if each.group in wanted]
        return await summarize(admin, listings)

    found = cluster.run(ask)
    if output is not Output.TABLE:
        write_values([_as_value(each) for each in found], output)
        return
    rows = []
    for each in found:
        more = len(each.topics) - MOST_NAMED_TOPICS
        topics = ", ".join(each.topics[:MOST_NAMED_TOPICS]) + (f" and {more} more" if more > 0 else "")
        rows.append(
            (
                each.group,
                each.state or None,
                each.members,
                count_text(each.lag),
                topics,
                each.assignor or each.protocol_type,
                each.error,
            )
        )
    write_rows(("group", "state", "members", "lag", "topics", "protocol", ""), rows, output)
    if not rows:
        typer.echo("klamm: there is no group", err=True)
    elif len(rows) > 1:
        typer.echo(f"klamm: {several(len(rows), 'group')}", err=True)
    if any(each.error for each in found):
        raise typer.Exit(1)


@app.command()
@with_cluster
def describe(cluster: Cluster, groups: GroupsArgument, output: OutputOption = Output.TABLE) -> None:
    """Show groups with their members, and what they have committed of each partition."""
    found = _details(cluster, groups)
    if output is not Output.TABLE:
        from klamm.cli.showing import write_values

        write_values([_details_as_value(each) for each in found.values()], output)
        return
    for number, each in enumerate(found.values()):
        if number:
            typer.echo()
        _show(each)


@app.command()
@with_cluster
def lag(cluster: Cluster, groups: GroupsArgument, output: OutputOption = Output.TABLE) -> None:
    """Show how far groups are behind in each partition."""
    from klamm.cli.showing import write_rows, write_values
    from klamm.operating.units import count_text, several

    found = _details(cluster, groups)
    if output is not Output.TABLE:
        values = [
            {"group": name, **_partition_as_value(one)}
            for name, each in found.items()
            for one in each.partitions
        ]
        write_values(values, output)
        return
    rows = [
        (
            name,
            one.partition.topic,
            one.partition.partition,
            count_text(None if one.committed is None else one.committed.offset),
            count_text(one.end),
            count_text(one.lag),
        )
        for name, each in found.items()
        for one in each.partitions
    ]
    write_rows(("group", "topic", "partition", "committed", "end", "lag"), rows, output)
    known = [each.lag for each in found.values() if each.lag is not None]
    typer.echo(f"klamm: lag {sum(known):,} in {several(len(rows), 'partition')}", err=True)


@app.command()
@with_cluster
def seek(
    cluster: Cluster,
    group: GroupArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="start, end, an offset 5, the last -10 of each partition, @2026-01-01T10:00 or -90m.",
        ),
    ] = None,
    by: Annotated[
        int | None,
        typer.Option("--by", metavar="NUMBER", help="So many offsets forward, or back: -100."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="GROUP", help="Where this group is.", autocompletion=group_names),
    ] = None,
    to_file: Annotated[
        Path | None, typer.Option("--to-file", help="The offsets in a file that --save has written.")
    ] = None,
    topic: TopicsOption = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", help="Write the present offsets to this file first; --to-file undoes the seek."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move the committed offsets of a group that has no members: to a place, by a number, to where another
    group is, or back to what was saved. Without --topic all partitions with a committed offset are moved."""
    from klamm.operating.groups import plan_seek
    from klamm.operating.groups import seek as carry_out
    from klamm.operating.seeking import undo_text
    from klamm.operating.units import several

    goal = _goal(to, by, like, to_file)
    choices = _choices(topic)
    plan = cluster.run(lambda admin: plan_seek(admin, group, goal, choices))
    if output is Output.TABLE:
        _show_plan(plan)
    if not plan.changes:
        _write_plan(plan, output, done=not dry_run)
        typer.echo(f"klamm: group {group} is there already", err=True)
        return
    what = f"{plan.read_again:,} records are read again, {plan.passed_over:,} are passed over"
    if dry_run:
        _write_plan(plan, output, done=False)
        typer.echo(f"klamm: would move {several(len(plan.changes), 'partition')}: {what}", err=True)
        return
    if not confirmed(yes, f"Move {several(len(plan.changes), 'partition')} of group {group}? {what}."):
        return
    if save is not None:
        _write_file(save, undo_text(plan))
    cluster.run(lambda admin: carry_out(admin, plan))
    _write_plan(plan, output, done=True)
    typer.echo(f"klamm: moved {several(len(plan.changes), 'partition')}: {what}", err=True)
    if save is not None:
        typer.echo(f"klamm: to undo it: klamm group seek {group} --to-file {save}", err=True)


@app.command()
@with_cluster
def delete(
    cluster: Cluster,
    groups: GroupsArgument,
    topic: TopicsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete groups with all their offsets, or with --topic only their offsets of topics."""
    from klamm.cli.showing import write_values
    from klamm.client.results import CommittedOffset, TopicPartition
    from klamm.operating.groups import check_has_no_members, plan_delete_offsets
    from klamm.operating.units import printable, several

    choices = _choices(topic)
    found = _details(cluster, groups)

    async def plan(admin: Admin) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        if choices:
            return {name: await plan_delete_offsets(admin, name, choices) for name in found}
        for name in found:
            await check_has_no_members(admin, name)
        return {
            name: {one.partition: one.committed for one in each.partitions if one.committed is not None}
            for name, each in found.items()
        }

    async def carry_out(admin: Admin) -> None:
        if not choices:
            await admin.delete_groups(offsets)
            return
        for name, chosen in offsets.items():
            await admin.delete_group_offsets(name, chosen)

    offsets = cluster.run(plan)
    for name, each in offsets.items():
        typer.echo(f"{printable(name)}: {several(len(each), 'committed offset')}", err=True)
    if not dry_run:
        what = "the offsets of" if choices else ""
        if not confirmed(yes, " ".join(f"Delete {what} {several(len(offsets), 'group')}?".split())):
            return
        cluster.run(carry_out)
    if output is Output.TABLE:
        done = "would delete" if dry_run else "deleted"
        for name, each in offsets.items():
            of = f"{several(len(each), 'offset')} of " if choices else ""
            typer.echo(f"{done} {of}{printable(name)}")
        return
    write_values(
        [{"group": name, "offsets": len(each), "deleted": not dry_run} for name, each in offsets.items()],
        output,
    )


# ---- what the commands share


def _details(cluster: Cluster, groups: list[str]) -> dict[str, GroupDetails]:
    from klamm.cli.naming import chosen_names, is_pattern
    from klamm.operating.groups import describe_many

    async def ask(admin: Admin) -> dict[str, GroupDetails]:
        there = [each.group for each in await admin.list_groups()] if any(map(is_pattern, groups)) else []
        return await describe_many(admin, chosen_names(groups, there, "group"))

    return cluster.run(ask)


def _goal(to: str | None, by: int | None, like: str | None, to_file: Path | None) -> Goal:
    from klamm.operating.groups import By, Like, Saved, To
    from klamm.operating.ranges import parse_place, present
    from klamm.operating.seeking import parse_undo

    if sum(each is not None for each in (to, by, like, to_file)) != 1:
        raise CommandError(
            "a seek needs one place to go to", advice="Give one of --to, --by, --like and --to-file"
        )
    if to is not None:
        return To(parse_place(to, present()))
    if by is not None:
        return By(by)
    if like is not None:
        return Like(like)
    assert to_file is not None
    try:
        text = to_file.read_text()
    except (OSError, ValueError) as error:
        raise CommandError(f"{to_file} cannot be read: {error}") from None
    return Saved(parse_undo(text, str(to_file)), str(to_file))


def _choices(topics: list[str] | None) -> list[TopicChoice]:
    from klamm.operating.seeking import parse_choice

    return [parse_choice(each) for each in topics or ()]


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise CommandError(f"{path} cannot be written, and nothing was moved: {error.strerror}") from None


# ---- writing


def _as_value(each: GroupSummary) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(each)


def _partition_as_value(each: Any) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "committed": None if each.committed is None else each.committed.offset,
        "metadata": None if each.committed is None else each.committed.metadata,
        "first": each.first,
        "end": each.end,
        "lag": each.lag,
        "member": None if each.member is None else each.member.member_id,
    }


def _details_as_value(each: GroupDetails) -> dict[str, Any]:
    group = each.description
    return {
        "group": group.group,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.strategy,
        "coordinator": group.coordinator,
        "lag": each.lag,
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "topics": list(member.topics),
                "partitions": [
                    {"topic": one.topic, "partition": one.partition} for one in sorted(member.partitions)
                ],
            }
            for member in group.members
        ],
        "partitions": [_partition_as_value(one) for one in each.partitions],
    }


def _show(details: GroupDetails) -> None:
    from klamm.cli.showing import write_rows
    from klamm.operating.units import count_text, printable, several

    group = details.description
    facts = [
        group.state,
        several(len(group.members), "member"),
        f"lag {count_text(details.lag)}",
        f"coordinator {group.coordinator}",
        group.strategy or group.protocol_type,
    ]
    typer.echo(printable(f"{group.group}: {', '.join(each for each in facts if each)}"))
    if group.members:
        typer.echo()
        rows = [
            (
                member.member_id,
                member.instance_id,
                member.client_id,
                member.host,
                ", ".join(_by_topic(member.partitions)),
            )
            for member in group.members
        ]
        write_rows(("member", "instance", "client", "host", "partitions"), rows, Output.TABLE)
    if details.partitions:
        typer.echo()
        lines = [
            (
                one.partition.topic,
                one.partition.partition,
                count_text(None if one.committed is None else one.committed.offset),
                count_text(one.end),
                count_text(one.lag),
                None if one.member is None else one.member.client_id,
                "" if one.committed is None else one.committed.metadata,
            )
            for one in details.partitions
        ]
        columns = ("topic", "partition", "committed", "end", "lag", "client", "metadata")
        write_rows(columns, lines, Output.TABLE)


def _by_topic(partitions: Any) -> list[str]:
    from klamm.client.arguments import by_topic

    return [f"{name}:{','.join(map(str, sorted(numbers)))}" for name, numbers in by_topic(partitions).items()]


def _show_plan(plan: SeekPlan) -> None:
    from klamm.cli.showing import write_rows
    from klamm.operating.units import count_text

    rows = [
        (
            move.partition.topic,
            move.partition.partition,
            count_text(None if move.old is None else move.old.offset),
            count_text(None if move.new is None else move.new.offset),
            f"{move.read_again:,}",
            f"{move.passed_over:,}",
            move.note,
        )
        for move in plan.moves
    ]
    columns = ("topic", "partition", "offset", "new offset", "read again", "passed over", "")
    write_rows(columns, rows, Output.TABLE)


def _write_plan(plan: SeekPlan, output: Output, *, done: bool) -> None:
    """In JSON the plan is written once, when it is known whether it was done."""
    from klamm.cli.showing import write_values

    if output is Output.TABLE:
        return
    values = [
        {
            "group": plan.group,
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            "offset": None if move.old is None else move.old.offset,
            "new_offset": None if move.new is None else move.new.offset,
            "read_again": move.read_again,
            "passed_over": move.passed_over,
            "note": move.note,
            "moved": done and move.changes,
        }
        for move in plan.moves
    ]
    write_values(values, output)
