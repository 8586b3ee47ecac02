"""Which files of a table a stream reads: each row once, from the log.

A stream begins with a snapshot of one version, or after it, and then reads the files that each later version
appends. A place says how far it has come; the same two places always give the same files.

Versions that change no row (merged files, vacuum, new columns) give no files. Versions that remove or rewrite
rows cannot be read as appended rows: the stream stops before them with an error, or skips them if asked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import TABLE_KEYS, Position
from klamm.pipelines.tables.files import Mark, Store
from klamm.pipelines.tables.partitioning import as_text
from klamm.pipelines.tables.table import METADATA, Table
from klamm.pipelines.tables.versions import in_words

QUIET_VERSIONS = 20
"""After so many versions without new rows a stream moves on with an empty batch: the log forgets old versions
after a month, and a stream must not wait at one of them. Fewer empty batches disturb less."""

KNOWN_COMMITS = 3000
"""How many parsed versions are kept, so that each is read once: those of a batch between planning it and
reading it, and those after it that the lag was counted from."""

_RESTORE = "RESTORE"

ROW_BYTES = 100
"""The size of a row in files whose writer did not count the rows."""

READABLE_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Delta's reader features that do not change how a Parquet file is read."""


class CannotRead(PipelineError):
    """A table, or a version of it, cannot be read, or not as a stream."""


class NoTable(CannotRead):
    """There is no table. It may come, or come back: a disk may not be mounted yet."""


class TableFile(NamedTuple):
    """A file to read. `values` are those of the partition columns, which are not in the file."""

    path: str
    bytes: int
    rows: int
    values: Mapping[str, str | None]
    version: int
    """The version that added the file, or whose snapshot has it."""
    written_ms: int = 0


class Place(NamedTuple):
    """How far a stream has come: `version` is the next one to read.

    While `version` is still `snapshot`, that version is read as a whole, and `files` of its files have been
    read. `rows` counts all rows so far, so that a distance can be told in rows. `table_id` tells a table from
    another one that was made at the same location later. All numbers only grow.
    """

    table_id: int
    snapshot: int
    files: int
    version: int
    rows: int

    @property
    def is_in_snapshot(self) -> bool:
        return self.version == self.snapshot

    def to_position(self, key: str) -> Position:
        return {key: dict(zip(TABLE_KEYS, self, strict=True))}

    @classmethod
    def of(cls, position: Position, key: str) -> Place:
        numbers = position.get(key, {})
        if missing := [name for name in TABLE_KEYS if name not in numbers]:
            raise CannotRead(
                f"the checkpoint has no {', '.join(missing)} of {key}: it is of another table",
                advice="Replay the pipeline from earliest: klamm pipeline replay NAME --from earliest",
            )
        return cls(*[numbers[name] for name in TABLE_KEYS])


class Limits(NamedTuple):
    """How much one batch reads at most. At least one file, or one version, is always read."""

    files: int
    bytes: int


class Appended(NamedTuple):
    """What a version did: the files that it appended, or in words how it changed rows that were there."""

    files: tuple[TableFile, ...] = ()
    change: str = ""


