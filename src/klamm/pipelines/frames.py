"""Builds the DataFrame of a node: reads and decodes its sources, checks expectations, calls the functions.

A running query (`streaming`) and a preview of the last records (`last`) are built the same way, but a preview
sends no dead-letter records and commits nothing. Exceptions of users' functions are raised as UserCodeError,
with their line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from klamm.pipelines.addressing import is_for
from klamm.pipelines.dead_letters import DeadLetters, Explain, make_topic
from klamm.pipelines.decoding import decode, unknown_fields
from klamm.pipelines.definitions import (
    CARRIED,
    CONTENTS,
    SESSION_PARAMETER,
    Definitions,
    Node,
    Pipeline,
    Source,
    TableSource,
)
from klamm.pipelines.discovery import importable
from klamm.pipelines.errors import DefinitionError, PipelineError, UserCodeError
from klamm.pipelines.expectations import check_decoded, check_returned
from klamm.pipelines.graph import order
from klamm.pipelines.positions import Position
from klamm.pipelines.project import Project
from klamm.pipelines.retry.topics import retry_topic
from klamm.pipelines.sampling import last_offsets
from klamm.pipelines.schemas.explaining import json_explainer
from klamm.pipelines.schemas.resolving import ensure_schema
from klamm.pipelines.state import Attempt
from klamm.pipelines.table_sources import table_rows

READ_FORMAT = "klamm"

STATE_STORE_KEY = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that transformWithState needs."""

_STATEFUL_NODE = "TransformWithState"

# Besides raising an exception, PySpark logs the plan and the stack of every analysis error to the terminal.
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def build(
    node: Node,
    definitions: Definitions,
    project: Project,
    spark: SparkSession,
    *,
    streaming: bool,
    last: int | None = None,
    starts: Mapping[str, Position] | None = None,
    stops: Mapping[str, Position] | None = None,
    attempt: Attempt | None = None,
    makes_topics: bool = True,
    records: Mapping[str, DataFrame] | None = None,
    explains: bool = False,
) -> DataFrame:
    """The DataFrame of a node. That of a pipeline lacks _key, _value and _headers, which do not go into
    sinks.

    `last` reads that many of the newest records of each source (without `streaming`). `starts` has the
    position at which each source begins; a source without one begins at the earliest record. `stops` has
    where the streams of a replay end, which commits nothing to the pipeline's group. `attempt` is the
    pipeline's present attempt, which decides which redriven records are skipped; without it none are.
    `makes_topics` creates the dead-letter topic if the node may need it. `records` has the records of each
    source, with the columns of the data source, not what is in the topics; dead-letter records are sent. It
    may have the rows of tables, too; without `explains` the others are empty.
    `explains` counts rows that break a rule together with an example of each (`rejections.py`), and sends no
    dead-letter records.
    """
    _send_code_by_value(definitions)
    for logger in _QUERY_LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    nodes = order(node.name, definitions.nodes)
    if streaming and makes_topics and any(_may_send(each) for each in nodes):
        make_topic(project)
    places = _Places(starts or {}, stops or {})
    builder = _Builder(node, nodes, project, spark, streaming, last, places, attempt, records, explains)
    frame = builder.build(nodes)
    if isinstance(node, Pipeline):
        frame = frame.drop(*CONTENTS)
    if streaming:
        _use_rocksdb_if_needed(frame, spark)
    return frame


class _Places(NamedTuple):
    """Where sources begin and end, by their names."""

    starts: Mapping[str, Position]
    stops: Mapping[str, Position]


