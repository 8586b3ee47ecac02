"""Schema files: a StructType as JSON, one file per source, for people to review.

The file has Spark's own JSON of a StructType, with the fields in the schema's order, so that the same schema
is always the same text and a change is a small diff. It is replaced in one step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import types

from klamm.pipelines.errors import SchemaError

_KEYS = (
    "name",
    "type",
    "keyType",
    "valueType",
    "elementType",
    "nullable",
    "containsNull",
    "valueContainsNull",
)


def read_schema(file: Path) -> types.StructType:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SchemaError(
            f"the schema {file} cannot be read: {error.strerror}", advice="Create it, or name another"
        ) from None
    try:
        return types.StructType.fromJson(json.loads(text))
    except Exception as error:  # the file has any JSON, on which Spark raises errors of any type
        raise SchemaError(
            f"{file} is not a valid schema: {type(error).__name__}: {error}",
            advice="It must have the JSON of a StructType; delete it to have it inferred again",
        ) from None


def write_schema(file: Path, schema: types.StructType) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(schema_text(schema), encoding="utf-8")
    os.replace(beside, file)


def schema_text(schema: types.StructType) -> str:
    return json.dumps(_ordered(schema.jsonValue()), indent=2, ensure_ascii=False) + "\n"


def _ordered(value: Any) -> Any:
    """The JSON with keys in a readable order and without empty metadata."""
    if isinstance(value, list):
        return [_ordered(each) for each in value]
    if not isinstance(value, dict):
        return value
    keys = [key for key in _KEYS if key in value] + sorted(key for key in value if key not in _KEYS)
    return {key: _ordered(value[key]) for key in keys if key != "metadata" or value[key]}
