"""The data source with which Spark reads tables, as a stream or as a snapshot, without a jar.

Spark makes an instance in a Python process for each call, and pickles it to other processes. So it has
options only. Offsets in Spark's checkpoint have the form of topics, {"table:orders": {"version": 18, …}}: see
`appended.py`. A batch query reads the newest version when it is planned. A streaming query plans its batch
queries anew for every batch, so that joins see the newest snapshot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType

from klamm.pipelines.positions import Position
from klamm.pipelines.tables.appended import (
    Limits,
    Place,
    TableFile,
    TableLog,
    check_readable,
    existing,
    snapshot_files,
)
from klamm.pipelines.tables.reading import grouped, read_files, read_last
from klamm.pipelines.tables.table import Table

FORMAT = "klamm_table"

MAX_FILES = 1000
MAX_BYTES = 1024 * 1024 * 1024
"""What a batch reads at most, unless the source says otherwise. A snapshot can be large, and a batch that
runs again reads all of it again."""

LOOKED_AHEAD = 1000
"""How many versions after a batch are looked at for the lag. A longer lag is told as theirs: every look into
a log of 10,000 versions takes minutes in an object store, and there is one for each batch."""

IDLE_WAIT_S = 0.2
"""How long to wait for a new version before answering Spark, which asks again at once. Stopping a query waits
as long."""

IDLE_GAP_S = 0.05
"""An idle Spark asks again within 15 ms. A longer gap means that it was busy."""


@dataclass(frozen=True)
class TableOptions:
    """What to read. `key` names the table in positions; `storage` has the keys of its store."""

    location: str
    key: str
    storage: Mapping[str, str]
    start: Position
    limits: Limits
    skips_changes: bool = False
    last: int | None = None
    version: int | None = None
    """Which version a snapshot has; None is the newest."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableOptions:
        """From the options of a query; Spark does not keep the capital letters of their names."""
        given = {name.lower(): value for name, value in options.items()}
        last, version = given.get("last"), given.get("version")
        return cls(
            given["location"],
            given["key"],
            json.loads(given.get(STORAGE.lower(), "{}")),
            json.loads(given.get("start", "{}")),
            Limits(
                int(given.get("maxfilespertrigger", MAX_FILES)),
                int(given.get("maxbytespertrigger", MAX_BYTES)),
            ),
            given.get("skipchangecommits", "false").lower() == "true",
            None if last is None else int(last),
            None if version is None else int(version),
        )

    def table(self) -> Table:
        return Table(self.location, self.storage)


STORAGE = "storageSecrets"
"""The option with the keys of the store, as JSON. Spark does not show options with such a name."""


@dataclass
class FilesPartition(InputPartition):
    """What one task reads."""

    files: tuple[TableFile, ...]


class TableDataSource(DataSource):
    """Delta tables, for Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = TableOptions.of(self.options)
        return spark_schema(options.table(), options.version)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SnapshotReader(TableOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_klamm.hang_ups import end_quietly

        end_quietly()
        return TableStreamReader(TableOptions.of(self.options), schema)


class SnapshotReader(DataSourceReader):
    """Reads one version, or its last rows: the newest version when the query is planned, unless one is
    named."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        found = version_of(self._options.table(), self._options.version)
        check_readable(found, self._options.location)
        files = snapshot_files(found)
        groups = grouped(files) if self._options.last is None else [tuple(files)]
        return [FilesPartition(group) for group in groups if group]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        if not isinstance(partition, FilesPartition):  # without partitions, Spark adds one of its own
            return iter(())
        if options.last is not None:
            return read_last(partition.files, options.last, options.location, options.storage, self._schema)
        return read_files(partition.files, options.location, options.storage, self._schema)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each version's new rows once. On the driver it runs in a process of its own as long as its query
    runs; tasks get copies that only read."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._log: TableLog | None = None
        self._last_version: int | None = None
        """The end of an AvailableNow query."""
        self._latest: Place | None = None
        self._answered_at = float("-inf")

    def initialOffset(self) -> Position:
        return self._options.start

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.limits.bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_version = existing(self._options.table()).version()

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        place = Place.of(start, self._options.key)
        limits = None if isinstance(limit, ReadAllAvailable) else self._options.limits
        is_idle = time.monotonic() - self._answered_at < IDLE_GAP_S and self._last_version is None
        try:
            end = self._end(place, limits)
            if end == place and is_idle:
                time.sleep(IDLE_WAIT_S)
                end = self._end(place, limits)
            return end.to_position(self._options.key)
        finally:
            self._answered_at = time.monotonic()

    def reportLatestOffset(self) -> Position | None:
        return None if self._latest is None else self._latest.to_position(self._options.key)

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        key = self._options.key
        first, last = Place.of(start, key), Place.of(end, key)
        self._reading().newest_version(first)  # raises if this is another table
        files = self._reading().files_between(first, last)
        return [FilesPartition(group) for group in grouped(files)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, FilesPartition)
        options = self._options
        return read_files(partition.files, options.location, options.storage, self._schema)

    def _end(self, place: Place, limits: Limits | None) -> Place:
        log = self._reading()
        newest = log.newest_version(place)
        if self._last_version is not None:
            newest = min(newest, self._last_version)
        end = log.advance(place, newest, limits)
        known = min(newest, end.version + LOOKED_AHEAD)
        self._latest = end if limits is None else log.advance(place, known)
        return end

    def _reading(self) -> TableLog:
        if self._log is None:
            self._log = TableLog(self._options.table(), skips_changes=self._options.skips_changes)
        return self._log


def version_of(table: Table, version: int | None) -> DeltaTable:
    """A version of a table, or the newest one."""
    return existing(table) if version is None else table.at(version)


def spark_schema(table: Table, version: int | None = None) -> StructType:
    """The columns of a table. Every column may be null: files from before a column was added lack it."""
    found = StructType.fromJson(json.loads(version_of(table, version).schema().to_json()))
    return StructType([StructField(each.name, each.dataType, True) for each in found])
