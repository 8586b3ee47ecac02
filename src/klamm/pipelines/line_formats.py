"""Sources of lines: the formats nginx, apache and regex, and the types that their columns can have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from klamm.lineformats.format import Field, LineFormat
from klamm.pipelines.definitions import Format
from klamm.pipelines.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

LINE_FORMATS: tuple[Format, ...] = ("nginx", "apache", "regex")

KEPT_FORMATS = 100
"""How many compiled formats a process keeps: more than a project has sources."""


def line_format(format_: Format, options: Mapping[str, str]) -> LineFormat:
    """The format of a source's lines. Raises BadFormat."""
    return _line_format(format_, tuple(sorted(options.items())))


@lru_cache(KEPT_FORMATS)
def _line_format(format_: Format, options: tuple[tuple[str, str], ...]) -> LineFormat:
    # Each is imported when it is needed: that of regex needs Arrow, which takes a while.
    given = dict(options)
    log_format = {"text": given["log_format"]} if "log_format" in given else {}
    if format_ == "nginx":
        from klamm.lineformats.nginx import nginx_format

        return nginx_format(**log_format, escape=given.get("escape"))
    if format_ == "apache":
        from klamm.lineformats.apache import apache_format

        return apache_format(**log_format)
    from klamm.lineformats.regex import regex_format

    return regex_format(given["pattern"])


def natural_schema(lines: LineFormat) -> StructType:
    """All columns of a format, with the types that their values have by themselves."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(each.name, natural_type(each)) for each in lines.columns])


def natural_type(field: Field) -> DataType:
    from pyspark.sql import types

    kinds: Mapping[str, DataType] = {
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "double": types.DoubleType(),
        "time": types.TimestampType(),
    }
    return kinds.get(field.kind, types.StringType())


def check_schema(lines: LineFormat, schema: StructType) -> None:
    """Raise if a schema names columns that lines of the format do not have, or types that no text has."""
    from pyspark.sql import types

    names = [each.name for each in lines.columns]
    not_texts = (types.ArrayType, types.MapType, types.StructType, types.VariantType)
    what = "group of the pattern" if lines.name == "regex" else "column of the log_format"
    for column in schema:
        if column.name not in names:
            raise SchemaError(
                f"the schema has the column {column.name}, but there is no {what} with this name",
                advice=f"There are {', '.join(names)}",
            )
        if isinstance(column.dataType, not_texts):
            raise SchemaError(
                f"the column {column.name} cannot be {column.dataType.simpleString().upper()}: it is a part "
                "of a line",
                advice="Give it the type of a single value, such as STRING",
            )
