"""Sends Spark's logs to files in the project's state folder instead of the terminal.

    .klamm/logs/spark.log     Spark's log, in files of limited size
    .klamm/logs/output.log    what else Spark's processes write to stderr; overwritten by each run

The JVM and its workers inherit the descriptor of stderr from this process. That descriptor is therefore
redirected to a file while Spark may be started; this process itself writes to a copy of the old one.

A driver that spark-submit has started keeps the logs where they are: the cluster collects them.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from klamm.pipelines.project import Project
from pyspark_klamm.session import is_submitted

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

LOG_FILE_MB = 10
OLD_LOG_FILES = 3
"""Forty megabytes in all: enough for days of warnings."""

_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {size_mb}MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {old_files}
"""

_STDERR = 2


def spark_log(project: Project) -> Path:
    return project.state / "logs" / "spark.log"


def tell_log(project: Project) -> None:
    """Print where Spark's log is."""
    if not is_submitted():
        typer.echo(f"klamm: Spark's log is in {spark_log(project).parent}", err=True)


@contextmanager
def quiet_spark(project: Project) -> Iterator[Project]:
    """The project, with settings that send Spark's log to a file. A Spark that runs already is not
    changed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        if is_submitted():
            yield project
            return
        with _logs_in_files(project) as quiet:
            yield quiet


@contextmanager
def _logs_in_files(project: Project) -> Iterator[Project]:
    log = spark_log(project)
    log.parent.mkdir(parents=True, exist_ok=True)
    configuration = log.with_name("log4j2.properties")
    configuration.write_text(_LOG4J.format(log=log, size_mb=LOG_FILE_MB, old_files=OLD_LOG_FILES))
    option = f"-Dlog4j2.configurationFile={configuration.as_uri()}"
    options = " ".join(filter(None, [project.spark.get(JAVA_OPTIONS), option]))
    # py4j logs the stack of every mistake in a user's function; the status has its message.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _stderr_into(log.with_name("output.log")):
        yield replace(project, spark={**project.spark, JAVA_OPTIONS: options})


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Redirect the descriptor of stderr to a file; sys.stderr still writes to the old one."""
    before = sys.stderr
    kept = os.dup(_STDERR)
    is_ours = _is_stderr(before)
    before.flush()
    with file.open("w") as taken:
        os.dup2(taken.fileno(), _STDERR)
    stream = os.fdopen(os.dup(kept), "w", buffering=1, encoding="utf-8", errors="replace")
    if is_ours:
        sys.stderr = stream
    try:
        yield
    finally:
        stream.close()
        sys.stderr = before
        os.dup2(kept, _STDERR)
        os.close(kept)


def _is_stderr(stream: object) -> bool:
    """True if the stream writes to the descriptor of stderr."""
    try:
        return bool(stream.fileno() == _STDERR)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
