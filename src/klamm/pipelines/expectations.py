"""Checks expectations: finds the rows that break one, counts them, and drops, sends or fails them.

All expectations of a node are checked in one step, in their order. A row gets a result: the number of the
first expectation that it breaks and that does not only warn, or null. Then rows are counted (`observe`), and
then dropped, sent or failed by their result. Counting stands between the two because Spark moves no filter
across `observe`, so that it decodes every row only once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from klamm.pipelines.conditions import columns_named
from klamm.pipelines.counting import (
    DEAD_LETTERS,
    EXAMPLE_PREFIX,
    ROWS,
    RULE_PREFIX,
    UNDECODABLE,
    UNKNOWN_FIELD,
    UNKNOWN_FIELDS,
    observation_name,
)
from klamm.pipelines.dead_letters import DeadLetters, Explain
from klamm.pipelines.definitions import CARRIED, DECODE_RULE, Expectation, Node, Otherwise, Source
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.schemas.resolving import ERROR_COLUMN

RESULT = "_result"
"""A temporary column: the number of the expectation that decides what happens to the row, or null."""


SHOWN_CHARACTERS = 60
"""The beginning of a value in an error, enough to recognise it."""


@dataclass(frozen=True)
class _Rule:
    name: str
    holds: Column
    otherwise: Otherwise
    error: Column
    metric: str
    columns: tuple[str, ...] = field(default=())
    """The columns that the condition names."""


def check_decoded(
    frame: DataFrame,
    source: Source,
    dead_letters: DeadLetters | None,
    unknown_fields: Column | None,
    explain: Explain | None,
    examples: bool = False,
) -> DataFrame:
    """The rows for the source's function. Without `dead_letters` bad rows are dropped instead of sent. With
    `examples` a row that breaks a rule is among the counts."""
    decoding = _Rule(
        DECODE_RULE,
        F.col(ERROR_COLUMN).isNull(),
        source.undecodable,
        F.col(ERROR_COLUMN),
        UNDECODABLE,
    )
    rules = [decoding, *[_rule(frame, source, each) for each in source.expectations]]
    metrics = []
    if unknown_fields is not None:
        looked = F.coalesce(F.size(unknown_fields), F.lit(0))
        metrics = [
            F.count_if(looked > 0).alias(UNKNOWN_FIELDS),
            F.max(F.when(looked > 0, F.element_at(unknown_fields, 1))).alias(UNKNOWN_FIELD),
        ]
    if examples:
        metrics += [_example(frame, number, rule) for number, rule in enumerate(rules)]
    return _checked(frame, source, rules, metrics, dead_letters, explain).drop(ERROR_COLUMN)


def check_returned(
    frame: DataFrame, node: Node, dead_letters: DeadLetters | None, examples: bool = False
) -> DataFrame:
    """The rows that a transform or a pipeline returned, without those that break its expectations."""
    rules = [_rule(frame, node, each) for each in node.expectations]
    if not rules:
        return frame.observe(observation_name(node.name), F.count(F.lit(1)).alias(ROWS))
    metrics = [_example(frame, number, rule) for number, rule in enumerate(rules)] if examples else []
    return _checked(frame, node, rules, metrics, dead_letters, None)


def _rule(frame: DataFrame, node: Node, expectation: Expectation) -> _Rule:
    condition = F.expr(expectation.condition)
    try:
        field = frame.select(condition.alias("holds")).schema["holds"]
    except AnalysisException as error:
        raise DefinitionError(
            f"the expectation {expectation.name!r} of {node.name} cannot be checked: {_first_line(error)}",
            advice=f"The columns are {', '.join(frame.columns)}",
            place=expectation.place,
        ) from error
    if not isinstance(field.dataType, BooleanType):
        raise DefinitionError(
            f"the expectation {expectation.name!r} of {node.name} is not a condition: its type is "
            f"{field.dataType.simpleString().upper()}",
            advice=f"Write a comparison, such as {expectation.condition} > 0",
            place=expectation.place,
        )
    return _Rule(
        expectation.name,
        F.coalesce(condition, F.lit(False)),
        expectation.otherwise,
        F.lit(f"is not true: {expectation.condition}"),
        f"{RULE_PREFIX}{expectation.name}",
        _columns(frame, expectation.condition),
    )


def _columns(frame: DataFrame, condition: str) -> tuple[str, ...]:
    named = {name.lower() for name in columns_named(condition)}
    return tuple(name for name in frame.columns if name.lower() in named)


def _example(frame: DataFrame, number: int, rule: _Rule) -> Column:
    """The row with the smallest coordinates that breaks a rule, or null. `min` rather than `first`, which
    could choose another row each time."""
    coordinates = [
        (F.col(name) if name in frame.columns else F.lit(None).cast(kind)).alias(name.removeprefix("_"))
        for name, kind in (("_topic", "string"), ("_partition", "int"), ("_offset", "bigint"))
    ]
    shown = [F.col(f"`{name.replace('`', '``')}`") for name in rule.columns]
    columns = F.to_json(F.struct(*shown), {"ignoreNullFields": "false"}) if shown else F.lit("{}")
    is_undecoded = rule.metric == UNDECODABLE
    value = F.hex("_value") if is_undecoded else F.lit(None).cast("string")
    row = F.struct(*coordinates, rule.error.alias("error"), columns.alias("columns"), value.alias("value"))
    return F.min(F.when(_broken(number, rule), row)).alias(f"{EXAMPLE_PREFIX}{rule.metric}")


def _checked(
    frame: DataFrame,
    node: Node,
    rules: list[_Rule],
    metrics: list[Column],
    dead_letters: DeadLetters | None,
    explain: Explain | None,
) -> DataFrame:
    result = F.lit(None).cast("int")
    for number, rule in reversed(list(enumerate(rules))):
        if rule.otherwise != "warn":
            result = F.when(~rule.holds, F.lit(number)).otherwise(result)
    checked = frame.withColumn(RESULT, result)
    sent = [number for number, rule in enumerate(rules) if rule.otherwise == "dead_letter"]
    counts = [F.count(F.lit(1)).alias(ROWS), *metrics]
    counts += [F.count_if(_broken(number, rule)).alias(rule.metric) for number, rule in enumerate(rules)]
    if sent:
        counts.append(F.count_if(F.col(RESULT).isin(sent)).alias(DEAD_LETTERS))
    counted = checked.observe(observation_name(node.name), *counts)
    staying = counted.filter(_stays(counted, node, rules, sent if dead_letters is not None else []))
    if sent and dead_letters is not None:
        staying = dead_letters.send(
            staying,
            F.col(RESULT).isNotNull(),
            _by_result([(number, F.lit(rules[number].name)) for number in sent]),
            _by_result([(number, rules[number].error) for number in sent]),
            node=node.name,
            columns=[name for name in frame.columns if name != ERROR_COLUMN],
            explain=explain,
        )
    return staying.drop(RESULT)


def _broken(number: int, rule: _Rule) -> Column:
    """True if a row counts for a rule: the row breaks it, and no earlier rule has removed the row."""
    if rule.otherwise != "warn":
        return F.col(RESULT) == number
    return ~rule.holds & (F.col(RESULT).isNull() | (F.col(RESULT) > number))


def _stays(frame: DataFrame, node: Node, rules: list[_Rule], sent: list[int]) -> Column:
    """True for rows that break no rule, and for rows that the next step sends to the dead-letter topic."""
    failing = [number for number, rule in enumerate(rules) if rule.otherwise == "fail"]
    stays = F.when(F.col(RESULT).isNull(), F.lit(True))
    for number in failing:
        text = F.concat_ws("", *_failure(frame, node, rules[number]))
        stays = stays.when(F.col(RESULT) == number, F.raise_error(text).cast("boolean"))
    return stays.otherwise(F.col(RESULT).isin(sent) if sent else F.lit(False))


def _failure(frame: DataFrame, node: Node, rule: _Rule) -> list[Column]:
    """The parts of the error that stops a pipeline: the rule, the record, the values, and what to do."""
    if rule.metric == UNDECODABLE:
        assert isinstance(node, Source)
        what = F.lit(f"a value of the source {node.name} cannot be decoded")
        reason = F.coalesce(_misfits(frame, node), rule.error)
        advice = "the schema, or let the source have undecodable='dead_letter'"
    else:
        what = F.lit(f"the expectation {rule.name!r} of {node.name} failed")
        values = [F.concat(F.lit(f"{name} is "), _shown(name), F.lit(", ")) for name in rule.columns]
        reason = F.concat(*values, F.lit("so it ") if values else F.lit("it "), rule.error)
        advice = "the condition, or let the expectation have otherwise='dead_letter'"
    return [
        what,
        *_where(frame),
        F.lit(": "),
        reason,
        F.lit(f". Correct what writes such records, or {advice}"),
    ]


def _shown(name: str) -> Column:
    text = F.col(f"`{name.replace('`', '``')}`").cast("string")
    return F.coalesce(F.substring(text, 1, SHOWN_CHARACTERS), F.lit("null"))


def _misfits(frame: DataFrame, source: Source) -> Column:
    """The fields of a JSON value that do not fit their columns: they are there, but Spark made null of them.
    Null if there are none, or for other formats. Spark computes this for rows that fail only."""
    text = F.col("_value").cast("string")
    told = []
    for column in frame.schema if source.format == "json" else ():
        if column.name in CARRIED or column.name == ERROR_COLUMN or "'" in column.name:
            continue
        found = F.get_json_object(text, f"$['{column.name}']")
        is_lost = F.col(f"`{column.name.replace('`', '``')}`").isNull() & found.isNotNull()
        kind = column.dataType.simpleString().upper()
        shown = F.substring(found, 1, SHOWN_CHARACTERS)
        sentence = F.concat(F.lit(f"{column.name} is '"), shown, F.lit(f"', which does not fit {kind}"))
        told.append(F.when(is_lost, sentence))
    return F.nullif(F.concat_ws("; ", *told), F.lit("")) if told else F.lit(None).cast("string")


def _where(frame: DataFrame) -> list[Column]:
    if not {"_topic", "_partition", "_offset"} <= set(frame.columns):
        return []
    columns = [F.lit(" for the record "), F.col("_topic"), F.lit("-"), F.col("_partition").cast("string")]
    return [*columns, F.lit(" at offset "), F.col("_offset").cast("string")]


def _by_result(choices: list[tuple[int, Column]]) -> Column:
    (first, column), *others = choices
    chosen = F.when(F.col(RESULT) == first, column)
    for number, column in others:
        chosen = chosen.when(F.col(RESULT) == number, column)
    return chosen


def _first_line(error: AnalysisException) -> str:
    return str(error).strip().splitlines()[0]
