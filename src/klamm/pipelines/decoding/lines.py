"""Lines of access logs, and of formats that users describe by a pattern. Python workers find the fields, over
Arrow; Spark converts those whose type in the schema is not the natural one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, DateType, StringType, StructField, StructType, TimestampType

from klamm.lineformats.format import LineFormat
from klamm.lineformats.reading import read_lines
from klamm.pipelines.decoding.plain import DECODED, Decoding
from klamm.pipelines.decoding.workers import MOST_ERROR_CHARACTERS, ColumnFunction
from klamm.pipelines.definitions import Source
from klamm.pipelines.line_formats import line_format, natural_type
from klamm.pipelines.schemas.resolving import ERROR_COLUMN
from pyspark_klamm.worker_memory import freeze_loaded_objects

SHOWN_CHARACTERS = 60
"""The beginning of a value in an error, enough to recognise it."""


def decode_lines(value: Column, source: Source, schema: StructType) -> Decoding:
    lines = line_format(source.format, source.options)
    found = found_schema(lines, schema)
    udf = _udf(lines, StructType([*found.fields, StructField(ERROR_COLUMN, StringType())]))
    columns = {
        wanted.name: _converted(_of_struct(wanted.name), wanted.dataType, source.options)
        for wanted, raw in zip(schema, found, strict=True)
        if wanted.dataType != raw.dataType
    }
    errors = [_misfit(schema[name], column) for name, column in columns.items()]
    return Decoding(udf(value), F.coalesce(_of_struct(ERROR_COLUMN), *errors), columns)


def found_schema(lines: LineFormat, schema: StructType) -> StructType:
    """What the workers find of a schema: a column has its natural type if the schema can have that, or else
    is text."""
    kinds = {each.name: each for each in lines.columns}
    fields = []
    for column in schema:
        natural = natural_type(kinds[column.name])
        # A date is that of the time, and not to be read from how a server writes times.
        is_natural = natural == column.dataType or (
            isinstance(natural, TimestampType) and not isinstance(column.dataType, StringType)
        )
        fields.append(StructField(column.name, natural if is_natural else StringType()))
    return StructType(fields)


def decode_values(lines: LineFormat, found: StructType, values: pa.Array) -> tuple[list[pa.Array], pa.Array]:
    """The columns of `found`, and the errors, of some values."""
    texts = [column.name for column in found if isinstance(column.dataType, StringType)]
    columns = read_lines(lines, values, [column.name for column in found], texts)
    return [columns.values[column.name] for column in found], columns.errors


def _udf(lines: LineFormat, result: StructType) -> ColumnFunction:
    arrow_type = to_arrow_type(result, timezone="UTC")
    found = StructType(result.fields[:-1])

    def decode_batch(values: pa.Array) -> pa.Array:
        columns, errors = decode_values(lines, found, values)
        shortened = pc.utf8_slice_codeunits(errors, 0, MOST_ERROR_CHARACTERS)
        fields = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
        arrays = [array.cast(each.type) for array, each in zip([*columns, shortened], fields, strict=True)]
        freeze_loaded_objects()
        return pa.StructArray.from_arrays(arrays, fields=fields)

    udf = arrow_udf(decode_batch, returnType=result)  # type: ignore[call-overload]
    # Spark would repeat the call for each field of the struct if it were deterministic.
    decode: ColumnFunction = udf.asNondeterministic()
    return decode


def _converted(text: Column, to: DataType, options: Mapping[str, str]) -> Column:
    if isinstance(to, TimestampType) and "timestampFormat" in options:
        return F.try_to_timestamp(text, F.lit(options["timestampFormat"]))
    if isinstance(to, DateType) and "dateFormat" in options:
        return F.try_to_timestamp(text, F.lit(options["dateFormat"])).cast(to)
    return text.try_cast(to)


def _misfit(column: StructField, converted: Column) -> Column:
    raw = _of_struct(column.name)
    kind = column.dataType.simpleString().upper()
    shown = F.substring(raw.cast("string"), 1, SHOWN_CHARACTERS)
    sentence = F.concat(F.lit(f"{column.name} is '"), shown, F.lit(f"', which does not fit {kind}"))
    return F.when(raw.isNotNull() & converted.isNull(), sentence)


def _of_struct(name: str) -> Column:
    return F.col(f"{DECODED}.`{name.replace('`', '``')}`")
