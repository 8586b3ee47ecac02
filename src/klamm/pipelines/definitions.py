"""Sources, transforms, pipelines, expectations and sinks as data: what the decorators make of functions.

A Node is a Source, a TableSource, a Transform or a Pipeline. It is named after its function, and its
parameters name the nodes that it reads. Nothing here imports pyspark, so that a project can be loaded
quickly.

A source's function gets the decoded columns and the CARRIED ones, so that a later error can name the record
it is about. They stay in the rows as long as transforms keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias

from klamm.pipelines.errors import Place
from klamm.pipelines.positions import table_key

COORDINATES = ("_topic", "_partition", "_offset", "_timestamp")
"""Columns with the coordinates of a row's record. They are written to tables."""

CONTENTS = ("_key", "_value", "_headers")
"""Columns with the original record, for dead-letter records and for users. They are not written to tables."""

CARRIED = (*COORDINATES, *CONTENTS)
"""All columns that a source adds to the decoded ones."""

SESSION_PARAMETER = "spark"
"""A parameter of this name gets the SparkSession. No function may have this name."""

Otherwise: TypeAlias = Literal["warn", "drop", "fail", "dead_letter"]
"""What to do with a row that breaks an expectation."""

OTHERWISE: tuple[Otherwise, ...] = ("warn", "drop", "fail", "dead_letter")

Format: TypeAlias = Literal["json", "csv", "avro", "protobuf", "nginx", "apache", "regex", "text", "binary"]
FORMATS: tuple[Format, ...] = (
    "json",
    "csv",
    "avro",
    "protobuf",
    "nginx",
    "apache",
    "regex",
    "text",
    "binary",
)

Mode: TypeAlias = Literal["append", "update", "complete", "upsert"]
MODES: tuple[Mode, ...] = ("append", "update", "complete", "upsert")

Keep: TypeAlias = Literal["newest", "oldest"]
KEEPS: tuple[Keep, ...] = ("newest", "oldest")
"""Which row of several with the same keys stays in a table."""

DECODE_RULE = "decode"
"""The rule name of values that cannot be decoded, in counts and dead-letter records."""

INFER = "infer"
"""As a source's schema: inferred from records once, written to a file, and read from that file afterwards."""


@dataclass(frozen=True)
class Expectation:
    """The SQL `condition` must be true for every row; null counts as false.

    Expectations are checked in the order in which they are written. The first one that a row breaks, and that
    does not only warn, decides what happens to the row; later ones do not count it.
    """

    name: str
    condition: str
    otherwise: Otherwise
    place: Place


@dataclass(frozen=True)
class Node:
    """A decorated function. `inputs` are the names of the nodes that it reads, in order."""

    name: str
    function: Callable[..., Any]
    place: Place
    inputs: tuple[str, ...] = ()
    wants_session: bool = False
    expectations: tuple[Expectation, ...] = ()

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Source(Node):
    """Topics whose values are decoded. Expectations are checked before the function is called.

    `schema` is a DDL text, INFER, or the name of a file in the project's schemas folder (.json, .avsc,
    .desc). `options` are those of the format (`formats.py`). `undecodable` says what to do with a value that
    cannot be decoded. `start` is where a pipeline's first run begins: earliest, latest, a time (ISO), or
    offsets as JSON. `read` are further options of the data source. `rows_parameter` is the name of the
    function's parameter.
    """

    topics: tuple[str, ...] = ()
    format: Format = "json"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    undecodable: Otherwise = "dead_letter"
    start: str = "earliest"
    read: Mapping[str, str] = field(default_factory=dict)
    rows_parameter: str = "rows"


@dataclass(frozen=True)
class TableSource(Node):
    """A Delta table that is read: as a stream of new rows, or whole (`is_snapshot`), for joins.

    `table` is a name as in TableSink. `start` is where a pipeline's first run begins: "earliest" with all
    rows that are there, "latest" with later ones. `read` are options of the stream. `rows_parameter` is the
    name of the function's parameter. Expectations are checked before the function is called.
    """

    table: str = ""
    is_snapshot: bool = False
    start: str = "earliest"
    read: Mapping[str, str] = field(default_factory=dict)
    rows_parameter: str = "rows"

    @property
    def kind(self) -> str:
        return "source"

    @property
    def topics(self) -> tuple[str, ...]:
        """Its name in positions, which are by topic."""
        return (table_key(self.table),)

    @property
    def skips_changes(self) -> bool:
        """Whether its stream leaves out the versions that remove or rewrite rows."""
        return self.read.get("skipChangeCommits", "false").lower() == "true"


@dataclass(frozen=True)
class Transform(Node):
    """A function of DataFrames. Expectations are checked on the DataFrame that it returns."""


@dataclass(frozen=True)
class Pipeline(Node):
    """One streaming query, named after its function, whose DataFrame is written to a sink.

    `trigger` is an interval ("10 seconds"); without one a batch starts when the last one is done. `keys` are
    the columns by which the mode "upsert" finds the row that a new one replaces. Which of the two stays is
    decided by `order_by`, or by their records, and by `keep`.
    """

    to: Sink = field(kw_only=True)
    trigger: str | None = None
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    keep: Keep = "newest"


# ---- sinks as data; the code that writes is in sinks/


@dataclass(frozen=True)
class TableSink:
    """A Delta table: a name in the project's tables folder, a path, or a URI. Rows are sorted by `sort_by`
    within each file."""

    table: str
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParquetSink:
    """Plain folders of Parquet files: a name in the project's tables folder, a path, or a URI."""

    table: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class IcebergSink:
    """An Iceberg table: `catalog.namespace.table`. Rows are sorted by `sort_by` within each file."""

    table: str
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()

    @property
    def catalog(self) -> str:
        return self.table.partition(".")[0]


@dataclass(frozen=True)
class JdbcSink:
    """A table of a database. `properties` are passed to its JDBC driver."""

    url: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicSink:
    """A topic. `key`, `value` and `headers` name columns.

    Without `value`, the value is the column `value` if there is one, else all columns as JSON.
    """

    topic: str
    key: str | None = None
    value: str | None = None
    headers: str | None = None


Sink: TypeAlias = TableSink | ParquetSink | IcebergSink | JdbcSink | TopicSink


@dataclass(frozen=True)
class Definitions:
    """All nodes of a project by name, in the order of files and lines, and the modules that define them."""

    nodes: Mapping[str, Node]
    modules: tuple[ModuleType, ...] = ()

    @property
    def sources(self) -> dict[str, Source]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Source)}

    @property
    def table_sources(self) -> dict[str, TableSource]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, TableSource)}

    @property
    def transforms(self) -> dict[str, Transform]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Transform)}

    @property
    def pipelines(self) -> dict[str, Pipeline]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Pipeline)}
