"""The cases in which a produced batch must be opened before it may enter the log.

* A compacted topic refuses records without a key.
* A topic with `message.timestamp.before.max.ms` refuses records that are too old; the header of a batch does
  not tell the time of the oldest.
* If the header says that a record is too new, the answer names all records that are.
* A topic whose `compression.type` is not `producer` stores its own codec.

Opening takes time that grows with the batch, so `open_and_rewrite` runs in a thread, on a copy. All other
batches are stored as they came.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import COMPRESSION_MASK, NO_TIMESTAMP, BatchHeader, CorruptBatch, parse_header
from klamm.records.builder import assemble_batch
from klamm.records.compression import CODEC_NAMES
from klamm.records.reader import iter_spans, open_payload
from klamm.storage.log_config import LogConfig

MAX_RECORD_ERRORS = 10_000
"""Refused records that one answer names, over all batches of its request. This is how many librdkafka puts
into a batch; a compressed batch may hold millions, and the answer must not grow far beyond its request."""

_NO_KEY = "the record has no key, which a compacted topic needs"


class RecordError(NamedTuple):
    """The place of a refused record in its batch, and what is wrong with the record."""

    batch_index: int
    message: str


class InvalidRecords(KafkaError):
    """A batch that is refused because of `count` of its records. `record_errors` are those to be named."""

    def __init__(
        self, code: ErrorCode, first: RecordError, count: int, record_errors: list[RecordError]
    ) -> None:
        more = count - 1
        super().__init__(
            code,
            f"record {first.batch_index} of the batch is refused"
            + (f", and so are {more} others" if more else "")
            + f": {first.message}",
        )
        self.record_errors = record_errors


def opens_every_batch(config: LogConfig) -> bool:
    """True if no batch can be judged by its header alone."""
    return config.cleanup_compact or config.limits_old_timestamps


def must_open(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    return (
        opens_every_batch(config)
        or (config.compression_type != "producer" and _stored_codec(header, config) != header.compression)
        or _has_new_timestamp(header, config, now_ms)
    )


def open_and_rewrite(
    batch: bytearray, config: LogConfig, now_ms: int, max_record_errors: int = MAX_RECORD_ERRORS
) -> bytearray:
    """Check the records of `batch` and give it the topic's codec; returns the batch to append.

    At most `max_record_errors` refused records are named; the code and the message do not depend on it.
    """
    header = parse_header(batch)
    payload = open_payload(batch)
    if opens_every_batch(config) or _has_new_timestamp(header, config, now_ms):
        _check_records(payload, header, config, now_ms, max_record_errors)
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


def _check_records(
    payload: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, max_record_errors: int
) -> None:
    """Refuse a batch whose records break a rule of the topic, or are not what the header says."""
    first: RecordError | None = None
    count = 0
    record_errors: list[RecordError] = []
    code = ErrorCode.INVALID_RECORD
    needs_keys = config.cleanup_compact
    checks_timestamps = not config.uses_log_append_time
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    try:
        for index, span in enumerate(iter_spans(bytes(payload), header.records_count)):
            _, _, offset_delta, timestamp_delta, key, _ = span
            if offset_delta != index:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"record {index} of the batch has the offset delta {offset_delta}, expected {index}",
                )
            timestamp = header.base_timestamp + timestamp_delta
            if needs_keys and key is None:
                message = _NO_KEY
            elif checks_timestamps and not oldest_ms <= timestamp <= newest_ms and timestamp != NO_TIMESTAMP:
                code = ErrorCode.INVALID_TIMESTAMP
                message = f"timestamp {timestamp} is not between {oldest_ms} and {newest_ms}"
            else:
                continue
            count += 1
            if first is None:
                first = RecordError(index, message)
            if count <= max_record_errors:
                record_errors.append(RecordError(index, message))
            if count == MAX_RECORD_ERRORS:
                break
    except CorruptBatch as error:
        # The CRC is right, so the producer made the batch like this: sending it again would not help.
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
    if first is not None:
        raise InvalidRecords(code, first, count, record_errors)


def _has_new_timestamp(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """True if the header says that a record is further ahead of the broker's clock than the topic allows."""
    return (
        header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        and not config.uses_log_append_time
    )


def _stored_codec(header: BatchHeader, config: LogConfig) -> int:
    if config.compression_type == "producer":
        return header.compression
    return CODEC_NAMES[config.compression_type]
