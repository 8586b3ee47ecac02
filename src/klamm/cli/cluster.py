"""`klamm cluster …`: the brokers of a cluster, what lacks replicas or a leader, moving and electing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.asking import DryRunOption, YesOption, confirmed
from klamm.cli.completing import topic_names
from klamm.cli.connecting import Cluster, with_cluster
from klamm.cli.errors import CommandError
from klamm.cli.output import Output, OutputOption

if TYPE_CHECKING:
    from klamm.client.admin.types import BrokerDescription, ClusterDescription, TopicDescription

MOST_NAMED_PARTITIONS = 20
"""Partitions that the table names; JSON has all of them."""

app = typer.Typer(
    help="The cluster: its brokers, its controller, its health.", no_args_is_help=True, add_completion=False
)


@app.callback()
def root() -> None:
    """The cluster: its brokers, its controller, its health."""


@app.command()
@with_cluster
def status(cluster: Cluster, output: OutputOption = Output.TABLE) -> None:
    """Show the brokers, the controller, and the partitions that lack replicas or a leader.

    The exit status is 1 if no broker answers.
    """
    from klamm.cli.showing import write_json, write_values

    with cluster.admin() as admin:
        described = admin.describe_cluster()
        names = admin.list_topics(include_internal=True)
        topics = list(admin.describe_topics(names).values()) if names else []
    seen = _as_values(described, topics)
    if output is Output.TABLE:
        _show(described, seen)
    elif output is Output.JSON:
        write_json(seen)
    else:
        write_values([seen], output)


@app.command()
@with_cluster
def brokers(cluster: Cluster, output: OutputOption = Output.TABLE) -> None:
    """Show the brokers: addresses, racks, what each leads and holds, and how full its disks are.

    The exit status is 1 if a broker is gone or does not say what its disks have.
    """
    from klamm.cli.showing import write_rows, write_values
    from klamm.operating.brokers import brokers as look
    from klamm.operating.units import count_text, size_text

    found = cluster.run(look)
    if output is Output.TABLE:
        rows = [
            (
                each.broker_id,
                f"{each.host}:{each.port}" if each.alive else None,
                each.rack,
                count_text(each.leaders),
                count_text(each.replicas),
                size_text(each.size_bytes),
                ", ".join(f"{disk.path} {_fullness(disk)}" for disk in each.disks),
                _state(each),
            )
            for each in found
        ]
        columns = ("broker", "address", "rack", "leads", "replicas", "size", "disks", "")
        write_rows(columns, rows, output)
    else:
        from dataclasses import asdict

        write_values([asdict(each) for each in found], output)
    for each in found:
        if each.error:
            typer.echo(f"klamm: {each.error}", err=True)
    if any(each.error or not each.alive for each in found):
        raise typer.Exit(1)


@app.command()
@with_cluster
def reassign(
    cluster: Cluster,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Topics to move, or patterns in quotes; may be repeated.",
            autocompletion=topic_names,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="1,2,3", help="Spread the topics evenly over these brokers."),
    ] = None,
    from_broker: Annotated[
        list[int] | None,
        typer.Option("--from-broker", metavar="ID", help="Empty this broker; may be repeated."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", "-r", min=1, help="Give the topics so many replicas.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Move as this file says: --save, or kafka-reassign-partitions' JSON."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write where the partitions are to this file first; --file undoes it."),
    ] = None,
    throttle: Annotated[
        int | None,
        typer.Option("--throttle", metavar="BYTES", min=1, help="Copy so many bytes a second at most."),
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Show what is moving, and do nothing.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Have what is moving stay where it was, and lift --throttle.")
    ] = False,
    unthrottle: Annotated[
        bool, typer.Option("--unthrottle", help="Lift what is left of an earlier --throttle.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all is moved.")] = True,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move partitions to other brokers, as few as possible, with racks apart."""
    from klamm.cli import reassigning

    goals = {
        "--to": to,
        "--from-broker": from_broker,
        "--file": file,
        "--status": status,
        "--cancel": cancel,
        "--unthrottle": unthrottle,
    }
    given = [name for name, value in goals.items() if value]
    if len(given) > 1 or not (given or replicas):
        raise CommandError(
            "a reassignment needs one goal",
            advice="Give one of --to, --replicas, --from-broker and --file, or look: --status",
        )
    if status:
        reassigning.show_status(cluster, topic, output)
    elif cancel:
        reassigning.cancel(cluster, topic, dry_run, yes, output)
    elif unthrottle:
        reassigning.lift_throttles(cluster, dry_run)
    else:
        goal = reassigning.Goal(_broker_ids(to), tuple(from_broker or ()), replicas, file)
        reassigning.move(cluster, topic, goal, reassigning.How(save, throttle, wait, dry_run, yes), output)


