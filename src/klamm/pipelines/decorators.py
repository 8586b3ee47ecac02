"""What users write above their functions: `@source`, `@transform`, `@pipeline`, `@expect`, and the sinks.

A decorator returns the function unchanged, so that tests can call it with a DataFrame, and attaches its
arguments to the function as an attribute; `discovery.py` collects these. Arguments are checked when the file
is imported: a mistake raises DefinitionError with the line of the decorator.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, overload

from klamm.pipelines.definitions import (
    DECODE_RULE,
    FORMATS,
    KEEPS,
    MODES,
    OTHERWISE,
    SESSION_PARAMETER,
    Expectation,
    Format,
    IcebergSink,
    JdbcSink,
    Keep,
    Mode,
    Node,
    Otherwise,
    ParquetSink,
    Pipeline,
    Sink,
    Source,
    TableSink,
    TableSource,
    TopicSink,
    Transform,
)
from klamm.pipelines.errors import DefinitionError, Place
from klamm.pipelines.formats import complaints

F = TypeVar("F", bound=Callable[..., Any])
ChoiceT = TypeVar("ChoiceT", bound=str)

MARK = "__klamm__"
"""The attribute of a function that holds the arguments of its decorators."""

_INTERVAL = re.compile(r"\s*\d+\s+(millisecond|second|minute|hour|day)s?\s*", re.IGNORECASE)
_DECIDED_ELSEWHERE = {
    **dict.fromkeys(("subscribe", "subscribepattern", "assign"), "topic= names what is read"),
    **dict.fromkeys(
        ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
        "start= sets where the first run begins; `klamm pipeline replay` changes it later",
    ),
    "includeheaders": "headers are always read, into the column _headers",
    "kafka.bootstrap.servers": "klamm.toml names the brokers, for all sources of the project",
}
"""Options of the data source that a source cannot set, with the reason; names in lower case."""
_TABLE_READ_OPTIONS = ("maxFilesPerTrigger", "maxBytesPerTrigger", "skipChangeCommits")
_SINKS = (TableSink, ParquetSink, IcebergSink, JdbcSink, TopicSink)


@dataclass
class Marks:
    """The arguments of a function's decorators so far. Python applies decorators from the lowest up."""

    expectations: tuple[Expectation, ...] = ()
    node: Node | None = None


def source(
    *,
    topic: str | Sequence[str] | None = None,
    table: str | None = None,
    snapshot: bool = False,
    format: Format = "json",
    schema: str | None = None,
    start: str = "earliest",
    undecodable: Otherwise = "dead_letter",
    read: Mapping[str, object] | None = None,
    **options: object,
) -> Callable[[F], F]:
    """Read one or more topics, or a table. The function gets the (decoded) rows; other functions get what it
    returns.

    `table`: a table, by its name as in `table("orders")`, as a stream: each version's new rows once. With
    `snapshot=True` every batch gets all rows of the newest version, for joins with a stream. `start` is
    "earliest" (all rows that are there, then new ones) or "latest"; `read` takes maxFilesPerTrigger,
    maxBytesPerTrigger and skipChangeCommits. The arguments below are for topics.

    `schema`: SQL columns ("id STRING, amount DOUBLE"), a file in the project's schemas folder, or "infer":
    the first run infers it from records and writes schemas/<name>.json, which is used from then on.
    `start`: where the first run of a pipeline begins: "earliest", "latest", a time such as
    "2026-01-31T12:00:00Z", or offsets as JSON ('{"orders": {"0": 17}}').
    `undecodable`: what to do with values that cannot be decoded: "dead_letter", "drop", "fail", or "warn"
    (columns that could not be decoded are null).
    `read`: options of the data source, such as {"maxOffsetsPerTrigger": 100000}. Further arguments are
    options of the format, see `formats.py`.
    """
    place = _caller()
    if table is not None:
        if (
            topic is not None
            or schema is not None
            or format != "json"
            or undecodable != "dead_letter"
            or options
        ):
            raise DefinitionError(
                "a source of a table has arguments that are for topics",
                advice="It takes table, snapshot, start and read: a table knows its columns",
                place=place,
            )
        return _table_source(table, snapshot, start, read or {}, place)
    if topic is None or snapshot:
        raise DefinitionError(
            "a source names neither a topic nor a table" if topic is None else "a topic has no snapshot",
            advice='Write @source(topic="orders"), @source(table="orders") or @source(table="customers", '
            "snapshot=True)",
            place=place,
        )
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    if not topics or not all(isinstance(each, str) and each for each in topics):
        raise DefinitionError(
            f"topic={topic!r} does not name a topic", advice="Give one name, or a list of names", place=place
        )
    _choose("format", format, FORMATS, place)
    _choose("undecodable", undecodable, OTHERWISE, place)
    for name in read or ():
        if reason := _DECIDED_ELSEWHERE.get(name.lower()):
            raise DefinitionError(
                f"read= cannot set the option {name}", advice=f"Remove it: {reason}", place=place
            )
    texts = {name: _text(value) for name, value in options.items()}
    for message, advice in complaints(format, schema, texts):
        raise DefinitionError(message, advice=advice, place=place)

    def decorate(function: F) -> F:
        rows_parameter, wants_session = _rows_parameter(function, place)
        node = Source(
            name=function.__name__,
            function=function,
            place=place,
            wants_session=wants_session,
            topics=topics,
            format=format,
            schema=schema,
            options=texts,
            undecodable=undecodable,
            start=start,
            read={name: _text(value) for name, value in (read or {}).items()},
            rows_parameter=rows_parameter,
        )
        return _mark(function, node)

    return decorate


