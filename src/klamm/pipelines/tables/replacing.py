"""Replaces rows of a table by others that were written beside it, in one commit.

A replay writes to a table of its own, in a folder inside the replayed one (`beside`). Its files become part
of the replayed table where they are: nothing is copied. Readers see the old rows or the new ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from klamm.pipelines.locations import joined
from klamm.pipelines.positions import Position, is_position, merged, reaches
from klamm.pipelines.tables.files import Store
from klamm.pipelines.tables.partitioning import as_text
from klamm.pipelines.tables.table import METADATA, Batch, Table

BASE = "base"
"""In the metadata of a commit that replaced rows: the version whose rows stayed; None if none did."""


class Kept(NamedTuple):
    """A version of the table whose rows a replay keeps, and the position up to which they were read."""

    version: int
    position: Position


REDRIVEN = "redriven"
"""In the metadata of a commit: how many dead-letter records it redrove."""

REPLAYED = "replayed"
"""In the metadata of a commit: the range of records whose rows it replaced, by topic and partition."""

NOTHING = -1
"""Stands for the version before the first one."""


def kept_versions(table: DeltaTable, owner: str) -> list[Kept]:
    """The versions that a replay can go back to, the newest first.

    Each is the version before a batch of the pipeline; NOTHING is the one before its first batch, if the log
    still knows that batch. Versions that an earlier replay has replaced are left out.
    """
    found: list[Kept] = []
    skip_above: int | None = None
    has_rows_of_others = False
    replayed: list[Position] = []
    for entry in table.history():
        version = int(entry["version"])
        about = entry.get(METADATA) or {}
        if (skip_above is not None and version > skip_above) or about.get("pipeline") != owner:
            continue
        if REDRIVEN in about or REPLAYED in about:
            # A version before it lacks rows of records that no later batch has: only all can be made anew.
            has_rows_of_others = True
            replayed.append(_starts(about.get(REPLAYED) or {}))
            continue
        if BASE in about:
            base = NOTHING if about[BASE] is None else int(about[BASE])
            skip_above = base
        else:
            base = version - 1
        start = _position(about.get("start"))
        if base == NOTHING:  # what was replayed before the first batch is to be read again, too
            found.append(Kept(base, merged([start, *replayed], min)))
        elif not has_rows_of_others:
            found.append(Kept(base, start))
    return found


def newest_before(versions: Sequence[Kept], point: Position) -> Kept | None:
    """The newest version that has no rows of records at or after the point."""
    return next((kept for kept in versions if not reaches(kept.position, point)), None)


def missing_files(table: Table, version: int) -> int | None:
    """How many files of a version are no longer in the store; None if the log does not know the version any
    more."""
    store = Store(table.location, table.options)
    try:
        at = table.at(version)
    except DeltaError:
        return None
    paths = pa.table(at.get_add_actions(flatten=True))["path"].to_pylist()
    return sum(not store.exists(unquote(path)) for path in paths)


def row_count(table: Table, version: int | None = None) -> int:
    """How many rows the table has, or had in a version."""
    at = table.at(version)
    return sum(pa.table(at.get_add_actions(flatten=True))["num_records"].to_pylist())


def beside(table: Table, attempt: int | str) -> Table:
    """The table to which a replay writes. A replay of a range is named by its token."""
    return Table(joined(table.location, folder_of(attempt)), table.options)


def discard(table: Table, attempt: int | str) -> None:
    """Remove what a replay that was given up has written."""
    Store(table.location, table.options).delete_folder(folder_of(attempt))


def swap(table: Table, attempt: int, base: int | None, batch: Batch) -> int:
    """Make the rows that a replay wrote part of the table. Of the rows that the table has, only those of the
    version `base` stay. Returns how many rows the replay wrote."""
    rebuilt = beside(table, attempt).newest()
    added = files_of(rebuilt, table.options) if rebuilt is not None else {}
    prefix = f"{folder_of(attempt)}/"
    adds: list[AddAction | RemoveAction] = [to_add(prefix + path, add) for path, add in added.items()]
    rows = sum(int(json.loads(add.get("stats") or "{}").get("numRecords", 0)) for add in added.values())
    about = batch.metadata(rows)
    about[METADATA][BASE] = base
    properties = CommitProperties(custom_metadata=about, app_transactions=batch.transactions())

    def commit(newest: DeltaTable) -> None:
        partition_by = newest.metadata().partition_columns
        if base is None:
            schema = rebuilt.schema() if rebuilt is not None else newest.schema()
            newest.create_write_transaction(
                adds, "overwrite", schema, partition_by, commit_properties=properties
            )
            return
        now = _actions(newest)
        then = _actions(table.at(base))
        moment_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(path, True, moment_ms, add.size, dict(add.partition_values))
            for path, add in now.items()
            if path not in then
        ]
        actions += [add for path, add in then.items() if path not in now]
        newest.create_write_transaction(
            [*actions, *adds], "append", newest.schema(), partition_by, commit_properties=properties
        )

    newest = table.newest()
    if newest is None and rebuilt is not None:
        table.create_empty(rebuilt.schema(), rebuilt.metadata().partition_columns, batch.owner)
    elif newest is not None and rebuilt is not None and base is not None:
        there = {each.name.lower() for each in newest.schema().fields}
        if new := [each for each in rebuilt.schema().fields if each.name.lower() not in there]:
            table.add_columns(new)
    if table.is_there():
        table.change(commit)
    if rebuilt is not None:
        Store(table.location, table.options).delete_folder(f"{folder_of(attempt)}/_delta_log")
    return rows


def folder_of(attempt: int | str) -> str:
    """Where a replay writes, inside the table's folder."""
    return f"replay-{attempt}"


def _starts(ranges: Mapping[str, Mapping[str, Sequence[int]]]) -> Position:
    return {
        topic: {number: int(each[0]) for number, each in partitions.items()}
        for topic, partitions in ranges.items()
    }


def _position(value: Any) -> Position:
    return merged([value], max) if is_position(value) else {}


def files_of(table: DeltaTable, options: Mapping[str, str]) -> dict[str, Any]:
    """The files of a young table, as its log has them: all of its commits are still there."""
    store = Store(table.table_uri, options)
    files: dict[str, Any] = {}
    for version in range(table.version() + 1):
        for line in store.read_text(f"_delta_log/{version:020d}.json").splitlines():
            action = json.loads(line)
            if "add" in action:
                files[unquote(action["add"]["path"])] = action["add"]
            elif "remove" in action:
                files.pop(unquote(action["remove"]["path"]), None)
    return files


def to_add(path: str, add: Mapping[str, Any]) -> AddAction:
    """What adds a file to another table, made of what its own log says of it."""
    return AddAction(
        path,
        int(add["size"]),
        dict(add["partitionValues"]),
        int(add["modificationTime"]),
        True,
        add["stats"] or "{}",
    )


def _actions(table: DeltaTable) -> dict[str, AddAction]:
    """The files of a table by their paths, with their count of rows and without other statistics."""
    prefix = "partition."
    found = {}
    for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        path = unquote(each["path"])
        values = {name.removeprefix(prefix): as_text(each[name]) for name in each if name.startswith(prefix)}
        statistics = json.dumps({"numRecords": each["num_records"]})
        found[path] = AddAction(path, each["size_bytes"], values, each["modification_time"], True, statistics)
    return found
