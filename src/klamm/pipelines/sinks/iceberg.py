"""Opens the tables of `iceberg(…)`. pyiceberg is imported only if a pipeline writes to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.pipelines.definitions import IcebergSink
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from klamm.pipelines.iceberg_tables.table import IcebergTable


class PyicebergMissing(PipelineError):
    """A sink needs pyiceberg, which is not installed."""


def open_iceberg(project: Project, sink: IcebergSink) -> IcebergTable:
    """The table of a sink, which need not exist yet."""
    try:
        from klamm.pipelines.iceberg_tables.table import IcebergTable
    except ModuleNotFoundError as error:
        raise PyicebergMissing(
            f"the table {sink.table} needs pyiceberg: {error}", advice="pip install 'klamm[iceberg]'"
        ) from None
    return IcebergTable(sink.table, project.iceberg.get(sink.catalog, {}))
