"""Rows into a table of a database, each batch exactly once.

Spark's tasks write a batch into a table of its own. Then the driver moves it in one transaction: the rows
into the table, the batch's number into `klamm_batches`. A batch whose number is there has been moved, and is
not moved again. Beside the number is a digest of where the batch ends: one of the same number that reads
something else comes from another checkpoint, and is refused. Each try has a table of its own, as tasks of one
that was given up may still write; what is left of those is dropped by the next run.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import JdbcSink, Mode
from klamm.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES_TABLE = "klamm_batches"
REMEMBERED_BATCHES = 100
"""How many numbers of a pipeline are kept: Spark runs the last batch again at most."""

_LONGEST_OWNER = 200
_LONGEST_PREFIX = 40
"""With the digits of the attempt, short enough for databases: PostgreSQL takes 63 letters, and cuts off the
rest without a word."""
_ATTEMPT_DIGITS = 8
_DIGEST_DIGITS = 8


class DatabaseFailed(PipelineError):
    """A database cannot be reached, or refuses what it is told."""


class JdbcWriter:
    """What `foreachBatch` calls for one pipeline. In the mode "complete" the table is replaced each time."""

    def __init__(
        self,
        sink: JdbcSink,
        project: str,
        pipeline: str,
        attempt: int,
        mode: Mode,
        checkpoint: Checkpoint,
        on_rows: Callable[[int, int], None],
    ) -> None:
        self._sink = sink
        self._owner = _at_most(f"{project}.{pipeline}", _LONGEST_OWNER)
        self._attempt = attempt
        self._mode = mode
        self._checkpoint = checkpoint
        self._on_rows = on_rows
        plain = re.sub(r"\W", "_", self._owner, flags=re.ASCII).lower()
        # With a digest: other names can look the same with their dots and letters changed.
        self._prefix = f"klamm_{plain[: _LONGEST_PREFIX - _DIGEST_DIGITS]}_{_digest(self._owner)}_"
        self._dialect: Any = None
        self._cleaned = False

    def has(self, spark: SparkSession, batch: int) -> bool:
        """Whether a batch has been moved."""
        with self._connection(spark) as connection:
            self._prepare(connection)
            return self._is_moved(connection, batch)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        spark = frame.sparkSession
        if self.has(spark, batch):
            if self._checkpoint.keeps_state():
                frame.write.format("noop").mode("overwrite").save()
            return
        staging = self._prefix + uuid.uuid4().hex[:_ATTEMPT_DIGITS]
        written = self._write_counted(frame, staging)
        # Made like the batch's own table: with Spark's idea of the types, in the database's dialect.
        self._write(spark.createDataFrame([], frame.schema), self._sink.table, "append")
        with self._connection(spark) as connection:
            self._move(connection, staging, frame.columns, batch, written)
            _run(connection, f"DROP TABLE {staging}")
            connection.commit()
        self._on_rows(batch, written)

    def _write_counted(self, frame: DataFrame, table: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation = Observation()
        self._write(frame.observe(observation, F.count(F.lit(1)).alias("rows")), table, "errorifexists")
        return int(observation.get["rows"])

    def _write(self, frame: DataFrame, table: str, mode: str) -> None:
        frame.write.jdbc(self._sink.url, table, mode=mode, properties=dict(self._sink.properties))

    def _move(self, connection: Any, staging: str, columns: list[str], batch: int, written: int) -> None:
        """The transaction: all rows and the batch's number, or nothing."""
        names = ", ".join(str(self._dialect.quoteIdentifier(name)) for name in columns)
        if self._mode == "complete":
            _run(connection, f"DELETE FROM {self._sink.table}")
        moved = _run(connection, f"INSERT INTO {self._sink.table} ({names}) SELECT {names} FROM {staging}")
        if moved != written:
            # A task whose commit was not heard of has written its rows a second time.
            raise DatabaseFailed(
                f"batch {batch} has {written} rows, but {moved} were written for {self._sink.table}",
                advice="Nothing was moved: start the pipeline again, and the batch is written anew",
            )
        _run(
            connection,
            f"INSERT INTO {BATCHES_TABLE} (pipeline, generation, batch, ends) VALUES (?, ?, ?, ?)",
            self._owner,
            self._attempt,
            batch,
            self._ends(batch),
        )
        _run(
            connection,
            f"DELETE FROM {BATCHES_TABLE} WHERE pipeline = ? AND generation = ? AND batch < ?",
            self._owner,
            self._attempt,
            batch - REMEMBERED_BATCHES,
        )
        connection.commit()

    def _prepare(self, connection: Any) -> None:
        """Once per run: make the table of batches, and drop what killed runs have left."""
        if self._cleaned:
            return
        names = []
        # Of the schema that names without one are in: others may have tables of the same names.
        here = connection.getCatalog(), connection.getSchema()
        tables = connection.getMetaData().getTables(*here, None, None)
        while tables.next():
            names.append(str(tables.getString("TABLE_NAME")))
        left_over = re.compile(re.escape(self._prefix) + rf"[0-9a-f]{{{_ATTEMPT_DIGITS}}}", re.IGNORECASE)
        for name in names:
            if left_over.fullmatch(name):
                _run(connection, f"DROP TABLE {name}")
        if BATCHES_TABLE not in map(str.lower, names):
            _run(
                connection,
                f"CREATE TABLE {BATCHES_TABLE} (pipeline VARCHAR({_LONGEST_OWNER}) NOT NULL, "
                "generation INTEGER NOT NULL, batch INTEGER NOT NULL, "
                f"ends VARCHAR({_DIGEST_DIGITS}) NOT NULL, "
                "PRIMARY KEY (pipeline, generation, batch))",
            )
        connection.commit()
        self._cleaned = True

    def _is_moved(self, connection: Any, batch: int) -> bool:
        """Whether a batch was moved before. One that is not the last, or reads something else, is refused."""
        statement = connection.prepareStatement(
            f"SELECT batch, ends FROM {BATCHES_TABLE} WHERE pipeline = ? AND generation = ? AND batch >= ?"
        )
        moved: dict[int, str] = {}
        try:
            _fill(statement, self._owner, self._attempt, batch)
            found = statement.executeQuery()
            while found.next():
                moved[int(found.getInt(1))] = str(found.getString(2))
        finally:
            statement.close()
        connection.commit()
        if moved and moved != {batch: self._ends(batch)}:
            raise DatabaseFailed(
                f"the table {self._sink.table} is at batch {max(moved)}, but the checkpoint "
                f"{self._checkpoint.location} is about to write batch {batch}: it was removed, or is old",
                advice="Put the checkpoint back. To write the table from the beginning, delete its rows, and "
                f"those of the pipeline {self._owner} in {BATCHES_TABLE}",
            )
        return bool(moved)

    def _ends(self, batch: int) -> str:
        return _digest(json.dumps(self._checkpoint.ends(batch), sort_keys=True))

    @contextmanager
    def _connection(self, spark: SparkSession) -> Iterator[Any]:
        """A connection without automatic commits. Spark makes it, so that it finds drivers where tasks do."""
        jvm: Any = spark._jvm
        options = {"url": self._sink.url, "dbtable": self._sink.table, **self._sink.properties}
        parsed = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(
            jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(options)
        )
        self._dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._sink.url)
        try:
            connection = self._dialect.createConnectionFactory(parsed).apply(-1)
        except Exception as error:
            raise DatabaseFailed(
                f"the database of {self._sink.table} cannot be reached: {_reason(error)}",
                advice="Is it running, and are url and properties of the sink right?",
            ) from error
        try:
            connection.setAutoCommit(False)
            yield connection
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()


def _run(connection: Any, sql: str, *values: str | int) -> int:
    """One statement; how many rows it changed."""
    statement = connection.prepareStatement(sql)
    try:
        _fill(statement, *values)
        return int(statement.executeUpdate())
    except Exception as error:
        raise DatabaseFailed(f"the database refuses `{sql}`: {_reason(error)}") from error
    finally:
        statement.close()


def _at_most(text: str, letters: int) -> str:
    """The text, or as much of it as goes with a digest of all of it."""
    return text if len(text) <= letters else f"{text[: letters - _DIGEST_DIGITS - 1]}_{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def _fill(statement: Any, *values: str | int) -> None:
    for position, value in enumerate(values, 1):
        if isinstance(value, int):
            statement.setInt(position, value)
        else:
            statement.setString(position, value)


def _reason(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.getMessage()) if java is not None else str(error)