def _table_source(
    table: str, snapshot: bool, start: str, read: Mapping[str, object], place: Place
) -> Callable[[F], F]:
    if not isinstance(table, str) or not table.strip():
        raise DefinitionError(f"table={table!r} does not name a table", advice="Give a name", place=place)
    _choose("start", start, ("earliest", "latest"), place)
    for name in read:
        _choose("the option of read ", name, _TABLE_READ_OPTIONS, place)
    if snapshot and (read or start != "earliest"):
        raise DefinitionError(
            "a snapshot has no start= and no read=: every batch gets all rows of the newest version",
            advice="Remove them, or remove snapshot=True",
            place=place,
        )
    texts = {name: _text(value) for name, value in read.items()}
    for name in ("maxFilesPerTrigger", "maxBytesPerTrigger"):
        if name in texts and not (texts[name].isdigit() and int(texts[name]) > 0):
            raise DefinitionError(f"{name} is {texts[name]!r}", advice="Give a number above 0", place=place)

    def decorate(function: F) -> F:
        rows_parameter, wants_session = _rows_parameter(function, place)
        node = TableSource(
            name=function.__name__,
            function=function,
            place=place,
            wants_session=wants_session,
            table=table,
            is_snapshot=snapshot,
            start=start,
            read=texts,
            rows_parameter=rows_parameter,
        )
        return _mark(function, node)

    return decorate


def _rows_parameter(function: Callable[..., Any], place: Place) -> tuple[str, bool]:
    """The parameter of a source that gets the rows, and whether another one wants the session."""
    parameters, wants_session = _parameters(function, place)
    if len(parameters) != 1:
        raise DefinitionError(
            f"the source {function.__name__} takes {len(parameters)} parameters",
            advice="It must take one, the decoded rows (and `spark`, if it needs the session)",
            place=place,
        )
    return parameters[0], wants_session


@overload
def transform(function: F) -> F: ...


@overload
def transform() -> Callable[[F], F]: ...


def transform(function: F | None = None) -> F | Callable[[F], F]:
    """Make a DataFrame from others. Each parameter has the name of the source or transform that it gets."""
    place = _caller()

    def decorate(function: F) -> F:
        inputs, wants_session = _parameters(function, place)
        node = Transform(
            name=function.__name__, function=function, place=place, inputs=inputs, wants_session=wants_session
        )
        return _mark(function, node)

    return decorate if function is None else decorate(function)


