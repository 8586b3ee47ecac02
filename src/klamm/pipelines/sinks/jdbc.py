"""Writes rows to a table of a database, each batch exactly once.

Spark's tasks write a batch into a staging table. Then the driver moves the batch in one transaction: its rows
into the table, its number into `klamm_batches`. A batch whose number is there is not moved again. With the
number goes a digest of the batch's end offsets: a batch with the same number but other offsets comes from
another checkpoint, and is an error. Every run of a batch has a new staging table, since tasks of a run that
was given up may still write; the next run of the pipeline drops the old ones.
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
"""How many batch numbers are kept per pipeline. Spark runs at most the last batch again."""

_LONGEST_OWNER = 200
_LONGEST_PREFIX = 40
"""With the random digits, short enough for all databases: PostgreSQL silently cuts names at 63 characters."""
_RANDOM_DIGITS = 8
_DIGEST_DIGITS = 8


class DatabaseFailed(PipelineError):
    """A database cannot be reached, or refuses a statement."""


class JdbcWriter:
    """The function that `foreachBatch` calls for one pipeline. In "complete" mode it replaces all rows."""

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
        # With a digest: different names can become the same one when their characters are replaced.
        self._prefix = f"klamm_{plain[: _LONGEST_PREFIX - _DIGEST_DIGITS]}_{_digest(self._owner)}_"
        self._dialect: Any = None
        self._cleaned = False

    def has(self, spark: SparkSession, batch: int) -> bool:
        """True if a batch was moved."""
        with self._connection(spark) as connection:
            self._prepare(connection)
            return self._is_moved(connection, batch)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        spark = frame.sparkSession
        if self.has(spark, batch):
            self._checkpoint.update_state(frame)
            return
        staging = self._prefix + uuid.uuid4().hex[:_RANDOM_DIGITS]
        written = self._write_counted(frame, staging)
        # Creates the table if needed, with Spark's column types in the database's dialect.
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
        """Move all rows and the batch's number, or nothing, in one transaction."""
        names = ", ".join(str(self._dialect.quoteIdentifier(name)) for name in columns)
        if self._mode == "complete":
            _run(connection, f"DELETE FROM {self._sink.table}")
        moved = _run(connection, f"INSERT INTO {self._sink.table} ({names}) SELECT {names} FROM {staging}")
        if moved != written:
            # A task whose commit went unnoticed has written its rows twice.
            raise DatabaseFailed(
                f"batch {batch} has {written} rows, but {moved} were written for {self._sink.table}",
                advice="Nothing was moved: start the pipeline again, and it writes the batch again",
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
        """Once per run: create the table of batch numbers, and drop staging tables of killed runs."""
        if self._cleaned:
            return
        names = []
        # Only in the default schema: other schemas may have tables of the same names.
        here = connection.getCatalog(), connection.getSchema()
        tables = connection.getMetaData().getTables(*here, None, None)
        while tables.next():
            names.append(str(tables.getString("TABLE_NAME")))
        left_over = re.compile(re.escape(self._prefix) + rf"[0-9a-f]{{{_RANDOM_DIGITS}}}", re.IGNORECASE)
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
        """True if a batch was moved before. Raises if it is not the last one, or has other offsets."""
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
                f"{self._checkpoint.location} is at batch {batch}: it was deleted, or is an old copy",
                advice="Restore the checkpoint. To write the table from the beginning, delete its rows, and "
                f"those of the pipeline {self._owner} in {BATCHES_TABLE}",
            )
        return bool(moved)

    def _ends(self, batch: int) -> str:
        return _digest(json.dumps(self._checkpoint.ends(batch), sort_keys=True))

    @contextmanager
    def _connection(self, spark: SparkSession) -> Iterator[Any]:
        """A connection without auto-commit. Spark opens it, so that it finds the same drivers as its
        tasks."""
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
                advice="Is it running, and are the sink's url and properties right?",
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
    """Run a statement; return how many rows it changed."""
    statement = connection.prepareStatement(sql)
    try:
        _fill(statement, *values)
        return int(statement.executeUpdate())
    except Exception as error:
        raise DatabaseFailed(f"the database refuses `{sql}`: {_reason(error)}") from error
    finally:
        statement.close()


def _at_most(text: str, length: int) -> str:
    """The text, cut to `length` with a digest at its end if it is longer."""
    return text if len(text) <= length else f"{text[: length - _DIGEST_DIGITS - 1]}_{_digest(text)}"


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
