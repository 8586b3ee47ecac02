"""A Spark session that stays, and what is given to each use of it: a session of its own.

Functions of users may register views and functions, set options, cache tables and change the environment.
None of that may reach the next use. A new session has views, functions and options of its own; what all
sessions of a process share is undone here.

Python workers are reused. Functions are sent to them by value, so that they get the present code; a module of
the project that a function imports in a worker is forgotten there after each task
(`pyspark_klamm/worker_modules.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from klamm.pipelines.discovery import path_put_back
from klamm.pipelines.newest import quick_session
from klamm.pipelines.project import Project
from pyspark_klamm.worker_modules import FORGOTTEN_FOLDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LastingSession:
    """The session of `klamm pipeline dev`. All methods but `cancel` belong to one thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context: Any = spark.sparkContext

    @classmethod
    def start(cls, project: Project) -> LastingSession:
        folders = os.pathsep.join(dict.fromkeys((str(project.root), str(project.pipelines))))
        settings = {**project.spark, f"spark.executorEnv.{FORGOTTEN_FOLDERS}": folders}
        return cls(quick_session(replace(project, spark=settings)))

    @contextmanager
    def fresh(self, group: str, environment: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        """A session without anything of earlier uses. `group` is what its jobs are cancelled by;
        `environment` holds meanwhile."""
        session = self._spark.newSession()
        variables, folder = dict(os.environ), os.getcwd()
        if environment is not None:
            _set_environment(environment)
        self._let_count(session)
        self._context.setJobGroup(group, group)
        try:
            with path_put_back():
                yield session
        finally:
            os.chdir(folder)
            _set_environment(variables)
            with suppress(Py4JError, OSError):  # the JVM may be gone
                self._undo(session)
            self._let_count(self._spark)

    def warm_up(self) -> None:
        """Start a Python worker, so that the first function of a user does not wait for it. If that fails, a
        function that needs one will say so."""
        from pyspark.errors import PySparkException
        from pyspark.sql.functions import udf
        from pyspark.sql.types import LongType

        with suppress(PySparkException), self.fresh("klamm-dev-start") as spark:
            spark.range(1).select(udf(lambda number: number, LongType())("id")).collect()

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group that run now. Called from any thread."""
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(group)

    def stop(self) -> None:
        with suppress(Py4JError, OSError):
            self._spark.stop()

    def _let_count(self, session: SparkSession) -> None:
        """Make it the one that functions find without being given it."""
        kinds: Any = type(session)
        java: Any = session._jsparkSession
        kinds._instantiatedSession = kinds._activeSession = session
        with suppress(Py4JError, OSError):
            classes = kinds._get_j_spark_session_class(self._context._jvm)
            classes.setDefaultSession(java)
            classes.setActiveSession(java)

    def _undo(self, session: SparkSession) -> None:
        session.catalog.clearCache()
        for kept in list(self._context._jsc.getPersistentRDDs().values()):
            kept.unpersist()
        shared = session._jsparkSession.sharedState().globalTempViewManager()
        views = shared.listViewNames("*").iterator()
        for name in list(iter(lambda: views.next() if views.hasNext() else None, None)):
            session.catalog.dropGlobalTempView(name)
        for name in ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description"):
            self._context.setLocalProperty(name, None)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
