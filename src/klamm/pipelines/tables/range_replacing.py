"""Replaces the rows of a range of records by others that were written beside the table, in one commit, while
the table's pipeline goes on writing.

Files whose rows all lie in the range are removed. Of files that have other rows too, those are written to
new files. Rows of other records do not change, and nothing that tells how far the pipeline has come does:
the commit has none of the pipeline's transactions, but some of its own, which stay in the log for good:

    klamm/<owner>/replays                                        how many ranges were replayed
    klamm/<owner>/replay/<token>                                 the number of the replay with this token
    klamm/<owner>/replay/<number>/start/<topic>/<partition>      the first offset of its range
    klamm/<owner>/replay/<number>/end/<topic>/<partition>        the offset after its range
    klamm/<owner>/replay/<number>/dead-letters/<topic>/<partition>    where the dead-letter topic ended when
                                                                 the replay began

Dead-letter records below that end whose originals lie in the range count no more: the replay has read the
originals again.

Invariant: the commit follows the version that was looked at. If any other commit comes between, deltalake
refuses ours, and the files that are new are looked at. deltalake itself would not notice that files which
the commit removes were merged meanwhile.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.tables.appended import check_readable, existing
from klamm.pipelines.tables.columns import plain
from klamm.pipelines.tables.files import (
    COMPRESSION,
    FILE_PREFIX,
    ROW_GROUP_BYTES,
    OpenFile,
    Store,
)
from klamm.pipelines.tables.partitioning import Values, as_text
from klamm.pipelines.tables.ranges import (
    COORDINATES,
    Bounds,
    Range,
    Ranges,
    each_range,
    rows_in,
    share,
    to_json,
)
from klamm.pipelines.tables.replacing import REPLAYED, beside, files_of, folder_of, to_add
from klamm.pipelines.tables.table import METADATA, Table, WrittenFile

TRIES = 100
"""How often the commit is tried. Every batch of the pipeline that comes between takes a try; a try takes
milliseconds, as only files that are new since the last one are looked at."""

LOOKING_THREADS = 4
"""So many files are read at once: enough to wait for a remote store, and few enough for the memory."""

READ_ROWS = 64 * 1024
"""Rows that are read at once from a file of which a part stays."""


class CannotReplace(PipelineError):
    """Rows of a range cannot be replaced. The table is as it was."""


@dataclass(frozen=True)
class Replay:
    """What the log keeps of the replay of a range."""

    owner: str
    number: int
    token: str
    ranges: Ranges
    dead_letters: str = ""
    """The dead-letter topic."""
    dead_letter_ends: Mapping[int, int] = field(default_factory=dict)

    def transactions(self) -> list[Transaction]:
        mine = f"klamm/{self.owner}/replay"
        found = [
            Transaction(_count_name(self.owner), self.number),
            Transaction(f"{mine}/{self.token}", self.number),
        ]
        for topic, partition, each in each_range(self.ranges):
            found.append(Transaction(f"{mine}/{self.number}/start/{topic}/{partition}", each.start))
            found.append(Transaction(f"{mine}/{self.number}/end/{topic}/{partition}", each.end))
        for partition, end in self.dead_letter_ends.items():
            name = f"{mine}/{self.number}/dead-letters/{self.dead_letters}/{partition}"
            found.append(Transaction(name, end))
        return found

    def metadata(self, rows: int, replaced: int) -> dict[str, Any]:
        about = {"pipeline": self.owner, REPLAYED: to_json(self.ranges), "rows": rows, "replaced": replaced}
        return {METADATA: about}


def replays_in(table: Table, owner: str) -> int:
    """How many ranges were replayed."""
    return table.transaction(_count_name(owner)) or 0


def is_in(table: Table, owner: str, token: str) -> bool:
    """True if the table has the rows of the replay with this token."""
    return table.transaction(f"klamm/{owner}/replay/{token}") is not None


def replayed_range(table: Table, owner: str, number: int, topic: str, partition: int) -> Range | None:
    """What a replay has read of a partition."""
    mine = f"klamm/{owner}/replay/{number}"
    start = table.transaction(f"{mine}/start/{topic}/{partition}")
    end = table.transaction(f"{mine}/end/{topic}/{partition}")
    return None if start is None or end is None else Range(start, end)


def dead_letters_before(table: Table, owner: str, number: int, topic: str, partition: int) -> int:
    """The offset at which the dead-letter topic ended when a replay began."""
    return table.transaction(f"klamm/{owner}/replay/{number}/dead-letters/{topic}/{partition}") or 0


class Inside(NamedTuple):
    """The rows of a table, as seen from a range."""

    rows: int
    """How many come from records in the range."""
    without_record: int
    """How many of the whole table do not tell their record."""


def count_inside(table: Table, ranges: Ranges) -> Inside:
    """How many rows a replay of the ranges would replace."""
    newest = existing(table)
    check_readable(newest, table.location)
    return _Looking(table, ranges).count(_files(newest))


class Swapped(NamedTuple):
    """What a replay has done: the rows that it wrote, and those that they replaced."""

    rows: int
    replaced: int


def swap_range(table: Table, replay: Replay) -> Swapped:
    """Make the rows that a replay wrote beside the table part of it, in place of all rows of its ranges."""
    rebuilt = beside(table, replay.token)
    new = rebuilt.newest()
    _check_new_rows(rebuilt, new, replay.ranges)
    prefix = f"{folder_of(replay.token)}/"
    written = files_of(new, table.options) if new is not None else {}
    adds = [to_add(prefix + path, add) for path, add in written.items()]
    rows = sum(file.bounds.rows or 0 for file in _files(new)) if new is not None else 0
    if new is not None:
        _add_columns(table, new)
    looking = _Looking(table, replay.ranges, replay.token)
    done = Swapped(rows, 0)
    is_first = True

    def commit(newest: DeltaTable) -> None:
        nonlocal done, is_first
        if is_in(table, replay.owner, replay.token):
            return  # a try whose answer was lost
        if replays_in(table, replay.owner) != replay.number - 1:
            raise CannotReplace(
                f"another replay of {replay.owner} has changed the table {table.location} meanwhile",
                advice="Plan the replay again",
            )
        check_readable(newest, table.location)
        files = _files(newest)
        removes, rests = looking.replace(files)
        if is_first:
            _check_there(table, [add.path for add in adds])
            is_first = False
        done = Swapped(rows, looking.count(files).rows)
        properties = CommitProperties(
            custom_metadata=replay.metadata(rows, done.replaced),
            max_commit_retries=0,
            app_transactions=replay.transactions(),
        )
        partition_by = newest.metadata().partition_columns
        newest.create_write_transaction(
            [*removes, *rests, *adds], "append", newest.schema(), partition_by, commit_properties=properties
        )

    table.change(commit, tries=TRIES)
    return done


# ---- files


@dataclass(frozen=True)
class _File:
    """A file of a version of the table."""

    path: str
    bytes: int
    values: Mapping[str, str | None]
    bounds: Bounds

    @cached_property
    def remove(self) -> RemoveAction:
        return RemoveAction(self.path, True, int(time.time() * 1000), self.bytes, dict(self.values))


class _Found(NamedTuple):
    """What is known of a file once it was looked at."""

    inside: int
    without_record: int
    outside: int


class _Looking:
    """Looks at the files of a table for rows of the ranges, at each once."""

    def __init__(self, table: Table, ranges: Ranges, token: str = "") -> None:
        self._store = Store(table.location, table.options)
        self._location = table.location
        self._ranges = ranges
        self._token = token
        self._found: dict[str, _Found] = {}
        self._rests: dict[str, WrittenFile] = {}

    def count(self, files: Sequence[_File]) -> Inside:
        self._look_at(files)
        found = [self._found[file.path] for file in files]
        return Inside(sum(each.inside for each in found), sum(each.without_record for each in found))

    def replace(self, files: Sequence[_File]) -> tuple[list[RemoveAction], list[AddAction]]:
        """What removes the rows of the ranges from these files: the files to remove, and files with their
        other rows."""
        self._look_at(files)
        old = [file for file in files if self._found[file.path].inside]
        mixed = [file for file in old if self._found[file.path].outside and file.path not in self._rests]
        for file, rest in _at_once(self._write_rest, mixed):
            self._rests[file.path] = rest
        rests = [self._rests[file.path].add() for file in old if file.path in self._rests]
        return [file.remove for file in old], rests

    def _look_at(self, files: Sequence[_File]) -> None:
        new = [file for file in files if file.path not in self._found]
        for file, found in _at_once(self._look, new):
            self._found[file.path] = found

    def _look(self, file: _File) -> _Found:
        bounds = file.bounds
        its_share = share(bounds, self._ranges)
        if its_share != "some" and bounds.rows is not None and bounds.without_record is not None:
            inside = bounds.rows if its_share == "all" else 0
            return _Found(inside, bounds.without_record, bounds.rows - inside)
        with self._open(file) as parquet:
            names = [name for name in COORDINATES if name in parquet.schema_arrow.names]
            rows = _with_values(parquet.read(columns=names), file)
        inside = int(rows_in(rows, self._ranges).sum())
        without = max(rows[name].null_count for name in COORDINATES)
        return _Found(inside, without, rows.num_rows - inside)

    def _write_rest(self, file: _File) -> WrittenFile:
        """Write the rows of a file that do not lie in the ranges to a new file beside it."""
        folder = file.path.rpartition("/")[0]
        name = f"{FILE_PREFIX}-kept-{self._token}-{uuid.uuid4().hex[:12]}.{COMPRESSION}.parquet"
        path = f"{folder}/{name}" if folder else name
        columns = tuple(file.values)
        with self._open(file) as parquet:
            rest = OpenFile(self._store, Values(tuple(file.values.values())), path, parquet.schema_arrow)
            try:
                for batch in parquet.iter_batches(READ_ROWS):
                    rows = pa.Table.from_batches([batch])
                    stays = ~rows_in(_with_values(rows, file), self._ranges)
                    if stays.any():
                        rest.add(rows.filter(pa.array(stays)))
                    if rest.buffered_bytes >= ROW_GROUP_BYTES:
                        rest.flush()
                rest.flush()
            except BaseException:
                rest.discard()
                raise
            written = WrittenFile.of(rest.end(columns))
        if written.rows != self._found[file.path].outside:
            raise CannotReplace(
                f"{self._found[file.path].outside} rows of {file.path} in {self._location} stay, but "
                f"{written.rows} were written: the table is as it was",
                advice="Replay again",
            )
        return written

    def _open(self, file: _File) -> pq.ParquetFile:
        return pq.ParquetFile(self._store.system.open_input_file(file.path))


def _at_once(work: Any, files: Sequence[_File]) -> Iterable[tuple[_File, Any]]:
    with ThreadPoolExecutor(LOOKING_THREADS) as pool:
        return list(zip(files, pool.map(work, files), strict=True))


def _files(table: DeltaTable) -> list[_File]:
    prefix = "partition."
    columns = table.metadata().partition_columns
    found = []
    for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        values = {name: as_text(each.get(prefix + name)) for name in columns}
        found.append(_File(unquote(each["path"]), each["size_bytes"], values, Bounds.of(each)))
    return found


def _with_values(rows: pa.Table, file: _File) -> pa.Table:
    """The coordinates of rows. Of partition columns they are not in the file; a file from before a column
    was added lacks it."""
    columns = {}
    for name in COORDINATES:
        if name in rows.column_names:
            columns[name] = rows[name]
            continue
        value = file.values.get(name)
        kind = pa.string() if name == COORDINATES[0] else pa.int64()
        constant = pa.nulls(1, kind) if value is None else pa.array([value]).cast(kind)
        columns[name] = pa.chunked_array([pa.repeat(constant[0], rows.num_rows)], kind)
    return pa.table(columns)


# ---- checks


def _check_new_rows(rebuilt: Table, new: DeltaTable | None, ranges: Ranges) -> None:
    """Raise if rows that the replay wrote do not come from its records: the next replay would not find them,
    and records outside of the range have their rows already."""
    if new is None:
        return
    files = _files(new)
    rows = sum(file.bounds.rows or 0 for file in files)
    inside = _Looking(rebuilt, ranges).count(files).rows
    if inside != rows:
        raise CannotReplace(
            f"{rows - inside} of {rows} new rows do not tell, by {', '.join(COORDINATES)}, from which record "
            "of the range they come: the table is as it was",
            advice="Let the functions keep these columns as they are",
        )


def _check_there(table: Table, paths: Sequence[str]) -> None:
    """Raise if files are gone that were written: vacuum removes files that no commit names after a week."""
    store = Store(table.location, table.options)
    if gone := sum(not store.exists(path) for path in paths):
        raise CannotReplace(
            f"{gone} files that the replay has written beside {table.location} are gone: the table is as it "
            "was",
            advice="Replay a shorter range",
        )


def _add_columns(table: Table, new: DeltaTable) -> None:
    """Add the columns that the new rows have and the table does not."""
    while True:
        there = {each.name.lower(): each for each in existing(table).schema().fields}
        missing = [each for each in new.schema().fields if each.name.lower() not in there]
        changed = [
            each.name
            for each in new.schema().fields
            if each.name.lower() in there and plain(each.type) != plain(there[each.name.lower()].type)
        ]
        if changed:
            raise CannotReplace(
                f"the columns {', '.join(changed)} of {table.location} have got another type meanwhile",
                advice="Plan the replay again",
            )
        if not missing:
            return
        try:
            table.add_columns(missing)
        except DeltaError:
            # The pipeline itself may have added one of them.
            now = {each.name.lower() for each in existing(table).schema().fields}
            if not now - there.keys():
                raise


def _count_name(owner: str) -> str:
    return f"klamm/{owner}/replays"
