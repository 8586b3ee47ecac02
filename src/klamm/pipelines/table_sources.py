"""Tables that pipelines read: where they are, where a stream begins, and their rows as DataFrames.

A table's name means what it means in `table("orders")`. A stream gets each version's new rows once
(`tables/appended.py`), a snapshot all rows of the newest version, in every batch anew (`Snapshots`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from klamm.pipelines.definitions import COORDINATES, Source, TableSource
from klamm.pipelines.locations import table_location
from klamm.pipelines.positions import TABLE_KEYS, Position, completed, table_key
from klamm.pipelines.project import Project
from klamm.pipelines.starts import Point, resolve
from klamm.pipelines.tables.appended import TableLog, existing
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.written import WrittenTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def source_table(project: Project, source: TableSource) -> Table:
    """The table that a source reads, which need not exist yet."""
    return Table(table_location(project.tables, source.table), project.storage)


def missing_tables(project: Project, sources: list[TableSource]) -> list[TableSource]:
    """The sources whose tables do not exist."""
    return [source for source in sources if not source_table(project, source).is_there()]


# ---- positions


def resolve_start(project: Project, source: Source | TableSource, point: Point | None = None) -> Position:
    """Where a source begins: at the point, or at its own `start`."""
    if isinstance(source, Source):
        return resolve(project, source.topics, source.start if point is None else point)
    start = source.start if point is None else str(point)
    return TableLog(source_table(project, source)).first_place(start).to_position(table_key(source.table))


def present_start(project: Project, source: Source | TableSource, known: Position | None) -> Position:
    """Where a source begins that is known to begin there, for all partitions that exist now."""
    if known is None or (isinstance(source, TableSource) and table_key(source.table) not in known):
        return resolve_start(project, source)
    if isinstance(source, TableSource):
        return known
    there = resolve(project, source.topics, "earliest")
    return completed(known, {topic: sorted(map(int, numbers)) for topic, numbers in there.items()})


def start_after(
    project: Project, source: Source | TableSource, written: WrittenTable, owner: str
) -> Position:
    """Where a source goes on after what its pipeline has committed to the table `written`."""
    if isinstance(source, Source):
        there = resolve(project, source.topics, "earliest")
        known = written.offsets(owner, {topic: list(numbers) for topic, numbers in there.items()})
        return completed(known, {topic: list(map(int, numbers)) for topic, numbers in there.items()})
    key = table_key(source.table)
    known = written.offsets(owner, {key: TABLE_KEYS})
    return known if len(known.get(key, {})) == len(TABLE_KEYS) else resolve_start(project, source)


# ---- rows


def table_rows(
    project: Project,
    source: TableSource,
    spark: SparkSession,
    *,
    streaming: bool,
    start: Position | None = None,
    last: int | None = None,
    version: int | None = None,
    is_empty: bool = False,
) -> DataFrame:
    """The rows of a source. `last` reads that many of the newest rows of a table that is read as a stream.
    Without `streaming`, they are those of a `version`, or of the newest one. With `is_empty` it has no rows:
    a redrive brings records of topics alone."""
    from klamm.pipelines.tables.source import FORMAT, STORAGE, TableDataSource, spark_schema

    table = source_table(project, source)
    schema = spark_schema(table, version)
    if is_empty and not source.is_snapshot:
        return spark.createDataFrame([], schema)
    spark.dataSource.register(TableDataSource)
    options = {
        "location": table.location,
        "key": table_key(source.table),
        STORAGE: json.dumps(table.options),
        **source.read,
    }
    is_stream = streaming and not source.is_snapshot
    if is_stream:
        options["start"] = json.dumps(resolve_start(project, source) if start is None else start)
    elif last is not None and not source.is_snapshot:
        options["last"] = str(last)
    if version is not None:
        options["version"] = str(version)
    reader: Any = spark.readStream if is_stream else spark.read
    rows: DataFrame = reader.format(FORMAT).schema(schema).options(**options).load()
    # Of joined rows, the coordinates of the stream count: those of a snapshot would be a second pair.
    return rows.drop(*COORDINATES) if source.is_snapshot else rows


class PinnedTables:
    """Tables of which each is read at one version: the newest one when it is read first."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._versions: dict[str, int] = {}

    def rows(self, source: TableSource, spark: SparkSession, last: int) -> DataFrame:
        """The rows of a snapshot, or the `last` ones of a stream."""
        table = source_table(self._project, source)
        if table.location not in self._versions:
            self._versions[table.location] = existing(table).version()
        version = self._versions[table.location]
        return table_rows(self._project, source, spark, streaming=False, last=last, version=version)


# ---- snapshots of a running query


class Snapshots:
    """The snapshots that a streaming query reads: each batch gets their newest versions.

    Spark plans every batch anew, but asks a Python data source only once which files it has, and keeps the
    answer. It is made to forget the answer while a batch is written: the next batch is planned later.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._sources = _snapshots_in_plan(frame)
        self._forget()  # the user's functions may have looked at the rows

    def __bool__(self) -> bool:
        return bool(self._sources)

    def renewed_by(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """A function for `foreachBatch` that writes a batch, and has the next one get the newest versions."""
        if not self._sources:
            return write

        def write_and_forget(batch: DataFrame, number: int) -> None:
            self._forget()
            write(batch, number)

        return write_and_forget

    def _forget(self) -> None:
        for source in self._sources:
            source.setReadInfo(None)


def _snapshots_in_plan(frame: DataFrame) -> list[Any]:
    """Spark's objects (PythonDataSourceV2) for the tables that a query reads, but not as streams."""
    from klamm.pipelines.tables.source import FORMAT

    found = []
    plan = frame._jdf.queryExecution().analyzed()
    for part in (plan, *_each(plan.subqueriesAll())):
        for leaf in _each(part.collectLeaves()):
            if leaf.getClass().getSimpleName() == "DataSourceV2Relation" and leaf.table().name() == FORMAT:
                field = leaf.table().getClass().getDeclaredField("ds")
                field.setAccessible(True)
                found.append(field.get(leaf.table()))
    return found


def _each(sequence: Any) -> Iterator[Any]:
    """What a sequence of Scala has."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
