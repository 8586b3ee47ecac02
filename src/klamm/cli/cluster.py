"""`klamm cluster …`: the brokers of a cluster, and which partitions lack replicas or a leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from klamm.cli.connecting import Cluster, with_cluster
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
