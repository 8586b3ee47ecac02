"""The outline of a project: what each pipeline reads and writes, and what it expects of rows. A core.

An outline is plain values, so that a process that must not run the code of users can have it from another
one (`klamm pipeline graph -o json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from klamm.pipelines.definitions import (
    DECODE_RULE,
    Definitions,
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    Source,
    TableSink,
    TopicSink,
)
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.graph import order
from klamm.pipelines.lineage import tables_read
from klamm.pipelines.locations import table_location
from klamm.pipelines.progress import rule_name
from klamm.pipelines.project import Project

TABLE, PARQUET, ICEBERG, JDBC, TOPIC = "table", "parquet", "iceberg", "jdbc", "topic"
"""The kinds of sinks. A table is a Delta table."""


@dataclass(frozen=True)
class TableRead:
    """A table that a pipeline reads. `writer` is the pipeline of the project that writes it, or ""."""

    name: str
    location: str
    writer: str = ""


@dataclass(frozen=True)
class Rule:
    """What a pipeline expects of rows. `name` is that of counts, `<node>: <rule>`; `otherwise` says what
    happens to rows for which `condition` does not hold."""

    name: str
    condition: str
    otherwise: str


@dataclass(frozen=True)
class PipelineOutline:
    """One pipeline. `location` is where its rows are, if it writes files."""

    name: str
    group: str
    file: str
    line: int
    topics: tuple[str, ...]
    tables: tuple[TableRead, ...]
    sink: str
    target: str
    location: str = ""
    mode: str = "append"
    trigger: str = ""
    rules: tuple[Rule, ...] = ()

    @property
    def writes_dead_letters(self) -> bool:
        return any(rule.otherwise == "dead_letter" for rule in self.rules)


@dataclass(frozen=True)
class Outline:
    """All pipelines of a project, and the errors in its files, in words."""

    project: str
    dead_letters: str
    pipelines: tuple[PipelineOutline, ...]
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outline:
        """Raises KeyError, TypeError or ValueError for what is not an outline."""
        return cls(
            str(value["project"]),
            str(value["dead_letters"]),
            tuple(_pipeline_of_json(each) for each in value["pipelines"]),
            tuple(str(each) for each in value["problems"]),
        )


def outline(project: Project, definitions: Definitions, problems: Sequence[PipelineError] = ()) -> Outline:
    """The outline of a project, as far as its files can be imported."""
    found: list[PipelineOutline] = []
    told = [str(each) for each in problems]
    for pipeline in definitions.pipelines.values():
        try:
            found.append(_pipeline(project, definitions, pipeline))
        except PipelineError as error:
            told.append(str(error))
    return Outline(project.name, project.dead_letters, tuple(found), tuple(told))


def _pipeline(project: Project, definitions: Definitions, pipeline: Pipeline) -> PipelineOutline:
    nodes = order(pipeline.name, definitions.nodes)
    topics = dict.fromkeys(topic for node in nodes if isinstance(node, Source) for topic in node.topics)
    rules: list[Rule] = []
    for node in nodes:
        if isinstance(node, Source):
            rules.append(Rule(rule_name(node.name, DECODE_RULE), "", node.undecodable))
        rules += [
            Rule(rule_name(node.name, each.name), each.condition, each.otherwise)
            for each in node.expectations
        ]
    sink, target, location = _sink(project, pipeline)
    return PipelineOutline(
        pipeline.name,
        project.group_of(pipeline.name),
        str(pipeline.place.file),
        pipeline.place.line,
        tuple(topics),
        tuple(
            TableRead(each.table, each.location, each.writer.name if each.writer else "")
            for each in tables_read(project, definitions, pipeline)
        ),
        sink,
        target,
        location,
        pipeline.mode,
        pipeline.trigger or "",
        tuple(rules),
    )


def _sink(project: Project, pipeline: Pipeline) -> tuple[str, str, str]:
    """The kind of a sink, its name, and where its files are."""
    match pipeline.to:
        case TableSink(table=table):
            return TABLE, table, table_location(project.tables, table)
        case ParquetSink(table=table):
            return PARQUET, table, table_location(project.tables, table)
        case IcebergSink(table=table):
            return ICEBERG, table, ""
        case JdbcSink(table=table):
            return JDBC, table, ""
        case TopicSink(topic=topic):
            return TOPIC, topic, ""


def _pipeline_of_json(value: Mapping[str, Any]) -> PipelineOutline:
    return PipelineOutline(
        **{
            **value,
            "topics": tuple(value["topics"]),
            "tables": tuple(TableRead(**each) for each in value["tables"]),
            "rules": tuple(Rule(**each) for each in value["rules"]),
        }
    )
