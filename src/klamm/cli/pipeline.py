"""`klamm pipeline …`: create a project, check it, preview rows, run it, replay records.

Data goes to stdout, progress and errors to stderr. The exit status is 1 if the project, a pipeline or the
command's arguments are wrong. Only the commands that need Spark import it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.asking import DryRunOption, YesOption, confirmed
from klamm.cli.connecting import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, INTERRUPTED
from klamm.cli.logs import set_up_logging
from klamm.cli.output import Output, OutputOption
from klamm.cli.pipelines.questions import FAILED_DIFF

if TYPE_CHECKING:
    from klamm.cli.pipelines.questions import AnyQuestion
    from klamm.pipelines.progress import PipelineStatus
    from klamm.pipelines.project import Project

PACKAGES_OF_SPARK = ("pyspark", "py4j", "pyarrow", "numpy", "numba", "fastavro", "google", "deltalake")
"""Packages of the extra `spark`. If one of them cannot be imported, the extra is not installed."""

app = typer.Typer(
    help="Pipelines on Spark: from topics to tables and back.", no_args_is_help=True, add_completion=False
)

ProjectOption = Annotated[
    Path | None,
    typer.Option("--project", help="The project's folder.", show_default="the nearest with a klamm.toml"),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        help="Brokers to connect to first, host:port[,host:port].",
        show_default="as klamm.toml says",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Where Spark runs: local[*], spark://…, yarn, k8s://…",
        show_default="as klamm.toml says",
    ),
]


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The name of the project and of its folder.")],
    bootstrap: Annotated[
        str, typer.Option(envvar=BOOTSTRAP_VARIABLE, help="The brokers that the project reads from.")
    ] = DEFAULT_BOOTSTRAP,
    sample: Annotated[
        bool,
        typer.Option("--sample/--no-sample", help="Add a file of made-up orders to try the project with."),
    ] = True,
) -> None:
    """Create a project that works at once: a source, a table, an aggregate, and orders to try it with."""
    with complaints():
        from klamm.cli.pipelines.scaffold import SAMPLE_FILE, make_project

        made = make_project(Path(name), name=Path(name).name, bootstrap=bootstrap, with_sample=sample)
        for path in made:
            typer.echo(f"  {name}/{path}")
        elsewhere = "" if bootstrap == DEFAULT_BOOTSTRAP else f" --bootstrap {bootstrap}"
        typer.echo("\nNext:\n")
        typer.echo(f"  cd {name}")
        if bootstrap == DEFAULT_BOOTSTRAP:
            typer.echo("  klamm up                               # a broker, in another terminal")
        if sample:
            typer.echo(f"  klamm ingest replay {SAMPLE_FILE} --topic orders --key customer{elsewhere}")
        typer.echo("  klamm pipeline lint")
        typer.echo("  klamm pipeline preview clean_orders --last 5")
        typer.echo("  klamm pipeline run --once              # without --once it goes on until Ctrl-C")


@app.command()
def lint(
    deep: Annotated[
        bool, typer.Option("--deep", help="Start Spark and let it analyse the plan of every pipeline.")
    ] = False,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a project without running it: names, circular inputs, topics, schemas, records that do not
    fit."""
    with complaints():
        from klamm.cli.pipelines.questions import LintQuestion

        question = LintQuestion(output, deep)
        found = _load(project, bootstrap)
        _end_with(_asked(found, question) if deep else question.answer(found, None))