def pipeline(
    *,
    to: Sink,
    trigger: str | None = None,
    mode: Mode = "append",
    keys: str | Sequence[str] = (),
    order_by: str | Sequence[str] = (),
    keep: Keep = "newest",
) -> Callable[[F], F]:
    """Write the DataFrame that the function returns to a sink, as a streaming query named after the function.

    `trigger`: how often a batch starts ("10 seconds"); without it a batch starts when the last one is done.
    `mode`: "append" (final rows), "update" (changed rows), "complete" (all rows, in every batch), "upsert"
    (one row for each value of `keys`: the newest or, with keep="oldest", the oldest). `order_by` names the
    columns that tell which row is newer; without it the timestamps and offsets of their records do. Rows
    without either replace those of earlier batches.
    """
    place = _caller()
    _choose("mode", mode, MODES, place)
    _choose("keep", keep, KEEPS, place)
    if (mode == "upsert") != bool(keys):
        what = "the mode 'upsert', but no keys" if mode == "upsert" else f"keys, but the mode {mode!r}"
        advice = 'Write mode="upsert", keys=["order_id"]'
        raise DefinitionError(f"a pipeline has {what}", advice=advice, place=place)
    if mode != "upsert" and (order_by or keep != "newest"):
        raise DefinitionError(
            f"a pipeline has order_by or keep, but the mode {mode!r}",
            advice='They choose one of the rows with the same keys: write mode="upsert", keys=["order_id"]',
            place=place,
        )
    if not isinstance(to, _SINKS):
        raise DefinitionError(
            f"to={to!r} is not a sink", advice="Use table, parquet, iceberg, jdbc or topic(…)", place=place
        )
    if trigger is not None and not _INTERVAL.fullmatch(trigger):
        raise DefinitionError(
            f"trigger={trigger!r} is not a valid interval",
            advice='Write it as "10 seconds" or "1 minute"',
            place=place,
        )

    def decorate(function: F) -> F:
        inputs, wants_session = _parameters(function, place)
        node = Pipeline(
            name=function.__name__,
            function=function,
            place=place,
            inputs=inputs,
            wants_session=wants_session,
            to=to,
            trigger=trigger,
            mode=mode,
            keys=_names(keys),
            order_by=_names(order_by),
            keep=keep,
        )
        return _mark(function, node)

    return decorate


def expect(name: str, condition: str, otherwise: Otherwise = "warn") -> Callable[[F], F]:
    """Expect the SQL `condition` to be true for every row (null counts as false).

    If it is not, "warn" counts the row, "drop" drops it, "dead_letter" sends its record to the project's
    dead-letter topic, "fail" stops the pipeline. On a source the expectation checks the decoded rows, before
    the function is called; on a transform or a pipeline it checks what the function returns. Several
    expectations are checked from the top one down.
    """
    place = _caller()
    _choose("otherwise", otherwise, OTHERWISE, place)
    for what, text in (("name", name), ("condition", condition)):
        if not isinstance(text, str) or not text.strip():
            raise DefinitionError(
                f"an expectation's {what} is empty",
                advice='Write @expect("amount is positive", "amount > 0")',
                place=place,
            )
    if name == DECODE_RULE:
        raise DefinitionError(
            f"an expectation cannot be called {name!r}",
            advice="That is the rule name of values that could not be decoded: choose another",
            place=place,
        )
    rule = Expectation(name, condition, otherwise, place)

    def decorate(function: F) -> F:
        marks = _marks(function)
        if any(other.name == name for other in marks.expectations):
            raise DefinitionError(
                f"{function.__name__} has two expectations called {name!r}",
                advice="Counts and dead-letter records go by the name: give each its own",
                place=place,
            )
        # Decorators are applied from the lowest up, so this one stands above those before it.
        marks.expectations = (rule, *marks.expectations)
        if marks.node is not None:
            marks.node = replace(marks.node, expectations=marks.expectations)
        return function

    return decorate


# ---- sinks


def table(
    name: str, *, partition_by: str | Sequence[str] = (), sort_by: str | Sequence[str] = ()
) -> TableSink:
    """A Delta table: a name in the project's tables folder, a path, or a URI (s3://…, gs://…, az://…, hdfs://…).

    `partition_by`: columns whose values have folders of their own. `sort_by`: columns by which the rows of
    each file are sorted, so that readers who ask for a part of their values skip most files.
    """
    return TableSink(_named("table", name), _names(partition_by), _names(sort_by))


