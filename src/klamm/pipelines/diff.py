"""Compares what two versions of a project make of the same newest records, pipeline by pipeline.

The records are read once, before the first version runs, and both get the same ones; tables that are read
have one version for both, as they are, whatever a change would write to them. A version's pipelines
are imported, built and computed before the other version is imported, since both have modules of the same
names. All is computed as batches: a pipeline with state or aggregates is compared by its result over these
records. Nothing is written, and no dead-letter record is sent.

Rows are matched by the record that they come from, if both versions keep the columns _topic, _partition and
_offset; else by the pipeline's `keys`; else whole (`comparing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from klamm.pipelines import frames
from klamm.pipelines.comparing import Comparison, compare
from klamm.pipelines.definitions import Definitions, Pipeline
from klamm.pipelines.discovery import discover, isolated, load_definitions
from klamm.pipelines.errors import GraphError, PipelineError
from klamm.pipelines.failures import explain
from klamm.pipelines.graph import order, sources_of, table_sources_of
from klamm.pipelines.newest import Records, quick_session
from klamm.pipelines.project import Project
from klamm.pipelines.rejections import Rejection, read_rejections
from klamm.pipelines.spark_sessions import session_meanwhile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_RECORDS = 1000
"""How many records of each source are compared: many enough for rare cases, computed in seconds."""

RECORD_COLUMNS = ("_topic", "_partition", "_offset")
"""The columns that name a row's record."""

Matching: TypeAlias = Literal["record", "keys", "row"]


