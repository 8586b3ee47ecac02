"""Shows the rows that a source, a transform or a pipeline returns for the newest records. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.pipelines import frames
from klamm.pipelines.definitions import CARRIED
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.failures import explain
from klamm.pipelines.graph import order
from klamm.pipelines.project import Project
from klamm.pipelines.rejections import Rejection, read_rejections
from klamm.pipelines.runner import make_session

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


class PreviewFailed(PipelineError):
    """The rows could not be computed. The text has the reason, and the user's line if there is one."""


def preview(
    project: Project, node: str, last: int = DEFAULT_RECORDS, spark: SparkSession | None = None
) -> Preview:
    """The rows of a node for the last `last` records of its sources. A given session is not stopped."""
    definitions = load_definitions(project)
    nodes = order(node, definitions.nodes)
    session = spark if spark is not None else make_session(project)
    try:
        frame = frames.build(
            nodes[-1], definitions, project, session, streaming=False, last=last, explains=True
        )
        columns = [name for name in frame.columns if name not in CARRIED]
        columns += [name for name in frame.columns if name in CARRIED]
        shown = frame.select(*[f"`{name}`" for name in columns]).limit(MOST_ROWS)
        rows = shown.collect()
        rejections = read_rejections(shown, nodes, project)
    except PipelineError:
        raise
    except Exception as error:
        failure = explain(str(error), project.root)
        raise PreviewFailed(f"{node} cannot be previewed: {failure.summary}", place=failure.place) from error
    finally:
        if spark is None:
            session.stop()
    return Preview(columns, [tuple(row) for row in rows], rejections)
