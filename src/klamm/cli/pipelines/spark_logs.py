"""Keeps what Spark says off the terminal: it goes to files in the project's state folder.

    .klamm/logs/spark.log     what Spark logs, in files of limited size
    .klamm/logs/output.log    what else this process and Spark's write to stderr; each run begins it anew

The JVM and its workers inherit the descriptor of stderr from this process. So that descriptor is turned to a
file while Spark may be started, and what this process itself has to say goes to a copy of the old one.
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

from klamm.pipelines.project import Project

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

LOG_FILE_MB = 10
OLD_LOG_FILES = 3
"""Forty megabytes in all: days of warnings, and not a disk."""

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


@contextmanager
def quiet_spark(project: Project) -> Iterator[Project]:
    """The project, with a Spark that is quiet if it is started meanwhile. A running one stays as it is."""
    log = spark_log(project)
    log.parent.mkdir(parents=True, exist_ok=True)
    configuration = log.with_name("log4j2.properties")
    configuration.write_text(_LOG4J.format(log=log, size_mb=LOG_FILE_MB, old_files=OLD_LOG_FILES))
    option = f"-Dlog4j2.configurationFile={configuration.as_uri()}"
    options = " ".join(filter(None, [project.spark.get(JAVA_OPTIONS), option]))
    # Of each mistake in a user's function it logs the stack, which the status has in words.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _stderr_into(log.with_name("output.log")), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield replace(project, spark={**project.spark, JAVA_OPTIONS: options})


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Turn the descriptor of stderr to a file; Python's own stderr goes on to where it went."""
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
    """Whether it is the descriptor that it writes to, and not something that stands in for it."""
    try:
        return bool(stream.fileno() == _STDERR)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
