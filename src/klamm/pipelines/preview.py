"""Shows the rows that a source, a transform or a pipeline returns for the newest records. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.pipelines import frames
from klamm.pipelines.definitions import CARRIED, Definitions
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.failures import explain
from klamm.pipelines.graph import order, sources_of
from klamm.pipelines.newest import Records, quick_session
from klamm.pipelines.project import Project
from klamm.pipelines.rejections import Rejection, read_rejections
from klamm.pipelines.spark_sessions import session_meanwhile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_RECORDS = 20
MOST_ROWS = 1000
"""Most rows to collect: a join or an explode can make many rows of few records."""


class Preview(NamedTuple):
    """Rows as they would be written, with the carried columns last.

    `rejections` has the rules that rows broke, with an example of each. If more than MOST_ROWS were asked
    for, not all rows were looked at.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]
    rejections: Sequence[Rejection] = ()

    def chosen(self, carried: bool = False) -> tuple[list[str], list[list[Any]]]:
        """The columns and rows to show, with or without the carried columns."""
        kept = [index for index, name in enumerate(self.columns) if carried or name not in CARRIED]
        return [self.columns[index] for index in kept], [[row[index] for index in kept] for row in self.rows]


class PreviewFailed(PipelineError):
    """The rows could not be computed. The text has the reason, and the user's line if there is one."""


def preview(
    project: Project, node: str, last: int = DEFAULT_RECORDS, spark: SparkSession | None = None
) -> Preview:
    """The rows of a node for the last `last` records of its sources. A given session is not stopped."""
    definitions = load_definitions(project)
    order(node, definitions.nodes)  # raises for a wrong name, before Spark is started
    with session_meanwhile(project, quick_session, spark) as session:
        return preview_of(project, definitions, node, Records(project, last), session)


def preview_of(
    project: Project, definitions: Definitions, node: str, records: Records, spark: SparkSession
) -> Preview:
    """The rows of a node for these records. The definitions must be those imported last."""
    try:
        nodes = order(node, definitions.nodes)
        frame = frames.build(
            nodes[-1],
            definitions,
            project,
            spark,
            streaming=False,
            last=records.last,
            records={
                source.name: records.frame(source.topics, spark)
                for source in sources_of(node, definitions.nodes)
            },
            explains=True,
        )
        columns = [name for name in frame.columns if name not in CARRIED]
        columns += [name for name in frame.columns if name in CARRIED]
        shown = frame.select(*[f"`{name}`" for name in columns]).limit(MOST_ROWS)
        rows = shown.collect()
        rejections = read_rejections(shown, nodes, project)
    except PipelineError:
        raise
    except Exception as error:  # users' functions raise anything, in Spark's workers too
        failure = explain(str(error), project.root)
        raise PreviewFailed(f"{node} cannot be previewed: {failure.summary}", place=failure.place) from error
    return Preview(columns, [tuple(row) for row in rows], rejections)
