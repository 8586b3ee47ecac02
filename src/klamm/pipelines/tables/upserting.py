"""Upserts: a table has one row for each value of its keys, and a batch changes it in one commit.

Tasks write a batch into the table's store as files that no commit names. The driver then merges these files
into the table, with deltalake, and removes them.

Which of two rows with the same keys stays does not depend on the order in which they come, nor on how they
are divided into batches, as long as the rows have the coordinates of their records: a row is compared with
that of its batch and with that of the table by the same columns, in which no two records are equal. So late
records, redriven ones and replays lead to the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable

from klamm.pipelines.definitions import Keep
from klamm.pipelines.errors import DefinitionError, PipelineError, Place
from klamm.pipelines.tables.columns import delta_schema
from klamm.pipelines.tables.files import Store, Target
from klamm.pipelines.tables.table import HOOKS, Commit, Table, WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BY_RECORD = ("_timestamp", "_offset")
"""Columns that tell which of two rows is the newer one, if the pipeline names no others."""

TIE_BREAKERS = ("_partition", "_topic")
"""Columns that decide after those, so that no two records are equal."""


MOST_BYTES_AT_ONCE = 64 * 1024 * 1024
"""A batch whose files are larger is merged as a stream, so that it need not fit into memory. A smaller one is
read first: then the smallest and largest of its keys tell which files of the table cannot have them. For keys
that grow, such as hours, the time of a batch does not depend on the size of the table."""


class KeysRefused(PipelineError):
    """Rows of a batch have no key, or the same one."""


@dataclass(frozen=True)
class Choice:
    """Which of the rows with the same `keys` stays: the newest or the oldest by `order_by`, and among equal
    ones by their records. A row whose value is null gives way to others.

    Rows without any of these columns, such as those of aggregates, are as new as their batch.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    keep: Keep = "newest"

    def spelled(self, columns: Sequence[str]) -> Choice:
        """The same with all columns that rows are compared by, as they are spelled in `columns`."""
        names = {name.lower(): name for name in columns}
        by_record = (*BY_RECORD, *TIE_BREAKERS) if all(name in names for name in BY_RECORD) else ()
        compared = dict.fromkeys([*map(str.lower, self.order_by), *by_record])
        return replace(
            self,
            keys=tuple(names.get(key.lower(), key) for key in self.keys),
            order_by=tuple(names[name] for name in compared if name in names),
        )

    def replaces(self) -> str:
        """The condition in SQL that the row `new` takes the place of the row `old`."""
        sign, condition = (">", "TRUE") if self.keep == "newest" else ("<", "FALSE")
        for name in reversed(self.order_by):
            new, old = f"new.{_quoted(name)}", f"old.{_quoted(name)}"
            is_first = f"{new} IS NOT NULL AND ({old} IS NULL OR {new} {sign} {old})"
            is_equal = f"{new} = {old} OR ({new} IS NULL AND {old} IS NULL)"
            condition = f"({is_first}) OR (({is_equal}) AND ({condition}))"
        return condition


def only_one_each(frame: DataFrame, choice: Choice) -> DataFrame:
    """The row of each key that stays, if there are columns that tell."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not choice.order_by:
        return frame
    first = F.desc_nulls_last if choice.keep == "newest" else F.asc_nulls_last
    keys = [F.col(_in_spark(name)) for name in choice.keys]
    preferred_first = Window.partitionBy(*keys).orderBy(*[first(_in_spark(name)) for name in choice.order_by])
    place = "_klamm_place"
    return frame.withColumn(place, F.row_number().over(preferred_first)).filter(f"{place} = 1").drop(place)


def check_order(schema: StructType, order_by: Sequence[str], who: str, place: Place) -> None:
    """Raise if rows cannot be compared by a column."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    names = [name.lower() for name in order_by]
    for column in schema:
        if column.name.lower() in names and isinstance(
            column.dataType, (ArrayType, MapType, StructType, VariantType)
        ):
            raise DefinitionError(
                f"order_by of {who} names {column.name}, which is {column.dataType.simpleString().upper()}",
                advice="Order by columns of numbers, texts, dates or times",
                place=place,
            )


def check_keys(nulls: Mapping[str, int], place: Place) -> None:
    """Raise if rows have a null as a key; `nulls` says how many."""
    for key, count in nulls.items():
        if count:
            raise KeysRefused(
                f"the key {key} is null in {count} rows",
                advice=f'Expect it to be there: @expect("{key} is known", "{key} IS NOT NULL", '
                'otherwise="dead_letter")',
                place=place,
            )


def upsert(
    table: Table,
    files: Sequence[WrittenFile],
    batch: Commit,
    staged: Target,
    partition_by: Sequence[str],
    choice: Choice,
) -> None:
    """Merge the staged files of a batch into the table, in one commit, and remove the files."""
    if not files:
        table.append([], batch, staged.schema, partition_by)
        return
    store = Store(table.location, table.options)
    try:
        rows = ds.dataset([file.path for file in files], schema=staged.schema, filesystem=store.system)
        _refuse_equal_keys(rows, choice.keys, batch)
        if not table.is_there():
            table.create_empty(delta_schema(staged.schema), partition_by, batch.owner)
        count = sum(file.rows for file in files)
        streams = sum(file.bytes for file in files) > MOST_BYTES_AT_ONCE
        table.change(
            lambda newest: _merge(newest, rows, batch.properties(count), choice, streams),
            lambda: table.refuse_if_there(batch),
        )
    finally:
        for file in files:
            store.delete(file.path)


def _merge(
    newest: DeltaTable, rows: ds.Dataset, properties: CommitProperties, choice: Choice, streams: bool
) -> None:
    same = " AND ".join(f"old.{_quoted(key)} = new.{_quoted(key)}" for key in choice.keys)
    columns = {_quoted(name): f"new.{_quoted(name)}" for name in rows.schema.names}
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())
    (
        newest.merge(
            reader,
            same,
            source_alias="new",
            target_alias="old",
            streamed_exec=streams,
            commit_properties=properties,
            post_commithook_properties=HOOKS,
        )
        .when_matched_update(columns, choice.replaces())
        .when_not_matched_insert(columns)
        .execute()
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _in_spark(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _refuse_equal_keys(rows: Any, keys: Sequence[str], batch: Commit) -> None:
    found = rows.to_table(columns=list(keys))
    if found.group_by(list(keys)).aggregate([]).num_rows != found.num_rows:
        raise KeysRefused(
            f"two rows of {batch} have the same {', '.join(keys)}, and nothing says which is newer",
            advice=f"Keep the columns {' and '.join(BY_RECORD)}, name others with order_by=, or make one row "
            "of each key",
        )
