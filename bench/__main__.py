"""The command: `python -m bench [--only SECTION ...] [--quick] [--peer none|kafka] [--beside DIR]`.

Most sections share one Klamm broker and one Apache Kafka, which both run all the time and are loaded in turn.
The sections about starting, many partitions, clusters and Spark start brokers of their own.

At its end a run publishes its figures: docs/benchmarks/figures.json gets the sections that were measured, and
the pages and the picture of docs/ are made from it. A run that is quick or has no Apache Kafka beside it
publishes nothing, nor does one with another version of Klamm in it (--beside), which tells whether a change
made the broker slower: both versions run and are loaded in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.peers.kafka_jars import PeerMissing, find_java, find_kafka_jars

from bench import (
    client_memory,
    client_round_trip,
    connections,
    fanout,
    java_tools,
    latency,
    librdkafka,
    machine,
    markdown,
    partitions,
    processes,
    published,
    python_clients,
    raw_fetch,
    raw_produce,
    report,
    startup,
)
from bench.cluster import section as cluster
from bench.layouts import CLIENT_SECTIONS
from bench.peers import KafkaBroker, KlammBroker, klamm_of, running
from bench.runner import Bench, BrokerKind, Comparison
from bench.spark import section as spark
from bench.spark import tables


class Section(NamedTuple):
    name: str
    comparisons: Callable[[Bench], Iterator[Comparison]]
    case_count: Callable[[Bench], int]


FIRST = [Section(module.SECTION, module.comparisons, module.case_count) for module in (machine, startup)]
SHARED = [
    Section(module.SECTION, module.comparisons, module.case_count)
    for module in (
        raw_produce,
        raw_fetch,
        connections,
        fanout,
        latency,
        librdkafka,
        java_tools,
        python_clients,
        client_round_trip,
        client_memory,
    )
]
LAST = [
    Section(module.SECTION, module.comparisons, module.case_count)
    for module in (partitions, cluster, spark, tables)
]
PLAIN_WIDTH = 170  # off a terminal nothing says how wide a line may be
SECTIONS = [section.name for section in (*FIRST, *SHARED, *LAST)]


ROUNDS = 5
QUICK_ROUNDS = 2


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=sys.modules["bench"].__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION",
                        help="only these sections: " + ", ".join(SECTIONS))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few and short rounds: a check, not a result")
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"rounds of a comparison (default: {ROUNDS}, quick {QUICK_ROUNDS})",
    )
    parser.add_argument(
        "--peer", choices=("kafka", "none"), default="kafka", help="whom to measure beside Klamm"
    )
    parser.add_argument("--beside", type=Path, metavar="DIR",
                        help="a checkout of another version of Klamm, measured in turns with this one where "
                        "sections share their brokers")  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"), metavar="FILE",
                        help="where the JSON goes (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--publish",
        action=argparse.BooleanOptionalAction,
        help="put the figures into docs/ (default: yes, unless the run is quick or has no Apache Kafka)",
    )
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()), metavar="DIR",
                        help="where the brokers keep their data (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--placement",
        choices=[one.value for one in processes.Placement],
        default=processes.placement.value,
        help="free: the kernel places everything; split: Klamm on the first core, the raw load on the last",
    )
    return parser.parse_args(arguments)


def available_kinds(console: Console, peer: str, beside: Path | None) -> list[BrokerKind]:
    kinds: list[BrokerKind] = [KlammBroker]
    if beside is not None:
        kinds.append(klamm_of(beside))
    if peer == "kafka":
        try:
            find_java()
            find_kafka_jars()
            kinds.append(KafkaBroker)
        except PeerMissing as missing:
            console.print(f"The run goes on without its peer: {missing}", highlight=False)
    return kinds


@contextlib.contextmanager
def shared_brokers(bench: Bench) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind in bench.kinds:
            bench.on_step(f"starting {kind.name}")
            try:
                broker = stack.enter_context(running(kind, bench.work_dir))
                raw_produce.warm_up(bench, broker)
                raw_fetch.warm_up(bench, broker)
            except Exception as failure:
                bench.note_failure("start", "for the shared sections", kind.name, failure)
            else:
                bench.brokers[kind.name] = broker
        yield
        bench.brokers.clear()


def run_section(bench: Bench, section: Section) -> None:
    try:
        bench.run(section.name, section.comparisons(bench))
    except Exception as failure:  # a section that cannot be set up must not end the run
        bench.note_failure(section.name, "set-up", "bench", failure)


def run_sections(bench: Bench, chosen: list[str]) -> None:
    for section in FIRST:
        if section.name in chosen:
            run_section(bench, section)
    if any(section.name in chosen for section in SHARED):
        with shared_brokers(bench):
            for section in SHARED:
                if section.name in chosen:
                    run_section(bench, section)
            if any(section.name in chosen for section in SHARED if section.name not in CLIENT_SECTIONS):
                run_section(bench, Section(startup.SECTION, startup.memory_after_load, lambda _: 1))
    for section in LAST:
        if section.name in chosen:
            run_section(bench, section)


def show_progress(console: Console, bench: Bench, chosen: list[str]) -> Progress:
    """A bar on a terminal, nothing elsewhere. No thread draws it: that thread would share the load's core."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        disable=not console.is_terminal,
        transient=True,
    )
    total = sum(section.case_count(bench) for section in (*FIRST, *SHARED, *LAST) if section.name in chosen)
    task = progress.add_task("", total=total)
    bench.on_step = lambda text: progress.update(task, description=text, refresh=True)
    bench.on_case = lambda: progress.update(task, advance=1, refresh=True)
    return progress


def is_published(arguments: argparse.Namespace, bench: Bench) -> bool:
    """Whether the figures of this run go into docs/: as the command says, else if they are comparable."""
    if arguments.publish is not None:
        return bool(arguments.publish)
    return not bench.is_quick and KafkaBroker in bench.kinds and arguments.beside is None


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    processes.placement = processes.Placement(arguments.placement)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="klamm-bench-", dir=arguments.work_dir) as work_dir:
        rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
        kinds = available_kinds(console, arguments.peer, arguments.beside)
        bench = Bench(Path(work_dir), arguments.quick, rounds, kinds)
        with show_progress(console, bench, arguments.only):
            try:
                run_sections(bench, arguments.only)
            except KeyboardInterrupt:
                bench.results.failures.append("interrupted: the figures are those taken so far")
    seconds = time.perf_counter() - started
    report.print_report(console, bench.results)
    report.write_json(arguments.output, bench.results, arguments.only, arguments.quick, seconds)
    console.print(f"{seconds:.0f} s; every round is in {arguments.output}", highlight=False)
    if is_published(arguments, bench):
        markdown.main([str(arguments.output)])
        console.print(f"published in {markdown.PAGE} and {published.FILE.parent}", highlight=False)
    return 1 if bench.results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
