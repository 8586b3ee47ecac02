"""What the decorators make of functions: plain descriptions that everything else reads.

A Node is a Source, a Transform or a Pipeline; nodes are named after their functions, and name each other by
their parameters. Nothing here imports pyspark: looking at a project must be quick.

Columns. What a source's function is given has the decoded columns and the CARRIED ones, so that whatever goes
wrong later can be told with the record it went wrong with. They stay as long as transforms keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias

from klamm.pipelines.errors import Place

COORDINATES = ("_topic", "_partition", "_offset", "_timestamp")
"""Where a row comes from: columns that go along into tables."""

CONTENTS = ("_key", "_value", "_headers")
"""The record itself, as it was: columns for dead letters and for users, which do not go into tables."""

CARRIED = (*COORDINATES, *CONTENTS)
"""All columns of ours that a source adds to the decoded ones."""

SESSION_PARAMETER = "spark"
"""A parameter of this name gets the SparkSession; no function may be called so."""

Otherwise: TypeAlias = Literal["warn", "drop", "fail", "dead_letter"]
"""What becomes of a row for which a rule does not hold."""

OTHERWISE: tuple[Otherwise, ...] = ("warn", "drop", "fail", "dead_letter")

Format: TypeAlias = Literal["json", "csv", "text", "avro", "protobuf", "binary"]
FORMATS: tuple[Format, ...] = ("json", "csv", "text", "avro", "protobuf", "binary")

Mode: TypeAlias = Literal["append", "update", "complete"]
MODES: tuple[Mode, ...] = ("append", "update", "complete")

DECODE_RULE = "decode"
"""What counts and dead letters call the rule that values can be decoded; no expectation has this name."""

INFER = "infer"
"""As a source's schema: to be found out from records once, written down, and read from there since."""


@dataclass(frozen=True)
class Expectation:
    """A rule: `condition` (SQL) is true for every row. A condition that is null does not hold.

    Rules are looked at in the order in which they are written. A row goes to the first that does not hold for
    it and does not just warn; later rules do not see it.
    """

    name: str
    condition: str
    otherwise: Otherwise
    place: Place


@dataclass(frozen=True)
class Node:
    """A decorated function. `inputs` are the names of the nodes that it asks for, in order."""

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
    """Topics whose values are decoded. Its rules are looked at before its function is called.

    `schema` is a DDL text, INFER, or the name of a file below the project's schemas (.json, .avsc, .desc).
    `options` belong to the format: docs are in `decoding/`. `undecodable` is what becomes of a value that
    cannot be decoded. `start` is where a pipeline's first start begins: earliest, latest, a time (ISO), or
    offsets as JSON. `read` are further options of the data source. `rows_parameter` is what the function
    calls the decoded rows.
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
class Transform(Node):
    """A function of DataFrames. Its rules are looked at in what it returns."""


@dataclass(frozen=True)
class Pipeline(Node):
    """One streaming query, named after its function: what it returns goes to a sink.

    `trigger` is an interval ("10 seconds"); without one a batch starts when the one before is done.
    """

    to: Sink = field(kw_only=True)
    trigger: str | None = None
    mode: Mode = "append"


# ---- sinks, as they are described; those that write are in sinks/


@dataclass(frozen=True)
class ParquetSink:
    """A folder of Parquet: a name below the project's tables, a path, or a URI."""

    table: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class IcebergSink:
    """An Iceberg table by its name in a catalog of the session; needs Iceberg's jar."""

    table: str


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table by its path; needs Delta's jar."""

    path: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class JdbcSink:
    """A table of a database. `properties` go to its driver."""

    url: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicSink:
    """A topic. Without `value` it is the column `value`, or else all columns as JSON.

    `key`, `value` and `headers` name columns.
    """

    topic: str
    key: str | None = None
    value: str | None = None
    headers: str | None = None


Sink: TypeAlias = ParquetSink | IcebergSink | DeltaSink | JdbcSink | TopicSink


@dataclass(frozen=True)
class Definitions:
    """All nodes of a project by name, in the order of files and lines, and the modules they are from."""

    nodes: Mapping[str, Node]
    modules: tuple[ModuleType, ...] = ()

    @property
    def sources(self) -> dict[str, Source]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Source)}

    @property
    def transforms(self) -> dict[str, Transform]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Transform)}

    @property
    def pipelines(self) -> dict[str, Pipeline]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Pipeline)}
