"""Hands out what is buffered as Arrow columns. Only calling it, not importing it, needs klamm[arrow]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client.consumer.hand_out import HandOut
from klamm.model.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow

MAX_CHUNK_BYTES = 16 * 1024 * 1024
"""How many fetched bytes one poll_arrow takes at most, or one fetch if that is larger: columns that are made
in a few milliseconds, and long enough that the call itself costs nothing."""


def read_columns(records: HandOut, max_records: int | None) -> pyarrow.RecordBatch | None:
    """What is buffered as one RecordBatch; None if there is nothing. From any thread."""
    from klamm.records.arrow import to_record_batch

    chunks = records.chunks(MAX_CHUNK_BYTES)
    if not chunks:
        return None
    try:
        batch, next_offsets = to_record_batch([chunk.fetched for chunk in chunks], max_records)
    except KafkaError as failure:
        if len(chunks) > 1:
            # One of them is broken, and everything before it held no records. Which one?
            return _read_first(records, max_records)
        records.broken(chunks[0], failure)
        return None
    records.advance(chunks, next_offsets)
    return batch if batch.num_rows else None


def _read_first(records: HandOut, max_records: int | None) -> pyarrow.RecordBatch | None:
    from klamm.records.arrow import to_record_batch

    for chunk in records.chunks(1):
        try:
            batch, next_offsets = to_record_batch([chunk.fetched], max_records)
        except KafkaError as failure:
            records.broken(chunk, failure)
        else:
            records.advance([chunk], next_offsets)
            return batch if batch.num_rows else None
    return None


def empty_columns() -> pyarrow.RecordBatch:
    from klamm.records.arrow import to_record_batch

    return to_record_batch([])[0]
