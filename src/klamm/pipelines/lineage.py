"""Which pipeline writes the tables that others read, and the order that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from klamm.pipelines.definitions import Definitions, Pipeline, TableSink
from klamm.pipelines.errors import DefinitionError, GraphError
from klamm.pipelines.graph import table_sources_of
from klamm.pipelines.locations import table_location
from klamm.pipelines.project import Project


class Read(NamedTuple):
    """A table that a pipeline reads. `writer` is the pipeline of the project that writes it, if one does."""

    table: str
    location: str
    writer: Pipeline | None


def tables_read(project: Project, definitions: Definitions, pipeline: Pipeline) -> list[Read]:
    """The tables that a pipeline reads, as streams and as snapshots."""
    writers = {
        table_location(project.tables, each.to.table): each
        for each in definitions.pipelines.values()
        if isinstance(each.to, TableSink)
    }
    try:
        sources = table_sources_of(pipeline.name, definitions.nodes)
    except GraphError:
        return []  # reported when the pipeline is started
    locations = {table_location(project.tables, source.table): source.table for source in sources}
    return [Read(table, location, writers.get(location)) for location, table in locations.items()]


def writers_first(
    project: Project, definitions: Definitions, pipelines: Sequence[Pipeline]
) -> list[Pipeline]:
    """The pipelines, each after those whose tables it reads; else in the given order. Raises DefinitionError
    if a pipeline reads, directly or through others, the table that it writes."""
    ordered: dict[str, Pipeline] = {}
    for pipeline in pipelines:
        _visit(project, definitions, pipeline, (), ordered)
    chosen = {pipeline.name for pipeline in pipelines}
    return [pipeline for name, pipeline in ordered.items() if name in chosen]


def _visit(
    project: Project,
    definitions: Definitions,
    pipeline: Pipeline,
    way: tuple[str, ...],
    ordered: dict[str, Pipeline],
) -> None:
    if pipeline.name in way:
        circle = [*way[way.index(pipeline.name) :], pipeline.name]
        raise DefinitionError(
            f"these pipelines read each other's tables in a circle: {' → '.join(circle)}",
            advice="Let one of them read another table",
            place=pipeline.place,
        )
    if pipeline.name in ordered:
        return
    for read in tables_read(project, definitions, pipeline):
        if read.writer is not None:
            _visit(project, definitions, read.writer, (*way, pipeline.name), ordered)
    ordered[pipeline.name] = pipeline
