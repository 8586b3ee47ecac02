"""The two cases in which a produced batch must be opened before it may enter the log.

A compacted topic refuses records without a key, and a topic whose `compression.type` is not `producer`
stores its own codec. Both take time that grows with the batch, so `open_and_rewrite` runs in a thread, on a
copy; everything else passes as it came.
"""

from __future__ import annotations

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import COMPRESSION_MASK, BatchHeader, parse_header
from klamm.records.builder import assemble_batch
from klamm.records.compression import CODEC_NAMES
from klamm.records.reader import iter_spans, open_payload
from klamm.storage.log_config import LogConfig


def must_open(header: BatchHeader, config: LogConfig) -> bool:
    return config.cleanup_compact or (
        config.compression_type != "producer" and _stored_codec(header, config) != header.compression
    )


def open_and_rewrite(batch: bytearray, config: LogConfig) -> bytearray:
    """Check the keys of `batch` and give it the topic's codec; returns the batch to append."""
    header = parse_header(batch)
    payload = open_payload(batch)
    if config.cleanup_compact:
        _check_records(payload, header.records_count)
    codec = _stored_codec(header, config)
    if codec == header.compression:
        return batch
    return assemble_batch(
        payload,
        records_count=header.records_count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes & ~COMPRESSION_MASK | codec,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        level=config.compression_level,
    )


def _check_records(payload: memoryview, records_count: int) -> None:
    """What compaction relies on: every record has a key, and the records are what the header says."""
    end = 0
    for index, span in enumerate(iter_spans(payload, records_count)):
        if span.key is None:
            raise NullKey(index)
        if span.offset_delta != index:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"record {index} of the batch says that it is {span.offset_delta}"
            )
        end = span.end
    if end != len(payload):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(payload) - end} bytes follow the last record")


class NullKey(KafkaError):
    """A record without a key on a compacted topic; `record_index` is its place in the batch."""

    def __init__(self, record_index: int) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"record {record_index} of the batch has no key, which a compacted topic needs",
        )
        self.record_index = record_index


def _stored_codec(header: BatchHeader, config: LogConfig) -> int:
    if config.compression_type == "producer":
        return header.compression
    return CODEC_NAMES[config.compression_type]
