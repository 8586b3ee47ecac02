"""`klamm topic …`: topics, and the records in them, of Klamm or any other Kafka."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from klamm.cli.asking import DryRunOption, YesOption, confirmed
from klamm.cli.completing import topic_names
from klamm.cli.connecting import Cluster, pairs, with_cluster
from klamm.cli.errors import CommandError
from klamm.cli.output import Output, OutputOption

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin as AsyncAdmin
    from klamm.client.admin.types import TopicDescription
    from klamm.client.plain.admin import Admin
    from klamm.client.results import TopicPartition
    from klamm.operating.records.spans import Span

app = typer.Typer(help="Topics, and the records in them.", no_args_is_help=True, add_completion=False)

TopicArgument = Annotated[str, typer.Argument(help="A topic.", autocompletion=topic_names)]
TopicsArgument = Annotated[
    list[str],
    typer.Argument(help="Topics, or patterns in quotes: 'orders-*'.", autocompletion=topic_names),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting of the topic; may be repeated."),
]


@app.callback()
def root() -> None:
    """Topics, and the records in them."""


@app.command("list")
@with_cluster
def list_(
    cluster: Cluster,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Only these topics, or patterns in quotes.")
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Internal topics too, such as __consumer_offsets.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show topics: partitions, replicas, size, and how many replicas are out of sync."""
    from klamm.cli.showing import write_rows, write_values
    from klamm.operating.units import count_text, size_text

    with cluster.admin() as admin:
        found = _described(admin, topics, internal)
        sizes = _sizes(admin)
    values = [_summary(each, sizes) for each in found]
    if output is not Output.TABLE:
        write_values(values, output)
        return
    rows = [
        (
            each["topic"],
            each["partitions"],
            each["replicas"],
            size_text(each["size_bytes"]),
            _health(each),
        )
        for each in values
    ]
    write_rows(("topic", "partitions", "replicas", "size", ""), rows, output)
    if not rows:
        typer.echo("klamm: there is no topic yet. Create one: klamm topic create NAME", err=True)
    elif len(rows) > 1:
        typer.echo(f"klamm: {count_text(len(rows))} topics", err=True)