class TableLog:
    """The log of one table, as a stream reads it."""

    def __init__(self, table: Table, *, skips_changes: bool = False) -> None:
        self._table = table
        self._skips_changes = skips_changes
        self._store = Store(table.location, table.options)
        self._newest: int | None = None
        self._mark: Mark | None = None
        """Of the commit of the newest version: another table at this location has another one."""
        self._commits: dict[int, Appended] = {}
        self._snapshot: tuple[int, list[TableFile]] | None = None

    def first_place(self, start: str) -> Place:
        """Where a stream begins: with the snapshot of the newest version ("earliest"), or after it
        ("latest")."""
        newest = self._open()
        version = newest.version()
        return Place(table_id(newest), version, 0, version if start == "earliest" else version + 1, 0)

    def newest_version(self, place: Place) -> int:
        """The newest version. Raises if the place is not one of this table, also when the table was removed
        or made anew since the last call."""
        newest = self._newest
        if newest is None or self._store.mark(_name(newest)) != self._mark:
            newest = self._look_anew(place)
        # One request for each new version, and two when there is none.
        while (mark := self._store.mark(_name(newest + 1))) is not None:
            newest, self._mark = newest + 1, mark
        self._newest = newest
        return newest

    def advance(self, start: Place, newest: int, limits: Limits | None = None) -> Place:
        """The end of the next batch: up to the version `newest`, as far as the limits allow. It is `start` if
        there is nothing to read. Raises CannotRead if the next version is not one that appends."""
        place = start
        files = bytes_ = 0
        if place.is_in_snapshot:
            there = self.snapshot(place.snapshot)
            taken = _first(there[place.files :], limits)
            files, bytes_ = len(taken), sum(each.bytes for each in taken)
            place = place._replace(files=place.files + files, rows=place.rows + _rows(taken))
            if place.files < len(there):
                return place
            place = place._replace(version=place.snapshot + 1)
        while place.version <= newest:
            appended = self.commit(place.version)
            if appended.change and not self._skips_changes:
                if files:
                    break  # the error comes when all before it is read
                raise self._refusal(place.version, appended.change)
            size = sum(each.bytes for each in appended.files)
            is_too_much = limits is not None and (
                files + len(appended.files) > limits.files or bytes_ + size > limits.bytes
            )
            if files and appended.files and is_too_much:
                break
            files, bytes_ = files + len(appended.files), bytes_ + size
            place = place._replace(version=place.version + 1, rows=place.rows + _rows(appended.files))
        return place if files or place.version - start.version >= QUIET_VERSIONS else start

    def files_between(self, start: Place, end: Place) -> list[TableFile]:
        """The files of a batch."""
        found: list[TableFile] = []
        first = start.version
        if start.is_in_snapshot:
            found += self.snapshot(start.snapshot)[start.files : end.files]
            first += 1
        for version in range(first, end.version):
            appended = self.commit(version)
            if appended.change and not self._skips_changes:
                raise self._refusal(version, appended.change)
            found += appended.files
        for version in [each for each in self._commits if each < start.version]:
            del self._commits[version]
        return found

    def commit(self, version: int) -> Appended:
        """What a version did."""
        found = self._commits.get(version)
        if found is None:
            try:
                text = self._store.read_text(_name(version))
            except FileNotFoundError:
                raise CannotRead(
                    f"version {version} of the table {self._table.location} is no longer in its log, which "
                    "keeps a month: its rows cannot be read as a stream",
                    advice="Replay the pipeline that reads it from earliest",
                ) from None
            found = parse_commit(text, version)
            while len(self._commits) >= KNOWN_COMMITS:
                self._commits.pop(next(iter(self._commits)))
            self._commits[version] = found
        return found

    def snapshot(self, version: int) -> list[TableFile]:
        """All files of a version, always in the same order."""
        if self._snapshot is None or self._snapshot[0] != version:
            try:
                at = self._table.at(version)
            except DeltaError as error:
                raise CannotRead(
                    f"version {version} of the table {self._table.location} cannot be read any more: {error}",
                    advice="Replay the pipeline that reads it from earliest",
                ) from None
            check_readable(at, self._table.location)
            self._snapshot = (version, snapshot_files(at))
        return self._snapshot[1]

    def _look_anew(self, place: Place) -> int:
        """The newest version, by opening the table. Raises if the place is not one of this table."""
        self._table = Table(self._table.location, self._table.options)
        newest = self._open()
        if table_id(newest) != place.table_id or newest.version() < place.version - 1:
            raise CannotRead(
                f"the table {self._table.location} was made anew since it was last read",
                advice="Replay the pipeline that reads it from earliest",
            )
        self._commits.clear()
        self._snapshot = None
        self._mark = self._store.mark(_name(newest.version()))
        return newest.version()

    def _open(self) -> DeltaTable:
        newest = existing(self._table)
        check_readable(newest, self._table.location)
        return newest

    def _refusal(self, version: int, change: str) -> CannotRead:
        return CannotRead(
            f"version {version} of the table {self._table.location} ({change}) removed or rewrote rows: it "
            "cannot be read as a stream of new rows",
            advice="Replay the pipeline that reads it from earliest, read the table with snapshot=True, or "
            'leave such versions out with read={"skipChangeCommits": True}',
        )