@app.command()
def graph(
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what each pipeline reads and writes, and how many rules its rows must keep. Imports the project's
    files; asks no broker. The exit status is 1 if there are errors in the files."""
    with complaints():
        from klamm.cli.pipelines.describing import graph_rows
        from klamm.cli.showing import write_json, write_rows
        from klamm.pipelines.discovery import discover
        from klamm.pipelines.outline import outline

        found = _load(project)
        with redirect_stdout(sys.stderr):  # what the project's files print while they are imported
            discovered = discover(found)
        told = outline(found, discovered.definitions, discovered.problems)
        if output is Output.TABLE:
            write_rows(
                ("reads", "pipeline", "writes", "rules", "refused rows go to"), graph_rows(told), output
            )
            for problem in told.problems:
                typer.echo(f"klamm: {problem}", err=True)
        else:
            write_json(told.to_json())
        _end_with(1 if told.problems else 0)


@app.command()
def preview(
    node: Annotated[str, typer.Argument(help="A source, a transform or a pipeline.")],
    last: Annotated[
        int, typer.Option(min=1, help="How many of the newest records of each source to read.")
    ] = 20,
    all_columns: Annotated[
        bool, typer.Option("--all", help="Also show the columns _topic, _partition, _offset and so on.")
    ] = False,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the rows that a function returns for the newest records. Writes nothing."""
    with complaints():
        from klamm.cli.pipelines.questions import PreviewQuestion

        question = PreviewQuestion(node, last, all_columns, output)
        _end_with(_asked(_load(project, bootstrap, master), question))


@app.command()
def diff(
    pipelines: Annotated[
        list[str] | None, typer.Argument(help="The pipelines to compare.", show_default="all of them")
    ] = None,
    base: Annotated[str, typer.Option(help="The git revision to compare with.")] = "HEAD",
    last: Annotated[
        int, typer.Option(min=1, help="How many of the newest records of each source to read.")
    ] = 1000,
    show: Annotated[
        int, typer.Option(min=0, help="How many rows of a pipeline to show; in JSON, of each kind.")
    ] = 20,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare what the code makes of the newest records with what the code of a git revision makes of them.
    Writes nothing. The exit status is 0 without differences, 1 with some, 2 after an error."""
    with complaints(FAILED_DIFF):
        from klamm.cli.pipelines.questions import DiffQuestion

        question = DiffQuestion(tuple(pipelines or ()), base, last, show, output)
        _end_with(_asked(_load(project, bootstrap, master), question))


@app.command()
def dev(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sources, transforms and pipelines to show after each save.", show_default="what changed"
        ),
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, help="How many of the newest records of each source to show.")
    ] = 20,
    compare: Annotated[
        int, typer.Option(min=1, help="How many of the newest records of each source to compare.")
    ] = 1000,
    show: Annotated[int, typer.Option(min=0, help="How many different rows of a pipeline to show.")] = 10,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    master: MasterOption = None,
) -> None:
    """Keep one Spark session while you write: after each save of a file show lint, the rows of what changed,
    and the differences to the last version that worked. Writes nothing. Other commands use its session."""
    with complaints():
        from klamm.cli.pipelines.finding import check_nodes

        found = _load(project, bootstrap, master)
        check_nodes(found, nodes or ())
        with _spark(found) as quiet:
            from klamm.cli.pipelines.dev.command import Dev, Options

            Dev(found, quiet, Options(tuple(nodes or ()), last, compare, show, bootstrap, master)).run()


@app.command()
def run(
    names: Annotated[
        list[str] | None, typer.Argument(help="The pipelines to run.", show_default="all of them")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read the records that are in the topics now, then end.")
    ] = False,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run pipelines in one Spark session, until Ctrl-C or, with --once, until they have caught up.

    A pipeline that fails is started again after growing pauses, [run] retries times; then the run ends with
    the exit status 1. With --once the others still finish.
    """
    with complaints():
        from klamm.cli.pipelines.watching import Watch
        from klamm.cli.showing import write_values

        found = _load(project, bootstrap, master)
        with _spark(found) as quiet:
            from klamm.pipelines.runner import run as run_pipelines

            with Watch(f"starting Spark on {quiet.master} …") as watch:
                ended = run_pipelines(quiet, once=once, names=names or None, on_status=watch.show)
                watch.show(ended)
        if output is not Output.TABLE:
            write_values([status.to_json() for status in ended], output)
        _tell_failures(found, ended)


@app.command()
def submit(
    names: Annotated[
        list[str] | None, typer.Argument(help="The pipelines to run.", show_default="all of them")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read the records that are in the topics now, then end.")
    ] = False,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A spark.* key; may be repeated.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--output", help="Write archives and submit.sh into this folder, and submit nothing."),
    ] = None,
    manifest: Annotated[
        str | None,
        typer.Option("--manifest", metavar="IMAGE", help="Print a manifest for Kubernetes instead."),
    ] = None,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    master: MasterOption = None,
) -> None:
    """Run pipelines on YARN or Kubernetes, with the driver there too, by spark-submit. Sends the project, and
    the packages of this environment unless klamm.toml says packages = "installed"."""
    with complaints():
        from klamm.cli.pipelines import submitting

        found = _load(project, bootstrap, master, without=submitting.SECRETS)
        settings = dict(_setting(text) for text in conf or ())
        if manifest is not None:
            submitting.print_manifest(found, manifest, names or (), once=once)
        else:
            submitting.submit(
                found, names or (), once=once, bootstrap=bootstrap, settings=settings, output=to
            )


@app.command()
def status(
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state of each pipeline. The exit status is 1 if one has failed or was killed."""
    with complaints():
        from klamm.cli.pipelines.showing import remarks, status_table
        from klamm.cli.showing import console, write_values
        from klamm.pipelines.status import read_status

        found = _load(project)
        statuses = read_status(found)
        if output is Output.TABLE:
            if statuses:
                console().print(status_table(statuses))
            else:
                typer.echo(f"klamm: no pipeline of {found.name} has run yet", err=True)
            for line in remarks(statuses):
                typer.echo(line)
        else:
            write_values([each.to_json() for each in statuses], output)
        if any(each.state in ("failed", "killed") for each in statuses):
            raise typer.Exit(1)


@app.command()
def replay(
    pipeline: Annotated[str, typer.Argument(help="The pipeline that is to read its records again.")],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POINT",
            help="earliest, a time (2026-01-31T12:00:00Z), an offset, or offsets as JSON.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="POINT",
            help="Only records before this point, while the pipeline runs: as --from, or latest, or start, "
            "where the pipeline began.",
            show_default="all records",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a pipeline read records again. Rows of a table are written beside it and replaced in one commit;
    for other sinks the next run reads the records. With --to only rows of these records are replaced, and the
    pipeline may be running."""
    with complaints():
        if to is not None:
            from klamm.cli.pipelines.replaying import replay_range

            with _spark(_load(project, bootstrap)) as quiet:
                replay_range(quiet, pipeline, from_, to, dry_run, partial(confirmed, yes, "Replay?"), output)
            return
        from klamm.cli.pipelines.describing import plan_lines, plan_value
        from klamm.cli.showing import write_json

        with _spark(_load(project, bootstrap)) as quiet:
            from klamm.pipelines import replay as replaying

            planned = replaying.plan(quiet, pipeline, from_)
            for line in plan_lines(planned):
                typer.echo(line, err=True)
            is_wanted = not dry_run and confirmed(yes, "Replay?")
            if is_wanted:
                rows = replaying.carry_out(quiet, planned)
        if output is not Output.TABLE:
            write_json(plan_value(planned, is_wanted))
        if is_wanted and rows is not None:
            typer.echo(
                f"The table has {rows:,} new rows; the next `klamm pipeline run` goes on from there.",
                err=True,
            )
        elif is_wanted:
            typer.echo(f"The next `klamm pipeline run` starts {pipeline} from there.", err=True)


@app.command()
def redrive(
    pipeline: Annotated[str | None, typer.Option(help="Only dead-letter records of this pipeline.")] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Only dead-letter records of this expectation; decode: values that could not be decoded."
        ),
    ] = None,
    to_topic: Annotated[
        bool,
        typer.Option("--to-topic", help="Send the records back to the topics they came from."),
    ] = False,
    for_all: Annotated[
        bool,
        typer.Option(
            "--for-all",
            help="With --to-topic: for all pipelines that read the topics, not only the one that failed.",
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring dead-letter records into the tables of their pipelines, or to their retry topics, each once,
    after their cause was fixed. With --to-topic, send them back to the topics they came from."""
    if for_all and not to_topic:
        raise _complaint("--for-all sends records to topics: give --to-topic too")
    with complaints():
        from klamm.cli.showing import write_json

        found = _load(project, bootstrap)
        if not to_topic:
            from klamm.cli.pipelines.redriving import redrive_pipelines

            with _spark(found) as quiet:
                values = redrive_pipelines(
                    quiet, pipeline, rule, dry_run, lambda: confirmed(yes, "Redrive them?")
                )
            if output is not Output.TABLE:
                write_json({"pipelines": values, "dry_run": dry_run})
            return
        from klamm.pipelines.redrive import redrive as send_back

        send = partial(send_back, found, pipeline=pipeline, rule=rule, for_all=for_all)
        done = send(dry_run=True)
        counts = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(done.sent.items()))
        typer.echo(f"dead-letter records in {found.dead_letters} to send back: {counts or 'none'}", err=True)
        if not done.total and not done.waiting and done.others:
            names = "; ".join(sorted(done.others))
            typer.echo(f"there are dead-letter records of other pipelines and rules: {names}", err=True)
        if done.total and not dry_run and confirmed(yes, "Send them back?"):
            done = send()
            typer.echo(f"{done.total:,} sent", err=True)
        if done.repeated:
            typer.echo(f"{done.repeated:,} more are duplicates, of the same original records", err=True)
        if done.of_rows:
            typer.echo(
                f"{done.of_rows:,} broke an expectation of a transform or pipeline: other rows of the same "
                "original record will be written again",
                err=True,
            )
        for reason, count in done.waiting.items():
            typer.echo(f"{count:,} are left for later: {reason}", err=True)
        for reason, count in done.kept.items():
            typer.echo(f"{count:,} cannot be sent back: {reason}", err=True)
        if output is not Output.TABLE:
            write_json({**done.to_json(), "dry_run": dry_run})


@app.command()
def schema(
    source: Annotated[str, typer.Argument(help="A source.")],
    update: Annotated[
        bool, typer.Option("--update", help="Add fields of newer records to the schema file.")
    ] = False,
    project: ProjectOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the columns of a source, or update its inferred schema from newer records."""
    with complaints():
        from klamm.cli.pipelines.describing import update_lines
        from klamm.cli.pipelines.finding import find_source
        from klamm.cli.showing import write_json, write_rows
        from klamm.pipelines.schemas import resolving

        found = _load(project, bootstrap)
        node = find_source(found, source)
        if update:
            for line in update_lines(resolving.update(found, node)):
                typer.echo(line, err=True)
        columns = resolving.schema_of(found, node)
        if output is Output.TABLE:
            rows = [(field.name, field.dataType.simpleString()) for field in columns]
            write_rows(("column", "type"), rows, output)
        else:
            write_json(columns.jsonValue())


# ---- what the commands share


def _load(
    folder: Path | None, bootstrap: str | None = None, master: str | None = None, without: Sequence[str] = ()
) -> Project:
    from klamm.cli.pipelines.finding import load_project

    return load_project(folder, bootstrap, master, without)


def _setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name.startswith("spark.") or not value:
        raise _complaint(f"{text!r} is not a setting of Spark: expected spark.…=…")
    return name, value


def _asked(project: Project, question: AnyQuestion) -> int:
    """Answer a question: by the session of `klamm pipeline dev`, or by one of our own. Returns the exit
    status."""
    from klamm.cli.pipelines.dev.asking import Refused, ask_dev

    try:
        answer = ask_dev(project, question)
    except Refused as refused:
        _waiting(f"klamm pipeline dev does not answer: {refused}")
        answer = None
    if answer is not None:
        answer.write()
        return answer.status
    with _spark(project) as quiet:
        _waiting(question.waiting)
        return question.answer(quiet, None)


def _end_with(status: int) -> None:
    if status:
        raise typer.Exit(status)


@contextmanager
def _spark(project: Project) -> Iterator[Project]:
    """The project with Spark's logs sent to a file. If Spark fails, prints where that file is."""
    from klamm.cli.pipelines.spark_logs import quiet_spark

    with naming_the_log(project), quiet_spark(project) as quiet:
        yield quiet


@contextmanager
def naming_the_log(project: Project) -> Iterator[None]:
    """If Spark fails, print where its log is."""
    from klamm.cli.pipelines.spark_logs import tell_log

    try:
        yield
    except Exception as error:
        if _is_of_spark(error):
            tell_log(project)
        raise


@contextmanager
def complaints(status: int = 1) -> Iterator[None]:
    """Turn errors into one line on stderr and an exit status."""
    set_up_logging()
    try:
        from klamm.pipelines.errors import PipelineError

        yield
    except PipelineError as error:
        raise _complaint(str(error), status) from None
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES_OF_SPARK:
            raise
        missing = f"pipelines need the package {error.name}: pip install 'klamm[spark]'"
        raise _complaint(missing, status) from None
    except KeyboardInterrupt:
        typer.echo("klamm: stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise _complaint(" ".join(str(error).split("\n\n")[0].split()), status) from None


def _complaint(text: str, status: int = 1) -> typer.Exit:
    typer.echo(f"klamm: {text}", err=True)
    return typer.Exit(status)


def _is_of_spark(error: BaseException) -> bool:
    """True for errors of Spark or its Python side. Goes by the module's name, as Spark may not be
    installed."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "pyspark_klamm")


def _waiting(text: str) -> None:
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def _tell_failures(project: Project, ended: list[PipelineStatus]) -> None:
    from klamm.cli.pipelines.showing import remarks
    from klamm.cli.pipelines.spark_logs import tell_log

    if not sys.stderr.isatty():  # on a terminal the live table shows them
        for line in remarks(ended):
            typer.echo(line, err=True)
    if any(status.state == "failed" for status in ended):
        tell_log(project)
        raise typer.Exit(1)
