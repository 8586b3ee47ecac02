"""`klamm ingest tail` and `klamm ingest replay`: files into topics. Progress and errors go to stderr."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.connecting import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from klamm.cli.logs import set_up_logging

if TYPE_CHECKING:
    from klamm.ingest.pacing import Pace
    from klamm.ingest.replay import Replay
    from klamm.ingest.session import TailSession
    from klamm.lineformats.format import LineFormat

app = typer.Typer(
    help="Bring files into a topic: follow logs, or send a file of records.",
    no_args_is_help=True,
    add_completion=False,
)

Topic = Annotated[str, typer.Option(help="The topic to send to.")]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        envvar=BOOTSTRAP_VARIABLE,
        help="Brokers to connect to first, host:port[,host:port].",
        show_default=f"those of the klamm.toml here or above, else {DEFAULT_BOOTSTRAP}",
    ),
]
Config = Annotated[Path | None, typer.Option(help="A properties or TOML file with settings of the producer.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting of the producer; may be repeated."),
]
Compression = Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")]


class Output(StrEnum):
    """How the summary is written: as a sentence to stderr, or also as JSON to stdout."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="json: the summary is also written to stdout, as JSON.")
]


class From(StrEnum):
    """Where to begin a file that has no position yet."""

    BEGINNING = "beginning"
    END = "end"


class Key(StrEnum):
    """The key of the records."""

    NONE = "none"
    PATH = "path"


class Parse(StrEnum):
    """The format of lines."""

    NGINX = "nginx"
    APACHE = "apache"
    REGEX = "regex"


class OnError(StrEnum):
    """What to do with a row that cannot be parsed."""

    STOP = "stop"
    SKIP = "skip"


class Types(StrEnum):
    """The types of a CSV file's fields."""

    STRINGS = "strings"
    INFER = "infer"


class Format(StrEnum):
    """The format of a file."""

    JSONL = "jsonl"
    CSV = "csv"


@app.command()
def tail(
    patterns: Annotated[list[str], typer.Argument(help="Files, or patterns in quotes: 'logs/**/*.log'.")],
    topic: Topic,
    bootstrap: Bootstrap = None,
    once: Annotated[bool, typer.Option("--once", help="Read to the end of the files, and stop.")] = False,
    from_: Annotated[
        From, typer.Option("--from", help="Where to begin files that exist at the first start.")
    ] = From.BEGINNING,
    key: Annotated[
        Key,
        typer.Option(help="path: the file's path is the key, so its lines go to one partition, in order."),
    ] = Key.NONE,
    state: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the positions.", show_default="by topic and patterns, below ~/.local/state"
        ),
    ] = None,
    multiline_start: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Lines that match begin a record; others continue it.")
    ] = None,
    max_lines: Annotated[int, typer.Option(min=1, help="The most lines of a multi-line record.")] = 500,
    flush_after: Annotated[
        float,
        typer.Option(min=0, help="Seconds without a new line after which a multi-line record is complete."),
    ] = 5.0,
    flush_partial_after: Annotated[
        float | None,
        typer.Option(min=0, help="The same for a last line without its newline.", show_default="wait for it"),
    ] = None,
    max_line_bytes: Annotated[int, typer.Option(help="Longer lines are cut, and counted.")] = 1_000_000,
    with_origin: Annotated[
        bool,
        typer.Option(
            "--with-origin", help="Add the headers klamm.file and klamm.file.offset to every record."
        ),
    ] = False,
    parse: Annotated[
        Parse | None,
        typer.Option(help="Send the fields of access logs, or the groups of --pattern, as JSON."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            help="The log_format of nginx, or LogFormat of Apache.",
            show_default="combined, of Apache also common",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="With --parse regex: a pattern of whole lines, with (?P<name>…)."),
    ] = None,
    release_after: Annotated[
        float, typer.Option(min=0, help="Seconds to watch a rotated file after its last line.")
    ] = 10.0,
    poll_interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds between two checks for new lines.")
    ] = 0.25,
    compression: Compression = "none",
    config: Config = None,
    set_: Set = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Follow files through rotation and truncation, and send each line once.

    Positions are kept on disk. After a crash, the next start asks the broker which lines it has, and sends
    the rest.
    """
    with _complaints():
        from klamm.ingest.lines import LineRules
        from klamm.ingest.session import TailSession
        from klamm.ingest.state_folder import default_folder
        from klamm.ingest.tail import TailOptions
        from klamm.node.limits import raise_descriptor_limit

        options = TailOptions(
            patterns=patterns,
            rules=LineRules(max_line_bytes, multiline_start, max_lines),
            starts_at_end=from_ is From.END,
            once=once,
            keyed=key is Key.PATH,
            with_origin=with_origin,
            parses=_line_format(parse, log_format, pattern),
            flush_after_s=flush_after,
            flush_partial_after_s=flush_partial_after,
            release_after_s=release_after,
            poll_interval_s=poll_interval,
        )
        raise_descriptor_limit()
        brokers, settings = _brokers(bootstrap)
        with TailSession(
            options,
            topic,
            brokers,
            state=state or default_folder(topic, patterns, os.environ),
            config=config,
            producer_options=settings | _producer_options(compression, set_),
            report=_report,
        ) as session:
            _run(session, output)
            if session.progress.lost_records or (once and session.unreadable):
                raise typer.Exit(1)


@app.command()
def replay(
    file: Annotated[
        str, typer.Argument(help="A file of JSON lines or CSV, also .gz or .zst; - reads stdin.")
    ],
    topic: Topic,
    bootstrap: Bootstrap = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="The format of the file.", show_default="by its name")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="COLUMN", help="The field to use as key.")] = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="COLUMN", help="The field with the time: ISO 8601, or s or ms since 1970."
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="Send this many records per second.")
    ] = None,
    speed: Annotated[
        str | None, typer.Option(metavar="2x", help="Send at the pace of --time, this many times as fast.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Send at most this many records.")] = None,
    on_error: Annotated[OnError, typer.Option(help="What to do with a bad line.")] = OnError.STOP,
    types: Annotated[
        Types, typer.Option(help="CSV: keep all fields as strings, or infer numbers, true, false and null.")
    ] = Types.STRINGS,
    delimiter: Annotated[
        str | None, typer.Option(help="CSV: the separator of fields.", show_default=",")
    ] = None,
    compression: Compression = "none",
    config: Config = None,
    set_: Set = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send the rows of a file to a topic, as fast as possible or at a pace. CSV rows become JSON objects."""
    with _complaints():
        from klamm.ingest.replay import Replay, ReplayOptions

        options = ReplayOptions(
            path=file,
            format=None if format_ is None else format_.value,
            key=key,
            time=time_,
            pace=_pace(rate, speed, time_),
            limit=limit,
            skips_bad_lines=on_error is OnError.SKIP,
            infers_types=types is Types.INFER,
            delimiter=delimiter,
        )
        brokers, settings = _brokers(bootstrap)
        settings |= _producer_options(compression, set_)
        with Replay(
            options, topic, brokers, config=config, producer_options=settings, report=_report
        ) as work:
            _run(work, output)


