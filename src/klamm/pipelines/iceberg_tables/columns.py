"""The columns of an Iceberg table: from Spark's types to Iceberg's, and whether rows still fit a table.

Iceberg knows columns by ids. Files have the ids, so that a table's columns can be renamed later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyiceberg import types as of
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from klamm.pipelines.errors import Place
from klamm.pipelines.tables import columns as tables
from klamm.pipelines.tables.columns import TableRefused, check_partition_columns

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_FIRST_PARTITION_ID = 1000
"""The ids of partition fields begin here in all tables."""


def check_columns(schema: StructType, partition_by: Sequence[str], who: str, place: Place) -> None:
    """Raise if an Iceberg table cannot have these columns."""
    from pyspark.sql.types import DoubleType, FloatType

    tables.check_columns(schema, partition_by, who, place)
    ids = count(1)
    for each in schema:
        if "." in each.name:
            raise TableRefused(
                f"the column {each.name!r} of {who} cannot be in an Iceberg table: its name has a dot",
                advice=f'Rename it: .withColumnRenamed("{each.name}", "{each.name.replace(".", "_")}")',
                place=place,
            )
        if _type(each.dataType, ids) is None:
            raise TableRefused(
                f"the column {each.name} of {who} is {each.dataType.simpleString().upper()}, which an "
                "Iceberg table cannot have",
                advice="Cast it to another type",
                place=place,
            )
        is_partition = each.name.lower() in map(str.lower, partition_by)
        if is_partition and isinstance(each.dataType, (FloatType, DoubleType)):
            raise TableRefused(
                f"partition_by of {who} names {each.name}, which is {each.dataType.simpleString().upper()}: "
                "NaN has no place among the partitions",
                advice="Partition by a column of text, whole numbers, dates or times",
                place=place,
            )


def iceberg_schema(schema: StructType) -> Schema:
    """The schema of a new table. Every column may be null. The catalog gives the ids anew."""
    ids = count(1)
    return Schema(*[_field(each.name, each.dataType, ids) for each in schema])


def partition_spec(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """A partition for each value of the columns."""
    return PartitionSpec(
        *[
            PartitionField(
                schema.find_field(name, case_sensitive=False).field_id,
                _FIRST_PARTITION_ID + number,
                IdentityTransform(),
                name,
            )
            for number, name in enumerate(partition_by)
        ]
    )


class Fitted(NamedTuple):
    """How rows fit a table: `renamed` has the names to give to columns that the table spells otherwise, `new`
    the columns that the table does not have yet."""

    renamed: dict[str, str]
    new: dict[str, of.IcebergType]


def fit(
    rows: StructType,
    partition_by: Sequence[str],
    table: Schema,
    spec: PartitionSpec,
    location: str,
    place: Place,
) -> Fitted:
    """How rows fit an existing table. Raises TableRefused if they do not."""
    check_partition_columns(partition_by, _partition_columns(table, spec), location, place)
    known = {each.name.lower(): each for each in table.fields}
    fitted = Fitted({}, {})
    for mine in iceberg_schema(rows).fields:
        theirs = known.get(mine.name.lower())
        if theirs is None:
            fitted.new[mine.name] = mine.field_type
            continue
        if theirs.name != mine.name:
            fitted.renamed[mine.name] = theirs.name
        if type_text(theirs.field_type) != type_text(mine.field_type):
            raise TableRefused(
                f"the column {mine.name} is {type_text(mine.field_type)} now, and "
                f"{type_text(theirs.field_type)} in the table {location}",
                advice="Cast the column, give it another name, or name another table",
                place=place,
            )
    return fitted


def file_schema(table: Schema, names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of files with these columns of the table, with the ids of all fields."""
    return schema_to_pyarrow(Schema(*[table.find_field(name) for name in names]))


def type_text(kind: of.IcebergType) -> str:
    """A type in Iceberg's words, without the ids of its fields and whether they may be null."""
    match kind:
        case of.ListType():
            return f"list<{type_text(kind.element_type)}>"
        case of.MapType():
            return f"map<{type_text(kind.key_type)}, {type_text(kind.value_type)}>"
        case of.StructType():
            return f"struct<{', '.join(f'{one.name}: {type_text(one.field_type)}' for one in kind.fields)}>"
        case _:
            return str(kind)


def _partition_columns(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The columns that a table is partitioned by; with the transform, if it has another than the value."""
    found = []
    for field in spec.fields:
        name = schema.find_column_name(field.source_id) or field.name
        is_value = isinstance(field.transform, IdentityTransform)
        found.append(name if is_value else f"{field.transform}({name})")
    return found


def _field(name: str, kind: DataType, ids: Iterator[int]) -> of.NestedField:
    number = next(ids)
    found = _type(kind, ids)
    assert found is not None, "check_columns was called"
    return of.NestedField(number, name, found, required=False)


def _type(kind: DataType, ids: Iterator[int]) -> of.IcebergType | None:
    """The type of a column; None if Iceberg has none for it."""
    from pyspark.sql import types as spark

    match kind:
        case spark.ArrayType():
            number, element = next(ids), _type(kind.elementType, ids)
            return None if element is None else of.ListType(number, element, element_required=False)
        case spark.MapType():
            key_id, value_id = next(ids), next(ids)
            key, value = _type(kind.keyType, ids), _type(kind.valueType, ids)
            if key is None or value is None:
                return None
            return of.MapType(key_id, key, value_id, value, value_required=False)
        case spark.StructType():
            if any(_type(each.dataType, count(1)) is None for each in kind):
                return None
            return of.StructType(*[_field(each.name, each.dataType, ids) for each in kind])
        case spark.DecimalType():
            return of.DecimalType(kind.precision, kind.scale)
    found = {
        spark.StringType: of.StringType,
        spark.VarcharType: of.StringType,
        spark.CharType: of.StringType,
        spark.BinaryType: of.BinaryType,
        spark.BooleanType: of.BooleanType,
        spark.ByteType: of.IntegerType,
        spark.ShortType: of.IntegerType,
        spark.IntegerType: of.IntegerType,
        spark.LongType: of.LongType,
        spark.FloatType: of.FloatType,
        spark.DoubleType: of.DoubleType,
        spark.DateType: of.DateType,
        spark.TimestampType: of.TimestamptzType,
        spark.TimestampNTZType: of.TimestampType,
    }.get(type(kind))
    return None if found is None else found()
