"""Upserts: rows replace those with the same keys, in one commit.

Tasks write a batch into the table's store as files that no commit names. The driver then merges these files
into the table, with deltalake, and removes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable

from klamm.pipelines.errors import PipelineError, Place
from klamm.pipelines.tables.columns import delta_schema
from klamm.pipelines.tables.files import Store, Target
from klamm.pipelines.tables.table import HOOKS, Commit, Table, WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = ("_timestamp", "_offset")
"""Columns that tell which of two rows with the same keys is the newer one."""


class KeysRefused(PipelineError):
    """Rows of a batch have no key, or the same one."""


def only_newest(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The newest row of each key, if the rows still have the coordinates of their records."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not set(ORDER) <= set(frame.columns):
        return frame
    newest_first = Window.partitionBy(*keys).orderBy(*[F.desc(name) for name in ORDER])
    place = "_klamm_place"
    return frame.withColumn(place, F.row_number().over(newest_first)).filter(f"{place} = 1").drop(place)


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
    keys: Sequence[str],
) -> None:
    """Merge the staged files of a batch into the table, in one commit, and remove the files."""
    if not files:
        table.append([], batch, staged.schema, partition_by)
        return
    store = Store(table.location, table.options)
    try:
        rows = ds.dataset([file.path for file in files], schema=staged.schema, filesystem=store.system)
        _refuse_equal_keys(rows, keys, batch)
        if not table.is_there():
            table.create_empty(delta_schema(staged.schema), partition_by, batch.owner)
        count = sum(file.rows for file in files)
        table.change(
            lambda newest: _merge(newest, rows, batch.properties(count), keys),
            lambda: table.refuse_if_there(batch),
        )
    finally:
        for file in files:
            store.delete(file.path)


def _merge(newest: DeltaTable, rows: ds.Dataset, properties: CommitProperties, keys: Sequence[str]) -> None:
    same = " AND ".join(f"old.{_quoted(key)} = new.{_quoted(key)}" for key in keys)
    columns = {_quoted(name): f"new.{_quoted(name)}" for name in rows.schema.names}
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())
    (
        newest.merge(
            reader,
            same,
            source_alias="new",
            target_alias="old",
            commit_properties=properties,
            post_commithook_properties=HOOKS,
        )
        .when_matched_update(columns)
        .when_not_matched_insert(columns)
        .execute()
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _refuse_equal_keys(rows: Any, keys: Sequence[str], batch: Commit) -> None:
    found = rows.to_table(columns=list(keys))
    if found.group_by(list(keys)).aggregate([]).num_rows != found.num_rows:
        raise KeysRefused(
            f"two rows of {batch} have the same {', '.join(keys)}, and nothing says which is newer",
            advice=f"Keep the columns {' and '.join(ORDER)}, or make one row of each key",
        )