# ---- what both commands share


def _run(work: TailSession | Replay, output: Output) -> None:
    """Run the work, and print a summary at its end, also after an error."""
    from klamm.cli.working import run_work
    from klamm.ingest.progress import Rates, summary

    started = time.monotonic()
    rates = Rates(started)
    try:
        run_work(work, lambda: rates.line(work.progress, time.monotonic()))
    finally:
        seconds = time.monotonic() - started
        typer.echo(f"klamm: {summary(work.progress, seconds)}", err=True)
        if output is Output.JSON:
            typer.echo(json.dumps({**work.progress.as_dict(), "seconds": round(seconds, 3)}))


@contextmanager
def _complaints() -> Iterator[None]:
    """Turn errors into one line on stderr and exit status 1."""
    set_up_logging()
    try:
        from klamm.ingest.errors import IngestError

        yield
    except (IngestError, ImportError) as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None


def _report(text: str) -> None:
    from klamm.cli.working import say

    say(text)


def _brokers(bootstrap: str | None) -> tuple[str, dict[str, object]]:
    """The brokers and the settings of the producer: as given, or those of the project in this folder."""
    if bootstrap is not None:
        return bootstrap, {}
    from klamm.ingest.errors import IngestError
    from klamm.pipelines.errors import ProjectError
    from klamm.pipelines.project import Project, nearest_project

    folder = nearest_project(Path.cwd())
    if folder is None:
        return DEFAULT_BOOTSTRAP, {}
    try:
        project = Project.load(folder)
    except ProjectError as error:
        raise IngestError(str(error), advice="Or name the brokers with --bootstrap") from None
    return project.bootstrap, dict(project.client_settings("producer"))


def _producer_options(compression: str, settings: list[str] | None) -> dict[str, object]:
    from klamm.ingest.errors import IngestError

    options: dict[str, object] = {} if compression == "none" else {"compression.type": compression}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise IngestError(f"--set {setting} is not valid: expected KEY=VALUE")
        options[name.strip()] = value.strip()
    return options


def _line_format(parse: Parse | None, log_format: str | None, pattern: str | None) -> LineFormat | None:
    from klamm.ingest.errors import IngestError
    from klamm.lineformats.format import BadFormat

    is_log = parse in (Parse.NGINX, Parse.APACHE)
    if log_format is not None and not is_log:
        raise IngestError("--log-format needs a server", advice="Give --parse nginx or --parse apache too")
    if (pattern is not None) != (parse is Parse.REGEX):
        raise IngestError("--parse regex and --pattern need each other", advice="Give both, or none")
    try:
        if parse is Parse.NGINX:
            from klamm.lineformats.nginx import nginx_format

            return nginx_format(log_format or "combined")
        if parse is Parse.APACHE:
            from klamm.lineformats.apache import DEFAULT, apache_format

            return apache_format(log_format or DEFAULT)
        if pattern is not None:
            from klamm.lineformats.regex import regex_format

            return regex_format(pattern)
    except BadFormat as error:
        raise IngestError(error.message, advice=error.advice) from None
    return None


def _pace(rate: str | None, speed: str | None, time_column: str | None) -> Pace:
    from klamm.ingest.errors import IngestError
    from klamm.ingest.pacing import at_rate, at_speed, unpaced

    if rate is not None and speed is not None:
        raise IngestError("--rate and --speed cannot be combined", advice="Give one of them")
    if speed is not None and time_column is None:
        raise IngestError("--speed needs --time", advice="Name the field with the time of the records")
    if rate is not None:
        return at_rate(_positive("--rate", rate, rate.removesuffix("/s")))
    if speed is not None:
        return at_speed(_positive("--speed", speed, speed.removesuffix("x")))
    return unpaced


def _positive(option: str, given: str, number: str) -> float:
    from klamm.ingest.errors import IngestError

    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        example = "1000/s" if option == "--rate" else "2x"
        raise IngestError(f"{option} {given} is not a number above 0, such as {example}")
    return value
