"""Spark sessions that a command starts and stops, in a process that may have one of its own.

A process has one Spark session. Where one runs already (a notebook, a user's tests), Spark returns that one
instead of a new one, and stopping it would end the work of whoever started it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.pipelines.project import Project


@contextmanager
def session_meanwhile(
    project: Project, make: Callable[[Project], SparkSession], given: SparkSession | None = None
) -> Iterator[SparkSession]:
    """The given session, the one that runs in this process, or one that `make` starts. Only a session that
    was started here is stopped at the end."""
    if given is not None:
        yield given
        return
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    runs_already = SparkContext._active_spark_context is not None
    session = make(project)
    try:
        yield session
    finally:
        if not runs_already:
            # The JVM may be gone already; whoever used the session has been told by an error.
            with suppress(Py4JError, OSError):
                session.stop()
