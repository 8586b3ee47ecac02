"""The newest rows of a pipeline's Delta table, and its versions, read without Spark.

Of the rows only the end of the newest files is read, however large the table is. All that is returned is
text of bounded length, as a page shows it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.operating.errors import CannotDo
from klamm.pipelines.definitions import COORDINATES
from klamm.pipelines.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from klamm.pipelines.tables.appended import TableFile

TIMEOUT_S = 20.0
MOST_ROWS = 50
MOST_COLUMNS = 40
MOST_CHARACTERS = 300
"""Of one value."""
MOST_FILES = 12
"""How many files are opened for the newest rows."""
MOST_GROUP_BYTES = 64_000_000
"""A row group that is larger is not decoded to its end: its first rows are shown."""
MOST_VERSIONS = 100

# Of their own: a store that does not answer must not hold what others wait for.
_threads = ThreadPoolExecutor(4, thread_name_prefix="klamm-tables")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Rows:
    """The newest rows of a table, the newest first, and what the table has as a whole. Values are in the
    order of `columns`; None is null."""

    version: int
    files: int
    size_bytes: int
    records: int | None
    columns: tuple[str, ...]
    more_columns: int
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True)
class Version:
    """One commit of a table. `rows` is how many a batch or a replay wrote."""

    version: int
    time_ms: int
    what: str
    pipeline: str
    rows: int | None


async def newest_rows(location: str, storage: Mapping[str, str], most: int = MOST_ROWS) -> Rows | None:
    """The newest rows; None if there is no table yet. Raises CannotDo."""
    return await _in_thread(location, lambda: _newest_rows(location, storage, most))


async def history(location: str, storage: Mapping[str, str], most: int = MOST_VERSIONS) -> list[Version]:
    """The newest versions first; none if there is no table yet. Raises CannotDo."""
    return await _in_thread(location, lambda: _history(location, storage, most))


async def _in_thread(location: str, read: Callable[[], Value]) -> Value:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await loop.run_in_executor(_threads, _translated(location, read))
    except TimeoutError:
        raise CannotDo(
            f"the table {location} was not read in {TIMEOUT_S:.0f} s", advice="See whether its store answers"
        ) from None


def _translated(location: str, read: Callable[[], Value]) -> Callable[[], Value]:
    """`read`, with its errors as CannotDo."""

    def call() -> Value:
        try:
            import pyarrow as pa
            from deltalake.exceptions import DeltaError
        except ImportError as error:
            raise CannotDo(
                f"tables need the package {error.name}", advice="Install it: pip install 'klamm[spark]'"
            ) from None
        try:
            return read()
        except PipelineError as error:
            raise CannotDo(error.message, advice=error.advice) from None
        except (DeltaError, pa.ArrowException, OSError) as error:
            raise CannotDo(f"the table {location} cannot be read: {_line(error)}") from None

    return call


def _history(location: str, storage: Mapping[str, str], most: int) -> list[Version]:
    from klamm.pipelines.tables import versions
    from klamm.pipelines.tables.table import Table

    table = Table(location, storage)
    if not table.is_there():
        return []
    return [
        Version(each.version, int(each.time.timestamp() * 1000), each.what, each.pipeline, each.rows)
        for each in versions.history(table, most)
    ]


def _newest_rows(location: str, storage: Mapping[str, str], most: int) -> Rows | None:
    from klamm.pipelines.tables.appended import check_readable, snapshot_files
    from klamm.pipelines.tables.table import Table

    table = Table(location, storage).newest()
    if table is None:
        return None
    check_readable(table, location)
    names = _columns(table)
    shown = names[:MOST_COLUMNS]
    files = snapshot_files(table)
    newest_first = sorted(files, key=lambda file: (file.written_ms, file.path), reverse=True)
    rows: list[dict[str, Any]] = []
    for file in newest_first[:MOST_FILES]:
        rows += reversed(_end_of(location, storage, file, shown, most))
        if len(rows) >= most:
            break
    if all(name in shown for name in COORDINATES):
        rows.sort(key=_place, reverse=True)
    return Rows(
        table.version(),
        len(files),
        sum(file.bytes for file in files),
        sum(file.rows for file in files) if files else 0,
        tuple(shown),
        len(names) - len(shown),
        tuple(tuple(_text(row.get(name)) for name in shown) for row in rows[:most]),
    )


def _columns(table: DeltaTable) -> list[str]:
    """The names of columns, with the coordinates of records at the end."""
    names = [each.name for each in table.schema().fields]
    ours = [name for name in COORDINATES if name in names]
    return (
        [*ours, *(name for name in names if name not in ours)]
        if len(names) > MOST_COLUMNS
        else [
            *(name for name in names if name not in ours),
            *ours,
        ]
    )


def _end_of(
    location: str, storage: Mapping[str, str], file: TableFile, columns: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """The last rows of a file, in their order."""
    import pyarrow.parquet as pq

    from klamm.pipelines.tables.files import Store

    stream = Store(location, storage).system.open_input_file(file.path)
    found: list[dict[str, Any]] = []
    with stream, pq.ParquetFile(stream) as parquet:
        there = [name for name in columns if name in parquet.schema_arrow.names]
        # To pyarrow a dot in a name means a column inside another one.
        wanted = None if any("." in name for name in there) else there
        for number in reversed(range(parquet.metadata.num_row_groups)):
            left = most - len(found)
            group = parquet.metadata.row_group(number)
            if group.total_byte_size > MOST_GROUP_BYTES:
                batches = parquet.iter_batches(left, row_groups=[number], columns=wanted)
                rows = _values(next(iter(batches)))
            else:
                whole = parquet.read_row_group(number, columns=wanted)
                rows = _values(whole.slice(max(0, whole.num_rows - left)))
            found = rows + found
            if len(found) >= most:
                break
    return [{**file.values, **row} for row in found]


def _values(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    columns = {name: _list(rows.column(name)) for name in rows.schema.names}
    return [{name: values[number] for name, values in columns.items()} for number in range(rows.num_rows)]


def _list(column: Any) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # a time that Python does not have
        return ["(cannot be shown)"] * len(column)
    return found


def _place(row: Mapping[str, Any]) -> tuple[float, int, int]:
    time = row.get("_timestamp")
    return (
        time.timestamp() if isinstance(time, datetime) else 0.0,
        int(row.get("_partition") or 0),
        int(row.get("_offset") or 0),
    )


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        text = value[:MOST_CHARACTERS].hex(" ")
    elif isinstance(value, datetime):
        text = value.isoformat(sep=" ", timespec="milliseconds")
    elif isinstance(value, date):
        text = value.isoformat()
    elif isinstance(value, (dict, list, tuple)):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:MOST_CHARACTERS]