def existing(table: Table) -> DeltaTable:
    """The newest version of a table. Raises CannotRead if there is no table."""
    newest = table.newest()
    if newest is None:
        raise NoTable(
            f"there is no table at {table.location}", advice="Run the pipeline that writes it first"
        )
    return newest


def check_readable(table: DeltaTable, location: str) -> None:
    """Raise if the rows of the table are not simply those of its files."""
    protocol = table.protocol()
    unknown = sorted(set(protocol.reader_features or ()) - READABLE_FEATURES)
    if protocol.min_reader_version == 2:  # the version of column mapping, before there were features
        unknown = ["columnMapping"]
    if unknown:
        raise CannotRead(
            f"the table {location} has {', '.join(unknown)}, which Klamm cannot read",
            advice="Let its writer turn that off, or copy its rows to another table",
        )


def snapshot_files(table: DeltaTable) -> list[TableFile]:
    """The files of the version, ordered by path."""
    prefix = "partition."
    found = []
    for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        values = {name.removeprefix(prefix): as_text(each[name]) for name in each if name.startswith(prefix)}
        counted = each.get("num_records")
        rows = each["size_bytes"] // ROW_BYTES if counted is None else counted
        path = unquote(each["path"])
        changed_ms = int(each["modification_time"])
        found.append(TableFile(path, each["size_bytes"], rows, values, table.version(), changed_ms))
    return sorted(found, key=lambda file: file.path)


def parse_commit(text: str, version: int) -> Appended:
    """What a commit did, from its file in the log."""
    files: list[TableFile] = []
    about: Mapping[str, Any] = {}
    removes = False
    for line in text.splitlines():
        action = json.loads(line)
        if "add" in action and action["add"]["dataChange"]:
            files.append(_added(action["add"], version))
        elif "remove" in action:
            removes = removes or bool(action["remove"].get("dataChange", True))
        elif "commitInfo" in action:
            about = action["commitInfo"]
    # A restore may only add: rows that were there before, and that a stream has read then.
    if removes or about.get("operation") == _RESTORE:
        return Appended(change=in_words(str(about.get("operation", "")), about.get(METADATA) or {}))
    return Appended(tuple(sorted(files, key=lambda file: file.path)))


def table_id(table: DeltaTable) -> int:
    """The table's id as a number: positions have numbers only."""
    return zlib.crc32(str(table.metadata().id).encode())


def _added(add: Mapping[str, Any], version: int) -> TableFile:
    counted = json.loads(add.get("stats") or "{}").get("numRecords")
    rows = int(add["size"]) // ROW_BYTES if counted is None else int(counted)
    values = dict(add.get("partitionValues") or {})
    changed_ms = int(add["modificationTime"])
    return TableFile(unquote(add["path"]), int(add["size"]), rows, values, version, changed_ms)


def _first(files: Sequence[TableFile], limits: Limits | None) -> Sequence[TableFile]:
    """As many files as the limits allow."""
    if limits is None:
        return files
    bytes_ = 0
    for number, file in enumerate(files):
        bytes_ += file.bytes
        if number and (number >= limits.files or bytes_ > limits.bytes):
            return files[:number]
    return files


def _rows(files: Sequence[TableFile]) -> int:
    return sum(file.rows for file in files)


def _name(version: int) -> str:
    return f"_delta_log/{version:020d}.json"
