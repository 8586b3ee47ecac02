"""The versions of a table: what each changed, how two of them differ, and going back to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from klamm.pipelines.errors import PipelineError
from klamm.pipelines.tables import ranges
from klamm.pipelines.tables.replacing import BASE, REDRIVEN, REPLAYED
from klamm.pipelines.tables.table import METADATA, Table


class NoSuchVersion(PipelineError):
    """A table, or a version of it, does not exist or cannot be read any more."""


class Version(NamedTuple):
    """One commit of a table, in words."""

    version: int
    time: datetime
    what: str
    pipeline: str
    rows: int | None
    """How many rows a batch or a replay wrote."""


class Difference(NamedTuple):
    """How two versions differ: rows that only one of them has."""

    added: pa.Table
    gone: pa.Table


def history(table: Table, most: int | None = None) -> list[Version]:
    """The newest versions first."""
    return [_version(entry) for entry in _existing(table).history(most)]


def resolve_version(table: Table, text: str | None) -> int:
    """A version by its number, or by a time: the newest one that is not later. None is the newest of all."""
    newest = _existing(table)
    if text is None:
        return newest.version()
    if text.lstrip("-").isdigit():
        number = int(text)
        wanted = newest.version() + number if number < 0 else number
        if not 0 <= wanted <= newest.version():
            raise NoSuchVersion(
                f"the table {table.location} has no version {text}",
                advice=f"Its newest version is {newest.version()}; `klamm table history` lists them",
            )
        return wanted
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NoSuchVersion(
            f"{text!r} is not a version",
            advice="Give a number, -1 for the version before the newest, or a time: 2026-01-31T12:00:00Z",
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    found = next((each for each in history(table) if each.time <= moment), None)
    if found is None:
        raise NoSuchVersion(f"the table {table.location} has no version of {text} or before")
    return found.version


def restore(table: Table, version: int) -> None:
    """Make the rows of a version the table's rows again, in one commit."""
    properties = CommitProperties(custom_metadata={METADATA: {"restored": version}})
    try:
        table.change(lambda newest: newest.restore(version, commit_properties=properties))
    except DeltaError as error:
        raise NoSuchVersion(
            f"version {version} of the table {table.location} cannot be restored: {error}",
            advice="Files that are older than the retention of vacuum are gone",
        ) from None


def written_since(table: Table, version: int) -> list[str]:
    """What pipelines have written after a version, in words, the newest first."""
    return [each.what for each in history(table) if each.version > version and each.pipeline]


def diff(table: Table, old: int, new: int) -> Difference:
    """The rows that only one of two versions has. Files that both have are not read."""
    before, after = _at(table, old), _at(table, new)
    old_files, new_files = _paths(before), _paths(after)
    try:
        gone = _rows(before, old_files - new_files)
        added = _rows(after, new_files - old_files)
    except FileNotFoundError as error:
        raise NoSuchVersion(
            f"files of these versions of {table.location} were removed by vacuum: {error}",
            advice="Compare newer versions",
        ) from None
    columns = [name for name in added.column_names if name in gone.column_names]
    both = Counter(_keys(gone, columns)) & Counter(_keys(added, columns))
    return Difference(_without(added, columns, both), _without(gone, columns, both))


def _existing(table: Table) -> DeltaTable:
    newest = table.newest()
    if newest is None:
        raise NoSuchVersion(
            f"there is no table at {table.location}", advice="Run its pipeline first, or correct the name"
        )
    return newest


def _at(table: Table, version: int) -> DeltaTable:
    try:
        return table.at(version)
    except DeltaError as error:
        raise NoSuchVersion(f"version {version} of {table.location} cannot be read: {error}") from None


def _paths(table: DeltaTable) -> set[str]:
    return {unquote(path) for path in pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()}


def _rows(table: DeltaTable, paths: set[str]) -> pa.Table:
    """The rows of some files of a table."""
    whole: Any = table.to_pyarrow_dataset()
    fragments = [each for each in whole.get_fragments() if each.path.lstrip("/") in paths]
    return ds.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem).to_table()


def _keys(rows: pa.Table, columns: list[str]) -> Iterator[str]:
    return (repr(row) for row in rows.select(columns).to_pylist())


def _without(rows: pa.Table, columns: list[str], both: Mapping[str, int]) -> pa.Table:
    left = Counter(both)
    kept = []
    for number, key in enumerate(_keys(rows, columns)):
        if left[key]:
            left[key] -= 1
        else:
            kept.append(number)
    return rows.take(pa.array(kept, pa.int64()))


def _version(entry: Mapping[str, Any]) -> Version:
    about: Mapping[str, Any] = entry.get(METADATA) or {}
    return Version(
        int(entry["version"]),
        datetime.fromtimestamp(entry["timestamp"] / 1000, UTC),
        in_words(str(entry.get("operation", "")), about),
        str(about.get("pipeline", "")),
        about.get("rows"),
    )


def in_words(operation: str, about: Mapping[str, Any]) -> str:
    """What a commit did; `about` is our entry in its metadata."""
    if BASE in about:
        return f"replay, attempt {about['attempt']}"
    if REPLAYED in about:
        told = ranges.in_words(ranges.from_json(about[REPLAYED]))
        return f"replay of {told}, {about['replaced']} rows replaced"
    if "batch" in about:
        return f"batch {about['batch']} of attempt {about['attempt']}"
    if REDRIVEN in about:
        return f"{about[REDRIVEN]} dead-letter records redriven"
    if "restored" in about:
        return f"version {about['restored']} restored"
    if "added columns" in about:
        return f"columns added: {', '.join(about['added columns'])}"
    if "upkeep" in about:
        return str(about["upkeep"])
    return operation.lower()
