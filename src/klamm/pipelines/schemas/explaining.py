"""Explains why Spark could not decode a value. Runs in workers, for dead-letter records only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice

from pyspark.sql.types import StructType

from klamm.pipelines.schemas.fitting import misfits

SHOWN_MISFITS = 3
"""How many fields an explanation names."""


def json_explainer(schema: StructType, options: Mapping[str, str]) -> Callable[[bytes], str | None]:
    own_time_formats = any(name.endswith("Format") for name in options)

    def explain(value: bytes) -> str | None:
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            return f"the value is not UTF-8: byte {error.start} is {value[error.start]:#04x}"
        try:
            parsed = json.loads(text)
        except ValueError as error:
            return f"the value is not valid JSON: {error}" if text.strip() else "the value is empty"
        if not isinstance(parsed, dict):
            return (
                f"the value is {type(parsed).__name__ if parsed is not None else 'null'}, not a JSON object"
            )
        found = list(islice(misfits(parsed, schema, own_time_formats=own_time_formats), SHOWN_MISFITS))
        return "; ".join(found) or None

    return explain
