"""Decodes JSON, CSV and text with Spark's own expressions: no row leaves the JVM.

Spark's readers lose data silently: they ignore an empty value, bytes that are not UTF-8, and whatever follows
the first JSON object. Here these are errors, like a value of another type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from klamm.pipelines.schemas.resolving import ERROR_COLUMN

DECODED = "_decoded"
"""The temporary column with the decoded struct."""

NOT_TEXT = "the value is not UTF-8"
EMPTY = "the value is empty"
NOT_JSON = "the value is not a JSON object, or does not fit the columns of the schema"
NOT_ONE = "something follows the first JSON object of the value"
NOT_CSV = "the value has more or fewer columns than the schema, or does not fit their types"

LOOKED_AT = 64
"""One record in this many is checked for unknown fields, since that costs as much as decoding. The first
record of a partition is always checked."""

# A closing brace followed by more than white space, perhaps inside of a string.
_ONE_AFTER_THE_OTHER = r"\}\s*(,\s*\{|[^\s,}\]])"
_WHITE_SPACE = " \t\r\n"


class Decoding(NamedTuple):
    """How a format is decoded: `struct` makes the column DECODED, `error` an error or null from it, and
    `columns` those columns that are more than a field of the struct.

    These are two steps, because Spark decodes as often as an expression uses the struct.
    """

    struct: Column
    error: Column
    columns: Mapping[str, Column] = MappingProxyType({})


def decode_json(value: Column, schema: StructType, options: Mapping[str, str]) -> Decoding:
    text = value.cast("string")
    parsed = F.from_json(text, _with_corrupt(schema), _permissive(options))
    trimmed = F.rtrim(text, F.lit(_WHITE_SPACE))
    # Only the few values that match the quick test are parsed again.
    in_list = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    has_more = F.rlike(text, F.lit(_ONE_AFTER_THE_OTHER)) & (F.coalesce(in_list, F.lit(0)) != 1)
    error = _error(
        text, (trimmed == "", EMPTY), (~F.endswith(trimmed, F.lit("}")), NOT_JSON), (has_more, NOT_ONE)
    )
    return Decoding(parsed, error.when(_is_corrupt(), F.lit(NOT_JSON)))


def decode_csv(value: Column, schema: StructType, options: Mapping[str, str]) -> Decoding:
    text = value.cast("string")
    line = F.rtrim(text, F.lit("\r\n"))
    columns = ", ".join(
        f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}"
        for field in _with_corrupt(schema)
    )
    error = _error(text, (line == "", EMPTY))
    return Decoding(
        F.from_csv(line, columns, _permissive(options)), error.when(_is_corrupt(), F.lit(NOT_CSV))
    )


def decode_text(value: Column, options: Mapping[str, str]) -> Decoding:
    encoding = options.get("encoding", "UTF-8")
    if encoding.upper() in ("UTF-8", "UTF8"):
        text = F.try_validate_utf8(value.cast("string"))
        error = F.when(value.isNotNull() & F.col(f"{DECODED}.value").isNull(), F.lit(NOT_TEXT))
    else:
        text = F.decode(value, encoding)
        error = F.lit(None).cast("string")
    return Decoding(F.struct(text.alias("value")), error)


def keep_binary(value: Column) -> Decoding:
    return Decoding(F.struct(value.alias("value")), F.lit(None).cast("string"))


def unknown_json_fields(value: Column, offset: Column, schema: StructType) -> Column:
    names = F.json_object_keys(value.cast("string"))
    known = F.array(*[F.lit(field.name) for field in schema])
    return F.when(offset % LOOKED_AT == 0, F.array_except(names, known))


def _with_corrupt(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField(ERROR_COLUMN, StringType())])


def _permissive(options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": ERROR_COLUMN}


def _is_corrupt() -> Column:
    return F.col(DECODED).isNull() | F.col(f"{DECODED}.{ERROR_COLUMN}").isNotNull()


def _error(text: Column, *faults: tuple[Column, str]) -> Column:
    """Null for a null value; else the first fault that applies, or null."""
    error = F.when(text.isNull(), F.lit(None).cast("string")).when(~F.is_valid_utf8(text), F.lit(NOT_TEXT))
    for is_there, sentence in faults:
        error = error.when(is_there, F.lit(sentence))
    return error
