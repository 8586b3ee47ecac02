"""Partition columns: splits columns of Arrow by them, and writes their values as Delta's log does. A core.

Files lie in folders such as `day=2026-01-31`. Readers take the values from the log, not from the names of
folders; the names are for people who look.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder's value where the column is null; all tools use this name."""

_SAFE = " !#$&'()+,-.;@[]^_`{}~"
"""What stays as it is in the name of a folder, beside letters and digits."""


class Values(NamedTuple):
    """The values of the partition columns, in their order, as the log writes them."""

    values: tuple[str | None, ...]

    def folder(self, columns: Sequence[str]) -> str:
        """The folder of these values, with a slash at its end; empty without partition columns."""
        return "".join(
            f"{_name(column)}={NULL_FOLDER if value is None else _name(value)}/"
            for column, value in zip(columns, self.values, strict=True)
        )

    def to_json(self, columns: Sequence[str]) -> str:
        return json.dumps(dict(zip(columns, self.values, strict=True)))


NOTHING = Values(())
"""Of a table without partition columns."""


def split(
    rows: pa.Table, columns: Sequence[str], *, keeps: bool = False
) -> Iterator[tuple[Values, pa.Table]]:
    """The rows of each combination of partition values, without the partition columns.

    With `keeps` the columns stay in the rows, as Iceberg wants them, to which an empty text is not null.
    """
    if not columns:
        yield NOTHING, rows
        return
    if rows.num_rows == 0:
        return
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    dictionaries = []
    for column in columns:
        encoded = pc.dictionary_encode(rows[column].combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        dictionaries.append(encoded.dictionary)
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    rest = (rows if keeps else rows.drop_columns(list(columns))).take(pa.array(order))
    for code, start, end in zip(found, starts, [*starts[1:], rows.num_rows], strict=True):
        yield (
            _values(int(code), dictionaries, "" if keeps else None),
            rest.slice(int(start), int(end) - int(start)),
        )


def _values(code: int, dictionaries: Sequence[Any], empty: str | None) -> Values:
    values = []
    for dictionary in reversed(dictionaries):
        code, index = divmod(code, len(dictionary))
        value = dictionary[index].as_py()
        values.append(empty if value == "" else as_text(value))
    return Values(tuple(reversed(values)))


def as_text(value: Any) -> str | None:
    """A value of a partition column as Delta's log writes it. An empty text counts as null, as in Delta."""
    match value:
        case None | "":
            return None
        case bool():
            return str(value).lower()
        case datetime():
            moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
        case date():
            return value.isoformat()
        case _:
            return str(value)


def _name(text: str) -> str:
    return quote(text, safe=_SAFE)
