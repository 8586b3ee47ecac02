"""Rules on rows: what holds, what is counted, and what becomes of rows for which a rule does not hold.

All rules of a node are looked at in one step, from the first to the last. A row goes to the first that does
not hold and does not just warn: its verdict. Then rows are counted, and go where their verdict says. Counting
(`observe`) stands between the two on purpose: Spark moves no filter across it, so it decodes every row once.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from klamm.pipelines.counting import (
    DEAD_LETTERS,
    ROWS,
    RULE_PREFIX,
    UNDECODABLE,
    UNKNOWN_FIELD,
    UNKNOWN_FIELDS,
    observation_name,
)
from klamm.pipelines.dead_letters import DeadLetters, Explain
from klamm.pipelines.definitions import DECODE_RULE, Expectation, Node, Otherwise, Source
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.schemas.resolving import ERROR_COLUMN

VERDICT = "_verdict"
"""A column for as long as it takes: the number of the rule that a row goes to, or null."""


@dataclass(frozen=True)
class _Rule:
    name: str
    holds: Column
    otherwise: Otherwise
    error: Column
    metric: str


def check_decoded(
    frame: DataFrame,
    source: Source,
    letters: DeadLetters | None,
    unknown_fields: Column | None,
    explain: Explain | None,
) -> DataFrame:
    """Decoded rows that may go on to the source's function. Without `letters` rows are left out, not sent."""
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
    return _checked(frame, source, rules, metrics, letters, explain).drop(ERROR_COLUMN)


def check_returned(frame: DataFrame, node: Node, letters: DeadLetters | None) -> DataFrame:
    """What a transform or a pipeline has returned, without the rows that its rules take away."""
    rules = [_rule(frame, node, each) for each in node.expectations]
    if not rules:
        return frame.observe(observation_name(node.name), F.count(F.lit(1)).alias(ROWS))
    return _checked(frame, node, rules, [], letters, None)


def _rule(frame: DataFrame, node: Node, expectation: Expectation) -> _Rule:
    condition = F.expr(expectation.condition)
    try:
        field = frame.select(condition.alias("holds")).schema["holds"]
    except AnalysisException as error:
        raise DefinitionError(
            f"the expectation {expectation.name!r} of {node.name} cannot be looked at: {_first_line(error)}",
            advice=f"There are the columns {', '.join(frame.columns)}",
            place=expectation.place,
        ) from error
    if not isinstance(field.dataType, BooleanType):
        raise DefinitionError(
            f"the expectation {expectation.name!r} of {node.name} is no question: its type is "
            f"{field.dataType.simpleString().upper()}",
            advice=f"Compare it with something: {expectation.condition} > 0",
            place=expectation.place,
        )
    return _Rule(
        expectation.name,
        F.coalesce(condition, F.lit(False)),
        expectation.otherwise,
        F.lit(f"does not hold: {expectation.condition}"),
        f"{RULE_PREFIX}{expectation.name}",
    )


def _checked(
    frame: DataFrame,
    node: Node,
    rules: list[_Rule],
    metrics: list[Column],
    letters: DeadLetters | None,
    explain: Explain | None,
) -> DataFrame:
    verdict = F.lit(None).cast("int")
    for number, rule in reversed(list(enumerate(rules))):
        if rule.otherwise != "warn":
            verdict = F.when(~rule.holds, F.lit(number)).otherwise(verdict)
    judged = frame.withColumn(VERDICT, verdict)
    sent = [number for number, rule in enumerate(rules) if rule.otherwise == "dead_letter"]
    counts = [F.count(F.lit(1)).alias(ROWS), *metrics]
    counts += [F.count_if(_broken(number, rule)).alias(rule.metric) for number, rule in enumerate(rules)]
    if sent:
        counts.append(F.count_if(F.col(VERDICT).isin(sent)).alias(DEAD_LETTERS))
    counted = judged.observe(observation_name(node.name), *counts)
    staying = counted.filter(_stays(counted, node, rules, sent if letters is not None else []))
    if sent and letters is not None:
        staying = letters.send(
            staying,
            F.col(VERDICT).isNotNull(),
            _by_verdict([(number, F.lit(rules[number].name)) for number in sent]),
            _by_verdict([(number, rules[number].error) for number in sent]),
            node=node.name,
            columns=[name for name in frame.columns if name != ERROR_COLUMN],
            explain=explain,
        )
    return staying.drop(VERDICT)


def _broken(number: int, rule: _Rule) -> Column:
    """Whether a row counts for a rule: it does not hold, and no rule before it has taken the row."""
    if rule.otherwise != "warn":
        return F.col(VERDICT) == number
    return ~rule.holds & (F.col(VERDICT).isNull() | (F.col(VERDICT) > number))


def _stays(frame: DataFrame, node: Node, rules: list[_Rule], sent: list[int]) -> Column:
    """Whether a row goes on from here: those that no rule has taken, and those that the next step sends."""
    failing = [number for number, rule in enumerate(rules) if rule.otherwise == "fail"]
    stays = F.when(F.col(VERDICT).isNull(), F.lit(True))
    for number in failing:
        text = F.concat_ws(
            "",
            F.lit(f"the rule {rules[number].name!r} of {node.name} does not hold"),
            *_where(frame),
            F.lit(": "),
            rules[number].error,
        )
        stays = stays.when(F.col(VERDICT) == number, F.raise_error(text).cast("boolean"))
    return stays.otherwise(F.col(VERDICT).isin(sent) if sent else F.lit(False))


def _where(frame: DataFrame) -> list[Column]:
    if not {"_topic", "_partition", "_offset"} <= set(frame.columns):
        return []
    columns = [F.lit(" for the record "), F.col("_topic"), F.lit("-"), F.col("_partition").cast("string")]
    return [*columns, F.lit(" at offset "), F.col("_offset").cast("string")]


def _by_verdict(choices: list[tuple[int, Column]]) -> Column:
    (first, column), *others = choices
    chosen = F.when(F.col(VERDICT) == first, column)
    for number, column in others:
        chosen = chosen.when(F.col(VERDICT) == number, column)
    return chosen


def _first_line(error: AnalysisException) -> str:
    return str(error).strip().splitlines()[0]
