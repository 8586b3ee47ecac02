"""`klamm doctor`: looks at a cluster, and says what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.connecting import Cluster, with_cluster
from klamm.cli.output import Output, OutputOption

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin
    from klamm.operating.checkup.checks import Finding
    from klamm.operating.checkup.facts import Facts


@with_cluster
def doctor(
    cluster: Cluster,
    pause: Annotated[
        float, typer.Option("--pause", min=0.1, help="The seconds between two looks at groups.")
    ] = 10.0,
    disk: Annotated[
        int, typer.Option("--disk", min=0, max=100, help="How full a disk may be, in percent.")
    ] = 85,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look for what is wrong with the cluster, and with the pipelines of the project here: listeners, disks,
    replicas, coordinators, groups.

    The exit status is 0 if all is well, and 1 with findings.
    """
    import asyncio

    from klamm.cli.showing import write_values
    from klamm.operating.checkup.checks import Limits, findings
    from klamm.operating.checkup.gathering import ANSWER_LIMIT_S, gather

    limit_s = min(ANSWER_LIMIT_S, cluster.timeout_s)

    def connect(address: str) -> Admin:
        return cluster.at(address, limit_s).async_admin()

    def say_pause() -> None:
        typer.echo(f"klamm: looking at groups again in {pause:g} s", err=True)

    addresses = [each.strip() for each in cluster.bootstrap.split(",") if each.strip()]
    facts = asyncio.run(gather(connect, addresses, pause_s=pause, folder=Path.cwd(), on_pause=say_pause))
    found = findings(facts, Limits(disk / 100))
    if output is Output.TABLE:
        _show(found)
        typer.echo(f"klamm: {_summary(facts, len(found))}", err=True)
    else:
        from dataclasses import asdict

        write_values([asdict(each) for each in found], output)
    if found:
        raise typer.Exit(1)


def _show(found: list[Finding]) -> None:
    from rich.text import Text

    from klamm.cli.showing import console
    from klamm.operating.units import printable

    out = console()
    for each in found:
        is_error = each.severity == "error"
        line = Text(f"{each.severity}: ", style="red" if is_error else "yellow")
        line.append(printable(each.what), style="bold")
        out.print(line, soft_wrap=True)
        out.print(Text(f"  → {printable(each.advice)}"), soft_wrap=True)


def _summary(facts: Facts, count: int) -> str:
    from klamm.operating.units import several

    if not facts.is_answered:
        return f"{several(count, 'finding')}; the cluster could not be looked at"
    seen = ", ".join(
        several(number, noun)
        for number, noun in (
            (len(facts.brokers), "broker"),
            (len(facts.topics), "topic"),
            (len(facts.groups), "group"),
            (len(facts.pipelines), "pipeline"),
        )
    )
    return f"{several(count, 'finding') if count else 'all is well'}: looked at {seen}"