@app.command()
@with_cluster
def create(
    cluster: Cluster,
    topics: Annotated[list[str], typer.Argument(help="The names of new topics.")],
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="Partitions.", show_default="as the brokers say"),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", "-r", min=1, help="Replicas of each partition.", show_default="as the brokers say"
        ),
    ] = None,
    config: SettingsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave topics alone that exist already.")
    ] = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create topics."""
    from klamm.cli.showing import write_values
    from klamm.client.admin.types import NewTopic
    from klamm.operating.units import several

    settings = pairs(config, "--config")
    with cluster.admin() as admin:
        there = set(admin.list_topics(include_internal=True)) if if_not_exists else set()
        wanted = [NewTopic(name, partitions, replicas, settings) for name in topics if name not in there]
        made = admin.create_topics(wanted, validate_only=dry_run) if wanted else {}
    would = "would create" if dry_run else "created"
    if output is not Output.TABLE:
        write_values(
            [
                {
                    "topic": each.name,
                    "partitions": each.partitions,
                    "replicas": each.replication_factor,
                    "created": not dry_run,
                }
                for each in made.values()
            ],
            output,
        )
        return
    for each in made.values():
        of = f": {several(each.partitions, 'partition')} × {several(each.replication_factor, 'replica')}"
        typer.echo(f"{would} {each.name}{of if each.partitions > 0 else ''}")
    for name in topics:
        if name in there:
            typer.echo(f"{name} exists already", err=True)


@app.command()
@with_cluster
def describe(cluster: Cluster, topics: TopicsArgument, output: OutputOption = Output.TABLE) -> None:
    """Show the partitions of topics, with leaders, replicas and offsets, and changed settings."""
    from klamm.cli.naming import chosen_names
    from klamm.cli.showing import write_values
    from klamm.client.admin.types import ConfigResource, ConfigSource
    from klamm.client.errors import BatchFailed
    from klamm.client.results import TopicPartition
    from klamm.operating.offsets import ends_of

    with cluster.admin() as admin:
        names = chosen_names(topics, admin.list_topics(include_internal=True), "topic")
        found = admin.describe_topics(names)
        configs = admin.describe_configs([ConfigResource.topic(name) for name in names])
        sizes = _sizes(admin)
        led = [
            TopicPartition(topic.name, each.partition)
            for topic in found.values()
            for each in topic.partitions
            if each.leader is not None
        ]
        ends: dict[TopicPartition, Any] = {}
        with suppress(BatchFailed):  # a leader that has just gone; the offsets are shown as unknown
            ends = dict(cluster.run(lambda each: ends_of(each, led))) if led else {}
    values = []
    for name in names:
        topic = found[name]
        changed = {
            key: entry.value
            for key, entry in configs[ConfigResource.topic(name)].items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC
        }
        value = _summary(topic, sizes) | {"id": topic.topic_id, "internal": topic.internal, "config": changed}
        value["partitions"] = [_partition(topic.name, each, ends, sizes) for each in topic.partitions]
        values.append(value)
    if output is Output.TABLE:
        for number, value in enumerate(values):
            _show(value, is_first=number == 0)
    else:
        write_values(values, output)


@app.command()
@with_cluster
def alter(
    cluster: Cluster,
    topics: TopicsArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="How many partitions it is to have.")
    ] = None,
    config: SettingsOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="A setting to put back to its default; may be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give topics more partitions, or other settings."""
    from klamm.cli.naming import chosen_names
    from klamm.cli.showing import write_values
    from klamm.client.admin.types import ConfigChange, ConfigResource

    settings = pairs(config, "--config")
    if partitions is None and not settings and not unset:
        raise CommandError("nothing is to be changed", advice="Give --partitions, --config or --unset")
    with cluster.admin() as admin:
        names = chosen_names(topics, admin.list_topics(include_internal=True), "topic")
        found = admin.describe_topics(names)
        if partitions is not None:
            _tell_more_partitions([each for each in found.values()], partitions)
            if not dry_run and not confirmed(yes, "Keys of new records go to other partitions. Go on?"):
                return
        if settings or unset:
            change = ConfigChange(settings, unset or ())
            changes = {ConfigResource.topic(name): change for name in names}
            admin.alter_configs(changes, validate_only=dry_run)
        if partitions is not None:
            for name in names:
                admin.create_partitions(name, partitions, validate_only=dry_run)
    done = "would change" if dry_run else "changed"
    if output is Output.TABLE:
        for name in names:
            typer.echo(f"{done} {name}")
    else:
        write_values([{"topic": name, "changed": not dry_run} for name in names], output)