class ElectionKind(StrEnum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@app.command()
@with_cluster
def elect(
    cluster: Cluster,
    kind: Annotated[
        ElectionKind,
        typer.Argument(
            help="preferred: the first replica of each partition leads again. unclean: a partition without a "
            "leader gets any living replica, and loses the records that this one lacks."
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1]", help="Only this topic or its partitions; may be repeated."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All topics.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Elect leaders of partitions."""
    from klamm.cli.showing import write_rows, write_values
    from klamm.operating import replicas
    from klamm.operating.seeking import parse_choice
    from klamm.operating.units import several

    if bool(topic) == all_:
        raise CommandError("an election needs partitions", advice="Give --topic, or --all")
    choices = [parse_choice(each) for each in topic or ()]
    unclean = kind is ElectionKind.UNCLEAN
    planned = cluster.run(lambda admin: replicas.plan_election(admin, choices, unclean=unclean))
    if output is Output.TABLE and planned:
        rows = [
            (each.partition.topic, each.partition.partition, each.leader, each.preferred) for each in planned
        ]
        write_rows(("topic", "partition", "leader", "preferred"), rows, output)
    elected: dict[Any, bool] = {}
    if planned and not dry_run:
        loses = " Records that the new leaders lack are lost." if unclean else ""
        question = f"Elect leaders of {several(len(planned), 'partition')}?{loses}"
        if not confirmed(yes or not unclean, question):
            return
        elected = cluster.run(lambda admin: replicas.elect(admin, planned, unclean=unclean))
    if output is not Output.TABLE:
        values = [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "leader": each.leader,
                "preferred": each.preferred,
                "elected": elected.get(each.partition, False),
            }
            for each in planned
        ]
        write_values(values, output)
    did = "would elect" if dry_run else "elected"
    typer.echo(f"klamm: {did} leaders of {several(len(planned), 'partition')}", err=True)


# ---- what the commands share


def _broker_ids(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise CommandError(f"--to {text} is not valid: expected ids of brokers, such as 1,2,3") from None


def _fullness(disk: Any) -> str:
    from klamm.operating.units import size_text

    if disk.error:
        return "cannot be used"
    if disk.used_share is None:
        return ""
    return f"{disk.used_share:.0%} of {size_text(disk.total_bytes)}"


def _state(broker: Any) -> str:
    words = [] if broker.alive else ["gone"]
    if broker.is_controller:
        words.append("controller")
    if broker.out_of_sync:
        words.append(f"{broker.out_of_sync} out of sync")
    return ", ".join(words)


def _as_values(cluster: ClusterDescription, topics: Sequence[TopicDescription]) -> dict[str, object]:
    partitions = [(topic.name, each) for topic in topics for each in topic.partitions]
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": [_broker(each) for each in cluster.brokers],
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated": [
            {
                "topic": topic,
                "partition": each.partition,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync_replicas),
            }
            for topic, each in partitions
            if len(each.in_sync_replicas) < len(each.replicas)
        ],
        "offline": [
            {"topic": topic, "partition": each.partition, "replicas": list(each.replicas)}
            for topic, each in partitions
            if each.leader is None
        ],
    }


def _broker(broker: BrokerDescription) -> dict[str, object]:
    from klamm.cli.local_processes import listening_process

    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "pid": listening_process(broker.host, broker.port),
    }


def _show(cluster: ClusterDescription, seen: dict[str, object]) -> None:
    from klamm.cli.showing import console, new_table

    brokers, offline, lacking = seen["brokers"], seen["offline"], seen["under_replicated"]
    assert isinstance(brokers, list) and isinstance(offline, list) and isinstance(lacking, list)
    table = new_table(("broker", "address", "rack", "process", ""))
    for broker in brokers:
        table.add_row(
            str(broker["id"]),
            f"{broker['host']}:{broker['port']}",
            broker["rack"] or "–",
            str(broker["pid"] or "–"),
            "controller" if broker["id"] == cluster.controller_id else "",
        )
    out = console()
    out.print(f"cluster {cluster.cluster_id}: {seen['topics']} topics, {seen['partitions']} partitions\n")
    out.print(table)
    if cluster.controller_id is None:
        out.print("\n[red]no controller[/red]: topics cannot be changed, and no leader can be elected")
    _show_partitions("offline (no leader)", "red", offline)
    _show_partitions("under-replicated", "yellow", lacking)
    if not offline and not lacking:
        out.print("\n[green]all replicas are in sync[/green]")


def _show_partitions(title: str, colour: str, partitions: list[dict[str, object]]) -> None:
    from klamm.cli.showing import console

    if not partitions:
        return
    named = [
        f"{each['topic']}-{each['partition']}"
        + (f" (in sync: {each['in_sync']} of {each['replicas']})" if "in_sync" in each else "")
        for each in partitions[:MOST_NAMED_PARTITIONS]
    ]
    more = len(partitions) - len(named)
    out = console()
    out.print(f"\n[{colour}]{title}: {len(partitions)}[/{colour}]")
    for line in named:
        out.print(f"  {line}", markup=False)
    if more:
        out.print(f"  … and {more} more; --output json names all")
