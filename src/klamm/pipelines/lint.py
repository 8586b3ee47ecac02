"""Checks a project for mistakes without running it, and without Spark.

    imports, decorators, names      whatever keeps the files from being imported (discovery.py)
    the graph                       unknown inputs, circles, unused functions (graph.py)
    sources                         schemas, options and starts that do not parse, conditions with unknown
                                    columns
    tables that are read            tables that nobody writes, or whose rows change; circles
    sinks                           modes that a sink does not support, two pipelines with one table, a topic
                                    that a pipeline both writes and reads
    topics                          missing topics; if no broker answers, that is one warning
    records                         the newest records that do not fit the schema, and unknown fields

`deep` also starts Spark and lets it analyse every pipeline: see lint_deep.py. Nothing is changed: no topic is
created, no schema written, no offset committed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from klamm.pipelines import graph
from klamm.pipelines.conditions import columns_named
from klamm.pipelines.definitions import (
    CARRIED,
    INFER,
    Definitions,
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    Source,
    TableSink,
    TableSource,
    TopicSink,
)
from klamm.pipelines.discovery import Discovery, discover
from klamm.pipelines.errors import GraphError, PipelineError, Place
from klamm.pipelines.findings import Finding, finding_of, in_order
from klamm.pipelines.lineage import writers_first
from klamm.pipelines.lint_records import Sampled, check_records
from klamm.pipelines.locations import overlap, table_location
from klamm.pipelines.project import PROJECT_FILE, Project
from klamm.pipelines.sampling import existing_topics
from klamm.pipelines.schemas.resolving import schema_file, schema_of
from klamm.pipelines.sinks.kinds import check_mode, place_of_table
from klamm.pipelines.starts import parse_point
from klamm.pipelines.table_sources import source_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# Kafka's rule for the names of topics.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check(
    project: Project,
    *,
    records: bool = True,
    deep: bool = False,
    spark: SparkSession | None = None,
    found: Discovery | None = None,
    sampled: Sampled | None = None,
) -> list[Finding]:
    """All findings, ordered by file and line. Without `records` no broker is contacted. `found` is what was
    imported already. `sampled` has the newest records of topics; without it they are read."""
    found = discover(project) if found is None else found
    definitions = found.definitions
    top = Place(project.root / PROJECT_FILE, 1)
    findings = [finding_of(problem, top) for problem in found.problems]
    findings += [finding_of(problem, top) for problem in graph.problems(definitions.nodes)]
    findings += _unused(definitions, top)
    schemas: dict[str, StructType] = {}
    for source in definitions.sources.values():
        findings += _check_source(project, source, schemas)
    findings += _check_sinks(project, definitions)
    findings += _check_tables_read(project, definitions)
    if records:
        findings += _check_topics(project, definitions, schemas, top, sampled)
    if deep and any(one.severity == "error" for one in findings):
        findings.append(Finding("warning", top, "the plans were not checked", "Fix the errors first"))
    elif deep:
        from klamm.pipelines.lint_deep import check_plans

        findings += check_plans(project, definitions, spark)
    return in_order(findings)


def _unused(definitions: Definitions, top: Place) -> Iterator[Finding]:
    if definitions.nodes and not definitions.pipelines:
        advice = "Write a function under @pipeline that takes one of the transforms or sources"
        yield Finding("warning", top, "the project has no pipeline, so nothing runs", advice)
        return
    for node in graph.unused(definitions.nodes):
        what = f"no pipeline uses the {node.kind} {node.name}"
        yield Finding("warning", node.place, what, "Use it, or remove it")


def _check_source(project: Project, source: Source, schemas: dict[str, StructType]) -> Iterator[Finding]:
    for topic in source.topics:
        if not _TOPIC_NAME.fullmatch(topic):
            advice = "Use letters, digits, '.', '_' and '-'; for several topics give a list"
            yield Finding("error", source.place, f"{topic!r} is not a valid topic name", advice)
        if topic == project.dead_letters:
            yield Finding(
                "error",
                source.place,
                f"{source.name} reads {topic}, to which its own dead-letter records go, in a circle",
                "Set dead_letters in klamm.toml to another topic",
            )
    try:
        parse_point(source.start)
    except PipelineError as error:
        yield Finding("error", source.place, f"start of {source.name}: {error.message}", error.advice)
    yield from _check_read_options(source)
    file = schema_file(project, source)
    if source.schema == INFER and file is not None and not file.exists():
        yield Finding(
            "warning",
            source.place,
            f"the schema of {source.name} is not inferred yet",
            f"The first run or preview writes {file.name} to the schemas folder: review it, and commit it",
        )
        return
    try:
        schemas[source.name] = schema_of(project, source)
    except PipelineError as error:
        yield finding_of(error, source.place)
        return
    yield from _check_conditions(source, schemas[source.name])


def _check_read_options(source: Source) -> Iterator[Finding]:
    from pyspark_klamm.errors import OptionError
    from pyspark_klamm.options import parse_read_options

    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": ",".join(source.topics), **source.read}
    try:
        parse_read_options(given, is_stream=True)
    except (OptionError, ValueError) as error:
        yield Finding("error", source.place, f"read of {source.name}: {error}", "Correct the option")


def _check_conditions(source: Source, schema: StructType) -> Iterator[Finding]:
    """Only for sources, whose columns are known from the schema; what functions return is not known."""
    known = {name.lower() for name in (*schema.names, *CARRIED)}
    for rule in source.expectations:
        for name in columns_named(rule.condition):
            if name.lower() not in known:
                nearest = difflib.get_close_matches(name, [*schema.names, *CARRIED], n=1)
                advice = (
                    f"Did you mean {nearest[0]}?" if nearest else f"The columns are {', '.join(schema.names)}"
                )
                what = f"the expectation {rule.name!r} names {name}, which is not a column of {source.name}"
                yield Finding("error", rule.place, what, advice)


def _check_sinks(project: Project, definitions: Definitions) -> Iterator[Finding]:
    taken: dict[str, Pipeline] = {}
    for pipeline in definitions.pipelines.values():
        sink = pipeline.to
        try:
            check_mode(pipeline)
        except PipelineError as error:
            yield finding_of(error, pipeline.place)
        if isinstance(sink, TopicSink):
            yield from _check_topic_sink(project, definitions, pipeline, sink)
            continue
        target = _target(sink)
        place = target
        if not isinstance(sink, JdbcSink):
            place = place_of_table(project, sink)
        if isinstance(sink, IcebergSink):
            yield from _check_catalog(project, pipeline, sink)
        other = next((taken[each] for each in taken if overlap(each, place)), None)
        taken.setdefault(place, pipeline)
        if other is not None:
            what = f"{pipeline.name} writes to {target}, as does {other.name} at {other.place}"
            yield Finding("error", pipeline.place, what, "Give each pipeline a table of its own")


def _check_tables_read(project: Project, definitions: Definitions) -> Iterator[Finding]:
    try:
        writers_first(project, definitions, list(definitions.pipelines.values()))
    except PipelineError as error:
        yield finding_of(error, Place(project.root / PROJECT_FILE, 1))
    writers = {
        table_location(project.tables, pipeline.to.table): pipeline
        for pipeline in definitions.pipelines.values()
        if isinstance(pipeline.to, TableSink)
    }
    for source in definitions.table_sources.values():
        writer = writers.get(table_location(project.tables, source.table))
        if writer is None:
            yield from _check_foreign_table(project, source)
        elif writer.mode != "append" and not source.is_snapshot and not source.skips_changes:
            what = f"rows of the table {source.table} change ({writer.name} has the mode {writer.mode!r})"
            advice = "Read it with snapshot=True: a stream has new rows only"
            yield Finding("error", source.place, f"{what}, but {source.name} reads it as a stream", advice)


def _check_foreign_table(project: Project, source: TableSource) -> Iterator[Finding]:
    """A table that no pipeline of the project writes must exist."""
    advice = "Correct its name, or write it first"
    try:
        if not source_table(project, source).is_there():
            what = f"there is no table {source.table}, and no pipeline of the project writes it"
            yield Finding("warning", source.place, what, advice)
    except Exception as error:  # whatever its store says
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield Finding("warning", source.place, f"the table {source.table} cannot be read: {first}", advice)


def _check_catalog(project: Project, pipeline: Pipeline, sink: IcebergSink) -> Iterator[Finding]:
    """The catalog must be configured: here, or where pyiceberg looks itself."""
    try:
        from pyiceberg.utils.config import Config
    except ModuleNotFoundError:
        what = f"{pipeline.name} writes an Iceberg table, which needs pyiceberg"
        yield Finding("error", pipeline.place, what, "pip install 'klamm[iceberg]'")
        return
    if sink.catalog not in project.iceberg and Config().get_catalog_config(sink.catalog) is None:
        what = f"the catalog {sink.catalog} of the table {sink.table} is not configured"
        advice = f"Set type, uri and warehouse under [iceberg.{sink.catalog}] in klamm.toml"
        yield Finding("error", pipeline.place, what, advice)


def _target(sink: TableSink | ParquetSink | IcebergSink | JdbcSink) -> str:
    if isinstance(sink, JdbcSink):
        return f"the table {sink.table} at {sink.url}"
    return f"the table {sink.table}"


def _check_topic_sink(
    project: Project, definitions: Definitions, pipeline: Pipeline, sink: TopicSink
) -> Iterator[Finding]:
    if not _TOPIC_NAME.fullmatch(sink.topic):
        yield Finding("error", pipeline.place, f"{sink.topic!r} is not a valid topic name", "Rename it")
    try:
        sources = graph.sources_of(pipeline.name, definitions.nodes)
    except GraphError:
        return  # reported already
    for source in sources:
        if sink.topic in source.topics:
            what = f"{pipeline.name} writes to {sink.topic}, which it also reads, through {source.name}"
            yield Finding("error", pipeline.place, what, "Write to another topic")
    if sink.topic == project.dead_letters:
        what = f"{pipeline.name} writes to {sink.topic}, which is the dead-letter topic"
        yield Finding("error", pipeline.place, what, "Write to another topic")


def _check_topics(
    project: Project,
    definitions: Definitions,
    schemas: dict[str, StructType],
    top: Place,
    sampled: Sampled | None,
) -> Iterator[Finding]:
    try:
        topics = existing_topics(project)
    except PipelineError as error:
        advice = "Start the broker, or correct bootstrap; topics and records were not checked"
        yield Finding("warning", top, error.message, advice)
        return
    for source in definitions.sources.values():
        missing = [topic for topic in source.topics if topic not in topics]
        for topic in missing:
            nearest = difflib.get_close_matches(topic, topics, n=1)
            advice = f"Did you mean {nearest[0]}?" if nearest else "Create it, or correct its name"
            yield Finding("error", source.place, f"there is no topic {topic}", advice)
        if not missing and source.name in schemas:
            yield from check_records(project, source, schemas[source.name], sampled)
    for pipeline in definitions.pipelines.values():
        if isinstance(pipeline.to, TopicSink) and pipeline.to.topic not in topics:
            what = f"there is no topic {pipeline.to.topic} yet"
            advice = "Create it, or the broker may create it with its default number of partitions"
            yield Finding("warning", pipeline.place, what, advice)