def parquet(table: str, *, partition_by: str | Sequence[str] = ()) -> ParquetSink:
    """Plain folders of Parquet files, one for each batch: a name in the project's tables folder, a path, or a
    URI that Spark can write."""
    return ParquetSink(_named("table", table), _names(partition_by))


def iceberg(
    table: str, *, partition_by: str | Sequence[str] = (), sort_by: str | Sequence[str] = ()
) -> IcebergSink:
    """An Iceberg table: "catalog.namespace.table", with the catalog's settings in [iceberg.<catalog>] of
    klamm.toml. `partition_by` and `sort_by` as in `table`."""
    name = _named("table", table)
    if name.count(".") < 2 or not all(name.split(".")):
        raise DefinitionError(
            f"{name!r} is not the name of an Iceberg table",
            advice='Name catalog, namespace and table: iceberg("lake.shop.orders")',
            place=_caller(),
        )
    return IcebergSink(name, _names(partition_by), _names(sort_by))


def delta(path: str, *, partition_by: str | Sequence[str] = ()) -> TableSink:
    """The former name of `table`, which needs no jar."""
    raise DefinitionError(
        "delta(…) does not exist any more: table(…) writes Delta tables, without a jar",
        advice=f"Write table({path!r}); a table that Delta's jar has written gets another path",
        place=_caller(),
    )


def jdbc(url: str, table: str, *, properties: Mapping[str, str] | None = None) -> JdbcSink:
    """A table of a database; `properties` (user, password, driver …) go to its JDBC driver."""
    return JdbcSink(_named("url", url), _named("table", table), dict(properties or {}))


def topic(
    name: str, *, key: str | None = None, value: str | None = None, headers: str | None = None
) -> TopicSink:
    """A topic. `key`, `value` and `headers` name columns. Without `value=`, the value is the column `value`
    if there is one, else all columns as JSON."""
    return TopicSink(_named("topic", name), key, value, headers)


# ---- checks


def _marks(function: Callable[..., Any]) -> Marks:
    marks: Marks | None = function.__dict__.get(MARK)
    if marks is None:
        marks = Marks()
        setattr(function, MARK, marks)
    return marks


def _mark(function: F, node: Node) -> F:
    marks = _marks(function)
    if marks.node is not None:
        raise DefinitionError(
            f"{node.name} is already a {marks.node.kind}", advice="Write two functions", place=node.place
        )
    if node.name == SESSION_PARAMETER:
        raise DefinitionError(
            f"a {node.kind} cannot be called {SESSION_PARAMETER}",
            advice="A parameter of that name gets the Spark session: rename the function",
            place=node.place,
        )
    marks.node = replace(node, expectations=marks.expectations)
    return function


def _parameters(function: Callable[..., Any], place: Place) -> tuple[tuple[str, ...], bool]:
    """The names of the inputs, and whether a parameter wants the session. Parameters with defaults keep
    them."""
    if not inspect.isfunction(function):
        raise DefinitionError(f"{function!r} is not a function", advice="Decorate a function", place=place)
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(
                f"{function.__name__} has the parameter {parameter}, which does not name an input",
                advice="Name one parameter for each input",
                place=place,
            )
        if parameter.default is parameter.empty:
            names.append(parameter.name)
    inputs = tuple(name for name in names if name != SESSION_PARAMETER)
    return inputs, SESSION_PARAMETER in names


def _choose(what: str, value: str, choices: Iterable[str], place: Place) -> None:
    if value not in choices:
        nearest = difflib.get_close_matches(str(value), list(choices), n=1)
        advice = f"Did you mean {nearest[0]!r}?" if nearest else f"Use one of {', '.join(choices)}"
        raise DefinitionError(f"{what}={value!r} is not valid", advice=advice, place=place)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(what: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise DefinitionError(f"the sink's {what} is {text!r}", advice="Give it a name", place=_caller(3))
    return text


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _caller(depth: int = 2) -> Place:
    """The line that called the function that calls this one."""
    frame = sys._getframe(depth)
    return Place(Path(frame.f_code.co_filename), frame.f_lineno)