class _Builder:
    """Builds the DataFrames of the nodes that one query needs, each once."""

    def __init__(
        self,
        node: Node,
        nodes: list[Node],
        project: Project,
        spark: SparkSession,
        streaming: bool,
        last: int | None,
        places: _Places,
        attempt: Attempt | None,
        records: Mapping[str, DataFrame] | None,
        explains: bool,
    ) -> None:
        self._explains = explains
        self._records = records
        self._project = project
        self._spark = spark
        self._streaming = streaming
        self._last = last
        self._starts, self._stops = places
        self._attempt = attempt
        self._query = node.name
        self._sources = [each.name for each in nodes if isinstance(each, Source)]
        sends = (streaming or records is not None) and not explains
        self._dead_letters = DeadLetters.of(project, node.name, attempt) if sends else None
        self._frames: dict[str, DataFrame] = {}

    def build(self, nodes: list[Node]) -> DataFrame:
        for node in nodes:
            if isinstance(node, Source):
                frame = self._call(node, {node.rows_parameter: self._decoded(node)})
            elif isinstance(node, TableSource):
                frame = self._call(node, {node.rows_parameter: self._table_rows(node)})
            else:
                frame = self._call(node, {name: self._frames[name] for name in node.inputs})
                if node.expectations or isinstance(node, Pipeline):
                    frame = check_returned(frame, node, self._dead_letters, self._explains)
            self._frames[node.name] = frame
        return self._frames[nodes[-1].name]

    def _decoded(self, source: Source) -> DataFrame:
        schema = ensure_schema(self._project, source)
        decoded = decode(self._raw(source), source, schema, self._project)
        unknown = unknown_fields(source, schema)
        explain = _explainer(source, schema)
        return check_decoded(decoded, source, self._dead_letters, unknown, explain, self._explains)

    def _table_rows(self, source: TableSource) -> DataFrame:
        rows = (self._records or {}).get(source.name)
        if rows is None:
            rows = table_rows(
                self._project,
                source,
                self._spark,
                streaming=self._streaming,
                start=self._starts.get(source.name),
                last=self._last,
                is_empty=self._records is not None and not self._explains,
            )
        if not source.expectations:
            return rows
        return check_returned(rows, source, self._dead_letters, self._explains)

    def _raw(self, source: Source) -> DataFrame:
        rows = self._read(source) if self._records is None else self._records[source.name]
        if self._attempt is not None:
            group = self._project.group_of(self._query)
            rows = rows.filter(is_for(group, self._attempt, source.name, self._sources))
        if self._last is not None:
            rows = rows.orderBy(F.desc("timestamp"), F.desc("offset")).limit(self._last)
        return rows.select(*[F.col(name.removeprefix("_")).alias(name) for name in CARRIED])

    def _read(self, source: Source) -> DataFrame:
        options = self._read_options(source)
        reader: Any = self._spark.readStream if self._streaming else self._spark.read
        rows: DataFrame = reader.format(READ_FORMAT).options(**options).load()
        return rows

    def _read_options(self, source: Source) -> dict[str, str]:
        options = {
            f"kafka.{name}": value for name, value in self._project.client_settings("consumer").items()
        }
        options |= {
            "kafka.bootstrap.servers": self._project.bootstrap,
            "subscribe": ",".join(source.topics),
            "includeHeaders": "true",
        }
        if self._streaming:
            options["kafka.group.id"] = self._project.group_of(self._query)
            options["retryTopic"] = retry_topic(self._project, self._query, source.name)
            options |= source.read
        if source.name in self._stops:
            del options["kafka.group.id"]
            # Rows whose records are not read would be replaced by nothing.
            options |= {"stoppingOffsets": json.dumps(self._stops[source.name]), "failOnDataLoss": "true"}
        if self._last is not None:
            options |= _last_options(self._project, source, self._last)
        elif source.name in self._starts:
            options["startingOffsets"] = json.dumps(self._starts[source.name])
        else:
            options["startingOffsets"] = "earliest"
        return options

    def _call(self, node: Node, arguments: dict[str, Any]) -> DataFrame:
        if node.wants_session:
            arguments[SESSION_PARAMETER] = self._spark
        try:
            with importable(self._project):
                frame = node.function(**arguments)
        except PipelineError:
            raise
        except Exception as error:
            raise UserCodeError.of(
                f"the {node.kind} {node.name}", error, self._project.root, node.place
            ) from error
        if not isinstance(frame, DataFrame):
            raise DefinitionError(
                f"the {node.kind} {node.name} returned {type(frame).__name__}, not a DataFrame",
                advice="Return a DataFrame",
                place=node.place,
            )
        if self._streaming and isinstance(node, Pipeline) and not frame.isStreaming:
            raise DefinitionError(
                f"the DataFrame that {node.name} returned does not come from a source",
                advice="Use at least one source; tables that are read through `spark` can be joined to it",
                place=node.place,
            )
        return _without_duplicate_columns(frame)


def _last_options(project: Project, source: Source, last: int) -> dict[str, str]:
    ranges = last_offsets(project, source.topics, last)
    starts: Position = {}
    ends: Position = {}
    for partition, (start, end) in ranges.items():
        starts.setdefault(partition.topic, {})[str(partition.partition)] = start
        ends.setdefault(partition.topic, {})[str(partition.partition)] = end
    return {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}


def _may_send(node: Node) -> bool:
    rules = [rule.otherwise for rule in node.expectations]
    return "dead_letter" in rules or (isinstance(node, Source) and node.undecodable == "dead_letter")


def _explainer(source: Source, schema: StructType) -> Explain | None:
    return json_explainer(schema, source.options) if source.format == "json" else None


def _without_duplicate_columns(frame: DataFrame) -> DataFrame:
    """Drop the columns that we carry if a join has brought them in twice: their names are ambiguous then."""
    duplicates = [name for name in CARRIED if frame.columns.count(name) > 1]
    return frame.drop(*duplicates) if duplicates else frame


def _send_code_by_value(definitions: Definitions) -> None:
    """Pickle the project's modules by value, since workers cannot import them."""
    for module in definitions.modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _use_rocksdb_if_needed(frame: DataFrame, spark: SparkSession) -> None:
    """Set the state store for transformWithState. Spark notes it in the checkpoint at a query's first
    start."""
    plan = frame._jdf.queryExecution().logical().toString()
    if _STATEFUL_NODE in plan and spark.conf.get(STATE_STORE_KEY, None) != ROCKSDB:
        spark.conf.set(STATE_STORE_KEY, ROCKSDB)
