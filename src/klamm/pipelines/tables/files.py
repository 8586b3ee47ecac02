"""Writes rows as Parquet files into a table's store. Runs in Spark's tasks, on any machine.

A task tells of its files only when all of them are complete, and only what a task that succeeded tells
reaches the driver, which adds the files to the table's log. A file that no commit names is not part of the
table; `upkeep.py` removes it after a while. Its name has the attempt, the batch and the task that wrote it.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from klamm.pipelines.locations import local_path
from klamm.pipelines.syncing import sync
from klamm.pipelines.tables.partitioning import Values, split
from klamm.pipelines.tables.statistics import statistics

TARGET_BYTES = 128 * 1024 * 1024
"""A file is ended when it is this large."""

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Rows are collected in memory until they have this size, then written as one row group. Small row groups
make files larger and slower to read."""

BUFFERED_BYTES = 4 * ROW_GROUP_BYTES
"""What a task keeps in memory for all of its files together; beyond that it writes the largest part."""

FILE_PREFIX = "rows"
"""The names of all files that tasks write begin with this."""

COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1
"""Level 1 takes a third of the time of level 3 and makes files a few percent larger."""

REPORT = (
    "path STRING, bytes BIGINT, rows BIGINT, partition_values STRING, statistics STRING, written_ms BIGINT"
)
"""The columns in which a task tells of its files."""

Mark: TypeAlias = tuple[int | None, int | None]
"""When a file was changed, in nanoseconds, and its size."""

_REPORT_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("partition_values", pa.string()),
        ("statistics", pa.string()),
        ("written_ms", pa.int64()),
    ]
)


class TaskStore(Protocol):
    """What tasks need of the store that a table is in. Paths are below the table's location."""

    def create(self, path: str) -> Any:
        """A new file to write to."""

    def sync(self, path: str) -> None:
        """Make a file survive a power loss."""


@dataclass(frozen=True)
class Target:
    """Where and how tasks write. Spark sends it to the workers, so everything in it can be pickled.

    `label` begins the names of all files. `schema` has the columns of the table in its order, without zones
    other than UTC. Delta's files are without the partition columns, Iceberg's have them
    (`keeps_partition_columns`). `open_store` gets the location and the options; without one it is `Store`.
    """

    location: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    label: str = "0"
    options: Mapping[str, str] = field(default_factory=dict)
    target_bytes: int = TARGET_BYTES
    keeps_partition_columns: bool = False
    open_store: Callable[[str, Mapping[str, str]], TaskStore] | None = None


