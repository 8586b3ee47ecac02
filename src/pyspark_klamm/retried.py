"""Retried records, which a redrive of pipelines sends to a retry topic: their rows look like the original
records. A core.

Their headers have the coordinates of the original record. Rows get these coordinates, and a header that says
where in the retry topic the record lies. Records of a retry topic without such headers are the redrive's own
notes, and become no rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.model.dead_letter_headers import OFFSET as OFFSET
from klamm.model.dead_letter_headers import PARTITION as PARTITION
from klamm.model.dead_letter_headers import TIMESTAMP as TIMESTAMP
from klamm.model.dead_letter_headers import TOPIC as TOPIC

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = "klamm.retry"
"""The header of rows with their place in the retry topic, as `place_text` writes it."""

_MICROSECONDS_PER_MS = 1000


def place_text(topic: str, partition: int, offset: int) -> str:
    """A place in a retry topic: "<topic>-<partition>/<offset>". No topic has a slash in its name."""
    return f"{topic}-{partition}/{offset}"


def as_originals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a retry topic with the coordinates of their original records."""
    import pyarrow as pa

    names = [name for name in batch.schema.names if not name.startswith("timestamp")]
    rows = batch.select(names).to_pylist()
    return pa.RecordBatch.from_pylist([made for row in rows if (made := _original(row))], schema=batch.schema)


def _original(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row of the original record; None for a record that stands for no other one."""
    headers = row["headers"] or []
    told = {header["key"]: (header["value"] or b"").decode(errors="replace") for header in headers}
    partition, offset = number(told.get(PARTITION, "")), number(told.get(OFFSET, ""))
    if not told.get(TOPIC) or partition is None or offset is None:
        return None
    place = place_text(row["topic"], row["partition"], row["offset"])
    kept = [header for header in headers if header["key"] != PLACE]
    time_ms = number(told.get(TIMESTAMP, ""))
    return {
        "key": row["key"],
        "value": row["value"],
        "topic": told[TOPIC],
        "partition": partition,
        "offset": offset,
        "timestamp": None if time_ms is None else time_ms * _MICROSECONDS_PER_MS,
        "timestampType": 0,
        "headers": [*kept, {"key": PLACE, "value": place.encode()}],
    }


def number(text: str) -> int | None:
    """A header's number; None if it is not one."""
    return int(text) if text.isascii() and text.isdigit() else None
