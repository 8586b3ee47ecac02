"""Reading the records of a batch on disk, as far as compaction needs them: where each lies, and its key."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from klamm.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    CorruptBatch,
    compute_crc,
)
from klamm.records.compression import decompress
from klamm.records.reader import RecordSpan, iter_spans

_NEVER_TOUCHED = CONTROL_FLAG | TRANSACTIONAL_FLAG

BatchOnDisk: TypeAlias = tuple[BatchHeader, memoryview]


class OpenedBatch(NamedTuple):
    payload: bytes
    records: list[RecordSpan]


def open_batch(header: BatchHeader, data: memoryview) -> OpenedBatch | None:
    """The payload and the records of a batch; None for a batch that compaction leaves as it is."""
    if header.attributes & _NEVER_TOUCHED or compute_crc(data) != header.crc:
        return None
    try:
        codec = header.attributes & COMPRESSION_MASK
        payload = bytes(decompress(codec, data[HEADER_SIZE:])) if codec else bytes(data[HEADER_SIZE:])
        records = list(iter_spans(payload, header.records_count))
    except CorruptBatch:
        return None
    if records and (records[0][2] < 0 or records[-1][2] > header.last_offset_delta):
        return None
    return OpenedBatch(payload, records)
