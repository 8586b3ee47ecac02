"""Chooses the decoder of a source's format."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from klamm.pipelines.decoding import avro, lines, plain, protobuf
from klamm.pipelines.decoding.plain import DECODED, Decoding
from klamm.pipelines.definitions import CARRIED, Source
from klamm.pipelines.line_formats import LINE_FORMATS
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.resolving import ERROR_COLUMN


def decode(raw: DataFrame, source: Source, schema: StructType, project: Project) -> DataFrame:
    """The decoded columns, ERROR_COLUMN, and the carried columns of `raw`."""
    struct, error, columns = _decoding(source, schema, project)
    spread = [
        columns.get(name, F.col(f"{DECODED}.`{name.replace('`', '``')}`")).alias(name)
        for name in schema.names
    ]
    carried = [F.col(name) for name in CARRIED]
    return raw.withColumn(DECODED, struct).select(*spread, error.alias(ERROR_COLUMN), *carried)


def _decoding(source: Source, schema: StructType, project: Project) -> Decoding:
    value = F.col("_value")
    if source.format == "json":
        return plain.decode_json(value, schema, source.options)
    if source.format == "csv":
        return plain.decode_csv(value, schema, source.options)
    if source.format == "text":
        return plain.decode_text(value, source.options)
    if source.format == "avro":
        return Decoding(avro.decoder(source, schema, project)(value), F.col(f"{DECODED}.{ERROR_COLUMN}"))
    if source.format == "protobuf":
        return Decoding(protobuf.decoder(source, schema, project)(value), F.col(f"{DECODED}.{ERROR_COLUMN}"))
    if source.format in LINE_FORMATS:
        return lines.decode_lines(value, source, schema)
    return plain.keep_binary(value)


def unknown_fields(source: Source, schema: StructType) -> Column | None:
    """A column with the names of a record's fields that the schema does not have; null for records that are
    not sampled. Only for JSON, and only for fields of the outermost object.
    """
    if source.format != "json":
        return None
    return plain.unknown_json_fields(F.col("_value"), F.col("_offset"), schema)
