"""The columns of a table: from Spark's schema to Delta's, and whether rows still fit an existing table.

New columns are added to the table. A column with another type, or other partition columns, are refused:
readers of the table rely on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from deltalake import Field, Schema

from klamm.pipelines.errors import PipelineError, Place

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta does not allow in the names of columns."""


class TableRefused(PipelineError):
    """Rows cannot be written to a table: their columns do not fit, or it is another pipeline's."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which rows are written. Every column may be null, times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([pa.field(each.name, each.type, nullable=True) for each in found])


def delta_schema(schema: pa.Schema) -> Schema:
    return Schema.from_arrow(schema)


def check_columns(schema: StructType, partition_by: Sequence[str], who: str, place: Place) -> None:
    """Raise if a Delta table cannot have these columns."""
    from pyspark.sql.types import ArrayType, BinaryType, MapType, NullType, StructType

    names = [each.name for each in schema]
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise TableRefused(
                f"{who} has two columns called {name}; capital letters do not count",
                advice="Rename one of them",
                place=place,
            )
        seen.add(name.lower())
        if _NOT_IN_NAMES.search(name):
            raise TableRefused(
                f"the column {name!r} of {who} cannot be in a table: names have none of the characters ' "
                f",;{{}}()=', no tab and no new line",
                advice=f'Rename it: .withColumnRenamed("{name}", "{_NOT_IN_NAMES.sub("_", name)}")',
                place=place,
            )
    for each in schema:
        if _has(each.dataType, NullType):
            raise TableRefused(
                f"the column {each.name} of {who} has no type, as all of its values are null",
                advice=f'Cast it: F.lit(None).cast("string").alias("{each.name}")',
                place=place,
            )
        if not _is_known(each.dataType):
            raise TableRefused(
                f"the column {each.name} of {who} is {_type_text(each.dataType)}, which a table cannot have",
                advice="Cast it to another type",
                place=place,
            )
    there = {name.lower(): name for name in names}
    if missing := [name for name in partition_by if name.lower() not in there]:
        raise TableRefused(
            f"partition_by of {who} names {', '.join(missing)}, which it does not have",
            advice=f"The columns are {', '.join(names)}",
            place=place,
        )
    for each in schema:
        if each.name.lower() in map(str.lower, partition_by) and isinstance(
            each.dataType, (ArrayType, MapType, StructType, BinaryType)
        ):
            raise TableRefused(
                f"partition_by of {who} names {each.name}, which is {_type_text(each.dataType)}",
                advice="Partition by a column of text, numbers, dates or times",
                place=place,
            )
    if len(partition_by) == len(names):
        raise TableRefused(
            f"partition_by of {who} names all of its columns",
            advice="Leave at least one that is not a partition column",
            place=place,
        )


class Fitted(NamedTuple):
    """How rows fit a table: `renamed` has the names to give to columns that the table spells otherwise, `new`
    the columns that the table does not have yet."""

    renamed: dict[str, str]
    new: list[Field]


def check_partition_columns(
    partition_by: Sequence[str], table_partition_by: Sequence[str], location: str, place: Place
) -> None:
    """Raise if rows are to be partitioned otherwise than the table."""
    if [name.lower() for name in partition_by] != [name.lower() for name in table_partition_by]:
        raise TableRefused(
            f"the table {location} is partitioned by {_list(table_partition_by)}, not by "
            f"{_list(partition_by)}",
            advice=f"Write partition_by={list(table_partition_by)!r}, or name another table",
            place=place,
        )


def fit(
    rows: StructType,
    partition_by: Sequence[str],
    table: Schema,
    table_partition_by: Sequence[str],
    location: str,
    place: Place,
) -> Fitted:
    """How rows fit an existing table. Raises TableRefused if they do not."""
    check_partition_columns(partition_by, table_partition_by, location, place)
    known = {each.name.lower(): each for each in table.fields}
    renamed: dict[str, str] = {}
    new: list[Field] = []
    for mine in delta_schema(arrow_schema(rows)).fields:
        theirs = known.get(mine.name.lower())
        if theirs is None:
            new.append(mine)
            continue
        if theirs.name != mine.name:
            renamed[mine.name] = theirs.name
        if plain(theirs.type) != plain(mine.type):
            raise TableRefused(
                f"the column {mine.name} is {type_name(mine.type)} now, and {type_name(theirs.type)} in the "
                f"table {location}",
                advice="Cast the column, give it another name, or name another table",
                place=place,
            )
    return Fitted(renamed, new)


def missing_columns(rows: StructType, table: Schema) -> list[str]:
    """Columns of the table that the rows do not have. They are null in new rows."""
    there = {each.name.lower() for each in rows}
    return [each.name for each in table.fields if each.name.lower() not in there]


def plain(kind: Any) -> Any:
    """A type of Delta without what does not concern its values: whether it may be null, and metadata."""
    value = kind if isinstance(kind, (dict, list, str)) else json.loads(kind.to_json())
    if isinstance(value, dict):
        return {
            name: plain(each)
            for name, each in value.items()
            if name not in ("nullable", "metadata", "containsNull", "valueContainsNull")
        }
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def type_name(kind: Any) -> str:
    """A type of Delta as SQL writes it."""
    value = plain(kind)
    if isinstance(value, str):
        return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(
            value, value.upper()
        )
    match value.get("type"):
        case "array":
            return f"ARRAY<{type_name(value['elementType'])}>"
        case "map":
            return f"MAP<{type_name(value['keyType'])}, {type_name(value['valueType'])}>"
        case _:
            fields = ", ".join(f"{each['name']}: {type_name(each['type'])}" for each in value["fields"])
            return f"STRUCT<{fields}>"


def _is_known(kind: DataType) -> bool:
    from pyspark.sql.types import StructType, VariantType

    if _has(kind, VariantType):
        return False
    try:
        delta_schema(arrow_schema(StructType().add("column", kind)))
    except Exception:  # for intervals deltalake raises no error of its own
        return False
    return True


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "nothing"


def _type_text(kind: DataType) -> str:
    return kind.simpleString().upper()


def _has(kind: DataType, wanted: type) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case ArrayType():
            return _has(kind.elementType, wanted)
        case MapType():
            return _has(kind.keyType, wanted) or _has(kind.valueType, wanted)
        case StructType():
            return any(_has(each.dataType, wanted) for each in kind)
        case _:
            return isinstance(kind, wanted)
