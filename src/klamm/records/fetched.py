"""Iterates over the batches of a fetched partition, and tells which of them have records to read.

- An incomplete last batch is ignored: brokers may end an answer inside a batch.
- Control batches are skipped and, for readers of committed records, batches of aborted transactions. The next
  fetch starts after their offsets, as after the gaps that compaction leaves.
- Offsets of batches ascend. Bytes that are not a batch, or a batch whose CRC is wrong, raise `CorruptBatch`,
  which ends the iteration after the batches before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    CorruptBatch,
    parse_header,
)
from klamm.records.compression import Codec
from klamm.records.crc import crc32c
from klamm.records.decoding import decode_records, open_payload

_MAX_OFFSET = 2**63 - 1
_LAST_CODEC = int(Codec.ZSTD)
_ABORT_MARKER = b"\x00\x00"
"""The type in a control record's key, after its version."""


class FetchedRecords(NamedTuple):
    """The batches of one partition in the answer to one fetch, not yet decompressed."""

    topic: str
    partition: int
    data: memoryview
    from_offset: int
    aborted: tuple[tuple[int, int], ...] | None = None
    """Aborted transactions as (producer id, first offset); None if uncommitted records are read too."""
    check_crcs: bool = True


def data_batches(fetched: FetchedRecords) -> Iterator[memoryview]:
    """The batches that have records to hand out, in order; the first may begin before `from_offset`."""
    data = memoryview(fetched.data)
    for header, position, has_records in walk_batches(fetched):
        if has_records:
            yield data[position : position + header.size]


def walk_batches(fetched: FetchedRecords) -> Iterator[tuple[BatchHeader, int, bool]]:
    """The header of each whole batch, its position, and True if it has records to hand out."""
    data = memoryview(fetched.data)
    from_offset = fetched.from_offset
    checks_crcs = fetched.check_crcs
    aborted = sorted(fetched.aborted or (), key=lambda entry: entry[1], reverse=True)
    aborting: set[int] = set()
    for header, position, end, last_offset in _whole_batches(data):
        is_wanted = last_offset >= from_offset
        if is_wanted and checks_crcs:
            crc = crc32c(data[position + ATTRIBUTES_POSITION : end])
            if crc != header.crc:
                raise _wrong_crc(header, crc)
        while aborted and aborted[-1][1] <= last_offset:
            aborting.add(aborted.pop()[0])
        attributes = header.attributes
        if attributes & CONTROL_FLAG:
            is_wanted = False
            if aborting and _is_abort_marker(header, data[position:end]):
                aborting.discard(header.producer_id)
        elif (attributes & TRANSACTIONAL_FLAG and header.producer_id in aborting) or not header.records_count:
            is_wanted = False
        yield header, position, is_wanted


def end_offset(fetched: FetchedRecords) -> int:
    """The offset after the last whole batch: where the next fetch begins."""
    return end_position(fetched)[0]


def end_position(fetched: FetchedRecords) -> tuple[int, int]:
    """`end_offset`, and the leader epoch of the last whole batch; -1 if there is none."""
    offset, epoch = fetched.from_offset, -1
    for header, _, _, last_offset in _whole_batches(memoryview(fetched.data)):
        offset = max(offset, last_offset + 1)
        epoch = header.partition_leader_epoch
    return offset, epoch


def _whole_batches(data: memoryview) -> Iterator[tuple[BatchHeader, int, int, int]]:
    """The header of each whole batch, the positions where the batch begins and ends, and its last offset."""
    size = len(data)
    position = 0
    previous_offset = -1
    while size - position >= HEADER_SIZE:
        header = parse_header(data, position)
        base_offset, length, _, magic, _, attributes, last_offset_delta, *_ = header
        if magic != MAGIC:
            raise _wrong_magic(magic)
        end = position + length + LOG_OVERHEAD
        if end < position + HEADER_SIZE:
            raise CorruptBatch(f"a batch states a size of {header.size} bytes, which is less than its header")
        if end > size:
            return
        if base_offset <= previous_offset or last_offset_delta < 0:
            raise CorruptBatch(f"the batch at offset {base_offset} follows offset {previous_offset}")
        last_offset = base_offset + last_offset_delta
        if last_offset >= _MAX_OFFSET:
            raise CorruptBatch(f"the batch at offset {base_offset} ends beyond the largest offset")
        if attributes & COMPRESSION_MASK > _LAST_CODEC:
            raise CorruptBatch(f"the batch at offset {base_offset} has an unknown compression type")
        yield header, position, end, last_offset
        previous_offset = last_offset
        position = end
    if size - position > MAGIC_POSITION and data[position + MAGIC_POSITION] < MAGIC:
        raise _wrong_magic(data[position + MAGIC_POSITION])


def _wrong_crc(header: BatchHeader, crc: int) -> CorruptBatch:
    return CorruptBatch(
        f"the CRC of the batch at offset {header.base_offset} is {crc:#010x}, "
        f"its header says {header.crc:#010x}"
    )


def _is_abort_marker(header: BatchHeader, batch: memoryview) -> bool:
    keys = decode_records(header, open_payload(batch)).keys
    return bool(keys) and keys[0] is not None and keys[0][2:4] == _ABORT_MARKER


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"the partition holds records of message format v{magic}, which is not supported; "
            "copy them to a new topic with a client that reads this format and writes record batches (v2)",
        )
    return CorruptBatch(f"magic {magic} is not that of a record batch")