@app.command()
@with_cluster
def delete(
    cluster: Cluster,
    topics: TopicsArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete topics with all their records."""
    from klamm.cli.naming import chosen_names
    from klamm.cli.showing import write_values
    from klamm.operating.units import several, size_text

    with cluster.admin() as admin:
        names = chosen_names(topics, admin.list_topics(), "topic")
        found = admin.describe_topics(names)
        sizes = _sizes(admin)
        for each in found.values():
            size = size_text(_summary(each, sizes)["size_bytes"])
            line = f"{each.name}: {several(len(each.partitions), 'partition')}, {size}"
            typer.echo(line, err=True)
        if not dry_run:
            if not confirmed(yes, f"Delete {several(len(names), 'topic')} with all records?"):
                return
            admin.delete_topics(names)
    done = "would delete" if dry_run else "deleted"
    if output is Output.TABLE:
        for name in names:
            typer.echo(f"{done} {name}")
    else:
        write_values([{"topic": name, "deleted": not dry_run} for name in names], output)


@app.command()
@with_cluster
def produce(
    cluster: Cluster,
    topic: TopicArgument,
    value: Annotated[
        str | None, typer.Option("--value", "-v", help="One record with this value, instead of stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all records.")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("--key-delimiter", "-K", help="What divides key and value in a line.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", help="What ends a record: \\n, \\0 or any text.")
    ] = "\\n",
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of all records; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only to this partition.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", help="The time of all records: 2026-01-01T10:00, -1h or ms.")
    ] = None,
    empty_is_null: Annotated[
        bool, typer.Option("--null", "-Z", help="Send empty keys and values as null.")
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--jsonl", help="Each line is a record as `consume -o jsonl` writes it.")
    ] = False,
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    output: OutputOption = Output.TABLE,
) -> None:
    """Send records from stdin, one per line."""
    from klamm.cli.records import producing
    from klamm.cli.showing import write_values
    from klamm.operating.ranges import parse_time, present
    from klamm.operating.units import several, size_text

    rules = producing.LineRules(
        None if key_delimiter is None else _unescaped(key_delimiter),
        None if key is None else key.encode(),
        tuple((name, text.encode()) for name, text in pairs(header, "--header").items()),
        partition,
        None if timestamp is None else parse_time(timestamp, present()),
        empty_is_null,
    )
    if value is not None:
        lines = iter([value.encode()])
    else:
        if sys.stdin.isatty():
            typer.echo(f"klamm: type records for {topic}, one per line; Ctrl-D ends", err=True)
        stdin = cast(producing.Stream, sys.stdin.buffer)
        lines = producing.split(stdin, _unescaped(delimiter))
    records = producing.records_of_json if json_lines else producing.records_of_lines
    sent = producing.Sent()
    try:
        with cluster.producer(acks=acks, compression_type=compression) as producer:
            producing.send_all(producer, topic, records(lines, rules), sent)
    finally:
        if output is Output.TABLE:
            typer.echo(
                f"klamm: {several(sent.records, 'record')} to {topic}, {size_text(sent.bytes)}", err=True
            )
    if output is not Output.TABLE:
        write_values(
            [
                {
                    "topic": topic,
                    "records": sent.records,
                    "bytes": sent.bytes,
                    "last_offsets": {str(each): offset for each, offset in sorted(sent.last_offsets.items())},
                }
            ],
            output,
        )


@app.command()
@with_cluster
def consume(
    cluster: Cluster,
    topics: Annotated[list[str], typer.Argument(help="Topics.", autocompletion=topic_names)],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="start, end, an offset 5, the last -10 of each partition, offsets 5:9 (without 9), a time "
            "@2026-01-01T10:00 or @-1h, or a part @…:@….",
            show_default="start",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="%t topic, %p partition, %o offset, %k key, %v value, %T time in ms, %d ISO time, "
            "%h headers, %K and %V lengths.",
            show_default="%v",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--num", "-n", min=1, help="So many records at most.")] = None,
    exits_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="Stop at the present end, and do not wait for more.")
    ] = False,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this group, which commits what was read."),
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="Only these records: 'customer.city = \"Bern\" and amount > 100', 'key = 42', "
            "'header trace = 7', or a text.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read records, and go on with new ones until Ctrl-C. A range such as 5:9, --exit and --num end by
    themselves."""
    from klamm.cli.records import consuming
    from klamm.cli.records.formats import DEFAULT_FORMAT, renderer
    from klamm.cli.records.writing import write_as
    from klamm.operating.ranges import Bound, Kind, parse_range, present
    from klamm.operating.records.spans import chosen_partitions, spans_of

    if format_ is not None and output is not Output.TABLE:
        raise CommandError("--format and --output cannot be combined", advice="Give one of them")
    now = present()
    range_ = None if from_ is None else parse_range(from_, now)
    render = renderer(format_ or DEFAULT_FORMAT)
    passing = consuming.passing(filter_)
    if group is not None:
        if partition or exits_at_end:
            raise CommandError("a group shares out partitions by itself and has no end: leave out -p and -e")
        start = consuming.start_of_group(range_, now)
        with cluster.consumer(group=group, topics=topics, start=start or "earliest") as consumer:
            write_as(output, render, consuming.first_of(passing(consuming.read_as_member(consumer)), count))
        return
    wanted = range_ or parse_range("start", now)
    if exits_at_end and wanted.last is None:
        wanted = wanted._replace(last=Bound(Kind.END))

    async def chosen_spans(admin: AsyncAdmin) -> dict[TopicPartition, Span]:
        chosen = await chosen_partitions(admin, topics, partition)
        found = await spans_of(admin, chosen, wanted)
        if offline := [each for each in chosen if each not in found]:
            raise CommandError(
                f"{offline[0]} has no leader: its records cannot be read",
                advice="Leave it out with --partition, or start a broker that has its replica",
            )
        return found

    spans = cluster.run(chosen_spans)
    with cluster.consumer() as consumer:
        write_as(output, render, consuming.first_of(passing(consuming.read_spans(consumer, spans)), count))


# ---- what the commands share


def _described(admin: Admin, wanted: list[str] | None, with_internal: bool) -> list[TopicDescription]:
    from klamm.cli.naming import chosen_names

    if wanted:
        names = chosen_names(wanted, admin.list_topics(include_internal=True), "topic")
        return list(admin.describe_topics(names).values())
    found = admin.describe_topics(None)
    return [found[name] for name in sorted(found) if with_internal or not found[name].internal]


Sizes = dict[tuple[str, int, int], int]
"""The size of each replica in bytes, by topic, partition and broker."""


def _sizes(admin: Admin) -> Sizes | None:
    """None if the brokers do not say: not everybody may ask for log directories."""
    from klamm.client.errors import ClientError

    try:
        found = admin.describe_log_dirs()
    except ClientError:
        return None
    return {
        (partition.topic, partition.partition, broker): replica.size_bytes
        for broker, directories in found.items()
        for directory in directories
        for partition, replica in directory.replicas.items()
        if not replica.future
    }


def _summary(topic: TopicDescription, sizes: Sizes | None) -> dict[str, Any]:
    """The size is that of one replica of each partition, the leader's."""
    partitions = topic.partitions
    return {
        "topic": topic.name,
        "partitions": len(partitions),
        "replicas": max((len(each.replicas) for each in partitions), default=0),
        "size_bytes": None
        if sizes is None
        else sum(sizes.get((topic.name, each.partition, each.leader or -1), 0) for each in partitions),
        "offline": [each.partition for each in partitions if each.leader is None],
        "under_replicated": [
            each.partition for each in partitions if len(each.in_sync_replicas) < len(each.replicas)
        ],
    }


def _health(summary: dict[str, Any]) -> str:
    words = []
    if summary["offline"]:
        words.append(f"{len(summary['offline'])} offline")
    if summary["under_replicated"]:
        words.append(f"{len(summary['under_replicated'])} under-replicated")
    return ", ".join(words)


def _partition(topic: str, each: Any, ends: dict[Any, Any], sizes: Sizes | None) -> dict[str, Any]:
    end = ends.get((topic, each.partition))
    return {
        "partition": each.partition,
        "leader": each.leader,
        "leader_epoch": each.leader_epoch,
        "replicas": list(each.replicas),
        "in_sync": list(each.in_sync_replicas),
        "first_offset": None if end is None else end.first,
        "end_offset": None if end is None else end.last,
        "size_bytes": None if sizes is None else sizes.get((topic, each.partition, each.leader or -1)),
    }


def _show(value: dict[str, Any], *, is_first: bool) -> None:
    from klamm.cli.showing import console, write_rows
    from klamm.operating.units import count_text, several, size_text

    out = console()
    if not is_first:
        out.print()
    partitions = value["partitions"]
    facts = [
        several(len(partitions), "partition"),
        several(value["replicas"], "replica"),
        size_text(value["size_bytes"]),
        f"id {value['id']}",
    ]
    if value["internal"]:
        facts.append("internal")
    out.print(f"[bold]{value['topic']}[/bold]: {', '.join(facts)}")
    for key, setting in sorted(value["config"].items()):
        out.print(f"  {key} = {setting}", markup=False)
    out.print()
    rows = []
    for each in partitions:
        state = "offline" if each["leader"] is None else ""
        if not state and len(each["in_sync"]) < len(each["replicas"]):
            state = "under-replicated"
        known = each["end_offset"] is not None
        rows.append(
            (
                each["partition"],
                each["leader"],
                each["leader_epoch"],
                ",".join(map(str, each["replicas"])),
                ",".join(map(str, each["in_sync"])),
                count_text(each["first_offset"]),
                count_text(each["end_offset"]),
                count_text(each["end_offset"] - each["first_offset"] if known else None),
                size_text(each["size_bytes"]),
                state,
            )
        )
    columns = ("partition", "leader", "epoch", "replicas", "in sync", "first", "end", "offsets", "size", "")
    write_rows(columns, rows, Output.TABLE)


def _tell_more_partitions(topics: list[TopicDescription], partitions: int) -> None:
    for each in topics:
        have = len(each.partitions)
        if partitions <= have:
            raise CommandError(
                f"{each.name} has {have} partitions: a topic can only get more",
                advice="To have fewer, create a topic and copy the records",
            )
        typer.echo(f"{each.name}: {have} partitions become {partitions}", err=True)


def _unescaped(text: str) -> bytes:
    r"""\n, \t and \0 as the bytes that they stand for."""
    return text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r").replace("\\0", "\0").encode()