def write_files(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """Write all rows, then yield one batch that tells of the files (`REPORT`)."""
    from pyspark_klamm.worker_memory import freeze_loaded_objects

    writer = TaskWriter(target)
    try:
        for batch in batches:
            writer.add(batch)
        written = writer.finish()
    except BaseException:
        writer.give_up()
        raise
    freeze_loaded_objects()
    if written:
        yield pa.RecordBatch.from_pylist(written, _REPORT_SCHEMA)


class TaskWriter:
    """Collects rows by partition value and writes them to one file at a time for each value."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._store = (target.open_store or Store)(target.location, target.options)
        left_out = () if target.keeps_partition_columns else target.partition_by
        self._file_schema = pa.schema([each for each in target.schema if each.name not in left_out])
        self._task = f"{_task_number():05d}-{uuid.uuid4().hex[:12]}"
        self._open: dict[Values, OpenFile] = {}
        self.buffered_bytes = 0
        self._files = 0
        self._written: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        rows = pa.Table.from_batches([batch]).cast(self._target.schema)
        keeps = self._target.keeps_partition_columns
        for values, part in split(rows, self._target.partition_by, keeps=keeps):
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = self._new_file(values)
            self.buffered_bytes += file.add(part)
            if file.buffered_bytes >= ROW_GROUP_BYTES:
                self._flush(file)
            if file.size() >= self._target.target_bytes:
                self._end(values)
        while self.buffered_bytes > BUFFERED_BYTES:
            self._flush(max(self._open.values(), key=lambda each: each.buffered_bytes))

    def finish(self) -> list[dict[str, Any]]:
        """End all files; return what there is to tell of them."""
        for values in list(self._open):
            self._end(values)
        return self._written

    def give_up(self) -> None:
        """Close the files of a task that failed. No commit names them."""
        for file in self._open.values():
            file.discard()
        self._open.clear()

    def _new_file(self, values: Values) -> OpenFile:
        name = f"{FILE_PREFIX}-{self._target.label}-{self._task}-{self._files:04d}.{COMPRESSION}.parquet"
        self._files += 1
        return OpenFile(
            self._store, values, values.folder(self._target.partition_by) + name, self._file_schema
        )

    def _flush(self, file: OpenFile) -> None:
        self.buffered_bytes -= file.flush()

    def _end(self, values: Values) -> None:
        file = self._open.pop(values)
        self._flush(file)
        self._written.append(file.end(self._target.partition_by))


class OpenFile:
    """A file of rows that is being written. It exists in the store from its first row group on."""

    def __init__(self, store: TaskStore, values: Values, path: str, schema: pa.Schema) -> None:
        self._store = store
        self._values = values
        self._path = path
        self._schema = schema
        self._parts: list[pa.Table] = []
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[Any] = []  # gets what pyarrow says of the file when it is ended
        self.buffered_bytes = 0

    def add(self, rows: pa.Table) -> int:
        added = rows.nbytes
        self._parts.append(rows)
        self.buffered_bytes += added
        return int(added)

    def size(self) -> int:
        return int(self._sink.tell()) if self._sink is not None else 0

    def flush(self) -> int:
        """Write what is collected as one row group; return how many bytes of memory that gave back."""
        if not self._parts:
            return 0
        if self._writer is None:
            self._sink = self._store.create(self._path)
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression=COMPRESSION,
                compression_level=COMPRESSION_LEVEL,
                metadata_collector=self._metadata,
            )
        rows = pa.concat_tables(self._parts)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._parts.clear()
        given_back, self.buffered_bytes = self.buffered_bytes, 0
        return given_back

    def end(self, partition_by: tuple[str, ...]) -> dict[str, Any]:
        assert self._writer is not None, "a file is opened for its first rows"
        self._writer.close()
        bytes_ = self._sink.tell()
        self._sink.close()
        self._store.sync(self._path)
        (metadata,) = self._metadata
        return {
            "path": self._path,
            "bytes": bytes_,
            "rows": metadata.num_rows,
            "partition_values": self._values.to_json(partition_by),
            "statistics": statistics(metadata, self._schema),
            "written_ms": int(time.time() * 1000),
        }

    def discard(self) -> None:
        if self._sink is not None:
            self._sink.close()


class Store:
    """The files below a table's location: on a disk of this machine, or in a store that deltalake knows (S3,
    GCS, Azure, HDFS), for which no jar is needed, neither here nor in the JVM."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        from deltalake.fs import DeltaStorageHandler

        self._root = local_path(location)
        self.system = (
            PyFileSystem(DeltaStorageHandler(location, options=dict(options)))
            if self._root is None
            else SubTreeFileSystem(str(self._root), LocalFileSystem())
        )
        """All files, with paths below the table's location."""

    def create(self, path: str) -> Any:
        """A new file to write to."""
        if self._root is not None:
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        return self.system.open_output_stream(path)

    def sync(self, path: str) -> None:
        """Make a file survive a power loss. Remote stores keep files once they are closed."""
        if self._root is None:
            return
        file = self._root / path
        for each in (file, *[folder for folder in file.parents if folder.is_relative_to(self._root)]):
            sync(each)

    def exists(self, path: str) -> bool:
        return self.mark(path) is not None

    def mark(self, path: str) -> Mark | None:
        """What tells a file from another one of the same name; None if there is none."""
        found = self.system.get_file_info(path)
        return None if found.type == FileType.NotFound else (found.mtime_ns, found.size)

    def has_files(self) -> bool:
        """True if there is any file, except those of batches that were not committed."""
        found = self.system.get_file_info(FileSelector("", allow_not_found=True, recursive=True))
        return any(
            each.type == FileType.File and not each.base_name.startswith(f"{FILE_PREFIX}-") for each in found
        )

    def read_text(self, path: str) -> str:
        with self.system.open_input_stream(path) as file:
            return bytes(file.read()).decode()

    def write_text(self, path: str, text: str) -> None:
        """Write a file. Object stores and HDFS show it when it is closed, as a whole."""
        data = text.encode()
        if self._root is not None:
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        # Through a buffer that holds all: without one, pyarrow hands deltalake's streams what they refuse.
        with self.system.open_output_stream(path, buffer_size=len(data) + 1) as file:
            file.write(data)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted; none if there is no such folder."""
        found = self.system.get_file_info(FileSelector(folder, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == FileType.File)

    def delete(self, path: str) -> None:
        self.system.delete_file(path)

    def delete_folder(self, path: str) -> None:
        """Remove a folder with everything in it. Does nothing if it does not exist."""
        if self._root is not None:
            shutil.rmtree(self._root / path, ignore_errors=True)
            return
        for found in self.system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True)):
            if found.type == FileType.File:
                self.system.delete_file(found.path)


def _task_number() -> int:
    """The number of Spark's task; 0 outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())