@dataclass(frozen=True)
class Outcome:
    """What one version of a pipeline makes of the records. If it fails, `error` says why."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """The names of the columns, and their types in SQL."""
    rows: Sequence[tuple[Any, ...]] = ()
    keys: tuple[str, ...] = ()
    rejections: Sequence[Rejection] = ()
    error: str = ""


@dataclass(frozen=True)
class RuleChange:
    """How many rows broke a rule before and after. `example` is of the version that has more of them."""

    node: str
    rule: str
    before: int
    after: int
    example: Rejection


@dataclass(frozen=True)
class PipelineDiff:
    """The differences of one pipeline. `before` or `after` is None if that version does not have it.

    `columns` are those that both versions have; `rows` are about these. Columns that only one of them has are
    in `new_columns` and `lost_columns`, and `retyped` has the old and the new type of the others.
    """

    pipeline: str
    before: Outcome | None
    after: Outcome | None
    matched_by: Matching = "row"
    keys: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    new_columns: Mapping[str, str] = field(default_factory=dict)
    lost_columns: Mapping[str, str] = field(default_factory=dict)
    retyped: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rules: Sequence[RuleChange] = ()
    rows: Comparison = field(default_factory=Comparison)

    @property
    def error(self) -> str:
        """Why the new version failed, or nothing."""
        return self.after.error if self.after is not None else ""

    @property
    def is_different(self) -> bool:
        if self.before is None or self.after is None or self.before.error or self.after.error:
            return True
        shapes = (self.new_columns, self.lost_columns, self.retyped, self.rules)
        return any(shapes) or bool(self.rows.added or self.rows.gone or self.rows.changed)


def diff(
    project: Project,
    base: Project,
    names: Sequence[str] = (),
    last: int = DEFAULT_RECORDS,
    spark: SparkSession | None = None,
) -> list[PipelineDiff]:
    """The differences between `base` and `project`, for all pipelines or those named. A given session is not
    stopped. Raises PipelineError if the new version cannot be imported or has no pipeline of a name."""
    with isolated(project.root, base.root):
        definitions = load_definitions(project)
    wanted = [each.name for each in _pipelines(definitions, names)]
    if missing := [name for name in names if name not in wanted]:
        with isolated(project.root, base.root):
            _check_names(missing, discover(base).definitions, definitions)
    records = Records(project, last)
    with session_meanwhile(project, quick_session, spark) as session:
        with isolated(project.root, base.root):
            before = _outcomes_of_base(base, names, wanted, records, session)
        with isolated(project.root, base.root):
            after = outcomes(project, load_definitions(project), names, records, session)
    return [compared(name, before.get(name), after.get(name)) for name in {**after, **before}]


def outcomes(
    project: Project,
    definitions: Definitions,
    names: Sequence[str],
    records: Records,
    spark: SparkSession,
) -> dict[str, Outcome]:
    """The outcome of each pipeline, or of those named. The definitions must be those imported last."""
    return {
        pipeline.name: _outcome(project, definitions, pipeline, records, spark)
        for pipeline in _pipelines(definitions, names)
    }


def compared(name: str, before: Outcome | None, after: Outcome | None) -> PipelineDiff:
    """The differences between two outcomes of a pipeline."""
    if before is None or after is None or before.error or after.error:
        return PipelineDiff(name, before, after)
    columns = tuple(column for column in after.columns if column in before.columns)
    matched_by, keys = _matching(columns, before, after)
    return PipelineDiff(
        name,
        before,
        after,
        matched_by=matched_by,
        keys=keys,
        columns=columns,
        new_columns={key: kind for key, kind in after.columns.items() if key not in columns},
        lost_columns={key: kind for key, kind in before.columns.items() if key not in columns},
        retyped={
            key: (before.columns[key], after.columns[key])
            for key in columns
            if before.columns[key] != after.columns[key]
        },
        rules=_rule_changes(before.rejections, after.rejections),
        rows=compare(
            _selected(before, columns), _selected(after, columns), [columns.index(key) for key in keys]
        ),
    )


def _pipelines(definitions: Definitions, names: Sequence[str]) -> list[Pipeline]:
    return [each for each in definitions.pipelines.values() if not names or each.name in names]


def _check_names(names: Sequence[str], old: Definitions, new: Definitions) -> None:
    """Raise if a name is that of a pipeline in neither version."""
    for name in names:
        if name not in old.pipelines:
            node = order(name, {**old.nodes, **new.nodes})[-1]
            raise GraphError(
                f"{name} is a {node.kind}; only pipelines are compared",
                advice="Name the pipelines that use it, or none for all",
                place=node.place,
            )


def _outcomes_of_base(
    base: Project, names: Sequence[str], wanted: Sequence[str], records: Records, spark: SparkSession
) -> dict[str, Outcome]:
    """The outcomes of the old version. If it cannot be imported, all pipelines of the new one have failed."""
    try:
        definitions = load_definitions(base)
    except PipelineError as error:
        return {name: Outcome(error=_text(error, base)) for name in wanted}
    return outcomes(base, definitions, names, records, spark)


def _outcome(
    project: Project, definitions: Definitions, pipeline: Pipeline, records: Records, spark: SparkSession
) -> Outcome:
    try:
        nodes = order(pipeline.name, definitions.nodes)
        read = {
            source.name: records.frame(source.topics, spark)
            for source in sources_of(pipeline.name, definitions.nodes)
        }
        read |= {
            source.name: records.tables.rows(source, spark, records.last)
            for source in table_sources_of(pipeline.name, definitions.nodes)
        }
        frame = frames.build(
            pipeline,
            definitions,
            project,
            spark,
            streaming=False,
            last=records.last,
            records=read,
            explains=True,
        )
        # How many rows may come is limited by spark.driver.maxResultSize.
        rows = [tuple(row) for row in frame.collect()]
        rejections = read_rejections(frame, nodes, project)
    except PipelineError as error:
        return Outcome(error=_text(error, project))
    except Exception as error:  # users' functions raise anything, in Spark's workers too
        return Outcome(error=_relative(str(explain(str(error), project.root)), project))
    columns = {each.name: each.dataType.simpleString().upper() for each in frame.schema}
    return Outcome(columns, rows, pipeline.keys, rejections)


def _matching(columns: Sequence[str], before: Outcome, after: Outcome) -> tuple[Matching, tuple[str, ...]]:
    if all(name in columns for name in RECORD_COLUMNS):
        return "record", RECORD_COLUMNS
    keys = after.keys or before.keys
    if keys and all(name in columns for name in keys):
        return "keys", keys
    return "row", ()


def _selected(outcome: Outcome, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    names = list(outcome.columns)
    indexes = [names.index(name) for name in columns]
    return [tuple(row[index] for index in indexes) for row in outcome.rows]


def _rule_changes(before: Sequence[Rejection], after: Sequence[Rejection]) -> list[RuleChange]:
    old = {(each.node, each.rule): each for each in before}
    new = {(each.node, each.rule): each for each in after}
    found = []
    for key in {**old, **new}:
        counts = [each[key].count if key in each else 0 for each in (old, new)]
        if counts[0] != counts[1]:
            example = new[key] if counts[1] > counts[0] else old[key]
            found.append(RuleChange(*key, counts[0], counts[1], example))
    return found


def _text(error: PipelineError, project: Project) -> str:
    return _relative(str(error), project)


def _relative(text: str, project: Project) -> str:
    """The text with the paths of the project's files from its folder: that of a base is temporary."""
    return text.replace(f"{project.root}/", "")
