"""Turns fetched records into Arrow columns. Needs klamm[arrow]. `arrow_encoding.py` turns columns into
batches.

No Python object is made per record: batches are decompressed, and the kernels of `columns.py` then read them
straight into the buffers of the columns. Importing this module compiles the kernels, which takes two seconds,
or loads them from the cache, which takes less than half a second. Nothing is compiled later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.records import columns
from klamm.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    CorruptBatch,
)
from klamm.records.decoding import decode_records, open_payload
from klamm.records.fetched import FetchedRecords, walk_batches
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("headers", pa.list_(HEADER_TYPE), nullable=False),
    ]
)
"""`timestamp_type` is 0 for the producer's time (CreateTime), 1 for the broker's (LogAppendTime)."""

MAX_BYTES = 256 * 1024 * 1024
"""A RecordBatch ends with the batch whose decompressed records reach this size: columns have 32-bit
offsets."""
MAX_ROWS = 8_000_000
"""Rows of one RecordBatch: with topic names of at most 249 bytes, the column of topics stays below 2 GiB."""
_MAX_COLUMN_BYTES = 2**31 - 1
_SMALLEST_RECORD_BYTES = 7
"""A record's length and six fields, of one byte each."""


class _Source(NamedTuple):
    """Batches in one piece of memory: those of a fetch, or the decompressed records of one batch."""

    data: Array
    table: list[tuple[int, ...]]
    """A row per batch, as `columns.scan_batches` expects it."""
    headers: list[BatchHeader]


class _Piece(NamedTuple):
    """The batches of one `FetchedRecords` that are read now."""

    fetched: FetchedRecords
    sources: list[_Source]
    end_offset: int
    error: KafkaError | None = None
    """Why the batches after `end_offset` cannot be read."""


def to_record_batch(
    fetched: Iterable[FetchedRecords], max_records: int | None = None, max_bytes: int = MAX_BYTES
) -> tuple[pa.RecordBatch, dict[TopicPartition, int]]:
    """Records as one RecordBatch of `SCHEMA`, and the next offset to read of each partition that was reached.

    It ends after `max_records` rows, also inside of a batch, or with the batch that reaches `max_bytes`. If a
    batch is malformed, it ends before that batch; if there are no records before it, `CorruptBatch` is
    raised.
    """
    limit = MAX_ROWS if max_records is None else min(max_records, MAX_ROWS)
    gathered = _Gathered(limit, max_bytes)
    for one in fetched:
        gathered.add(one)
        if gathered.is_enough:
            break
    rows = _Rows(min(gathered.most_rows, limit))
    next_offsets: dict[TopicPartition, int] = {}
    for piece in gathered.pieces:
        place = TopicPartition(piece.fetched.topic, piece.fetched.partition)
        status, end_offset, error = columns.DONE, piece.end_offset, piece.error
        for source in piece.sources:
            status = rows.scan(piece.fetched, source)
            if status != columns.DONE:
                end_offset = int(rows.state[columns.NEXT_OFFSET])
                error = (
                    _explain(source, int(rows.state[columns.BATCH])) if status == columns.CORRUPT else None
                )
                break
        if error is not None and not rows.count:
            raise _with_place(error, place) from error
        next_offsets[place] = end_offset
        if status != columns.DONE:
            break
    return rows.build(), next_offsets


class _Gathered:
    """Collects batches, decompressed if need be, until they may have enough rows or bytes."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        self.pieces: list[_Piece] = []
        self.most_rows = 0
        """The pieces can have no more rows than this, whatever the headers of their batches say."""
        self.is_enough = False
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0

    def add(self, fetched: FetchedRecords) -> None:
        sources: list[_Source] = []
        end_offset = fetched.from_offset
        error = None
        try:
            for header, position, has_records in walk_batches(fetched):
                if has_records:
                    self.is_enough = self.most_rows >= self._limit or self._bytes >= self._max_bytes
                    if self.is_enough or not self._add_batch(sources, fetched, header, position):
                        break
                end_offset = max(end_offset, header.last_offset + 1)
        except KafkaError as caught:
            error = caught
            self.is_enough = True
        self.pieces.append(_Piece(fetched, sources, end_offset, error))

    def _add_batch(
        self, sources: list[_Source], fetched: FetchedRecords, header: BatchHeader, position: int
    ) -> bool:
        start, end = position + HEADER_SIZE, position + header.size
        is_compressed = header.attributes & COMPRESSION_MASK
        if is_compressed:
            payload = open_payload(fetched.data[position:end], header=header)
            start, end = 0, len(payload)
        if self._bytes + end - start > _MAX_COLUMN_BYTES:
            self.is_enough = True
            return False
        if is_compressed:
            sources.append(_Source(_read_only(payload), [], []))
        elif not sources or sources[-1].headers[0].attributes & COMPRESSION_MASK:
            sources.append(_Source(_read_only(fetched.data), [], []))
        timestamp_type = int(header.attributes & LOG_APPEND_TIME_FLAG != 0)
        sources[-1].headers.append(header)
        sources[-1].table.append(
            (
                start,
                end,
                header.records_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp,
                timestamp_type,
                header.max_timestamp,
            )
        )
        offsets = header.last_offset - max(fetched.from_offset, header.base_offset) + 1
        self.most_rows += max(0, min(header.records_count, offsets, (end - start) // _SMALLEST_RECORD_BYTES))
        self._bytes += end - start
        return True


class _Rows:
    """The columns while they are filled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.state = np.zeros(columns.STATE_FIELDS, np.int64)
        self._offsets = np.empty(limit, np.int64)
        self._timestamps = np.empty(limit, np.int64)
        self._timestamp_types = np.empty(limit, np.int32)
        self._keys = _Field(limit)
        self._values = _Field(limit)
        self._header_starts = np.empty(limit, np.int64)
        self._header_ends = _ends(limit)
        self._parts: list[tuple[FetchedRecords, Array, int, int]] = []

    @property
    def count(self) -> int:
        return int(self.state[columns.ROWS])

    def scan(self, fetched: FetchedRecords, source: _Source) -> int:
        """Check the batches of a source and take their rows, as far as there is room."""
        first = self.count
        self.state[columns.NEXT_OFFSET] = max(fetched.from_offset, source.headers[0].base_offset)
        status = columns.scan_batches(
            source.data,
            np.array(source.table, np.int64),
            fetched.from_offset,
            self._limit,
            self.state,
            self._offsets,
            self._timestamps,
            self._timestamp_types,
            self._keys.starts,
            self._keys.ends,
            self._keys.bits,
            self._values.starts,
            self._values.ends,
            self._values.bits,
            self._header_starts,
            self._header_ends,
        )
        self._parts.append((fetched, source.data, first, self.count))
        return status

    def build(self) -> pa.RecordBatch:
        count = self.count
        copies = [(data, first, last) for _, data, first, last in self._parts]
        arrays = [
            self._keys.build(copies, count, int(self.state[columns.KEY_NULLS])),
            self._values.build(copies, count, int(self.state[columns.VALUE_NULLS])),
            self._topics(count),
            _fixed_width(pa.int32(), self._partitions(count), count),
            _fixed_width(pa.int64(), self._offsets, count),
            _fixed_width(SCHEMA.field("timestamp").type, self._timestamps, count),
            _fixed_width(pa.int32(), self._timestamp_types, count),
            self._headers(copies, count),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _topics(self, count: int) -> pa.Array:
        names = [(part[0].topic.encode(), part[3] - part[2]) for part in self._parts]
        lengths = np.repeat([len(name) for name, _ in names], [rows for _, rows in names])
        ends = _ends(count)
        np.cumsum(lengths, out=ends[1:])
        data = b"".join([name * rows for name, rows in names])
        return _binary(pa.string(), count, ends, data)

    def _partitions(self, count: int) -> Array:
        partitions = np.empty(count, np.int32)
        for fetched, _, first, last in self._parts:
            partitions[first:last] = fetched.partition
        return partitions

    def _headers(self, copies: list[tuple[Array, int, int]], count: int) -> pa.Array:
        headers = int(self._header_ends[count])
        name_ends, value_ends = _ends(headers), _ends(headers)
        names = np.empty(self.state[columns.HEADER_NAME_BYTES], np.uint8)
        values = np.empty(self.state[columns.HEADER_VALUE_BYTES], np.uint8)
        value_bits = _bits(headers)
        nulls = 0
        if headers:
            for data, first, last in copies:
                nulls += columns.copy_headers(
                    data,
                    self._header_starts,
                    self._header_ends,
                    first,
                    last,
                    name_ends,
                    names,
                    value_ends,
                    values,
                    value_bits,
                )
        fields = [
            _names(headers, name_ends, names),
            _binary(pa.binary(), headers, value_ends, values, value_bits, nulls),
        ]
        pairs = pa.StructArray.from_arrays(fields, fields=list(HEADER_TYPE))
        buffers = [None, pa.py_buffer(self._header_ends)]
        return pa.Array.from_buffers(SCHEMA.field("headers").type, count, buffers, 0, children=[pairs])


class _Field:
    """The column of keys or of values."""

    def __init__(self, limit: int) -> None:
        self.starts = np.empty(limit, np.int64)
        """Where each key or value begins in its source."""
        self.ends = _ends(limit)
        self.bits = _bits(limit)

    def build(self, copies: list[tuple[Array, int, int]], count: int, nulls: int) -> pa.Array:
        data = np.empty(self.ends[count], np.uint8)
        if data.size:
            for source, first, last in copies:
                columns.copy_fields(source, self.starts, self.ends, first, last, data)
        return _binary(pa.binary(), count, self.ends, data, self.bits, nulls)


def _read_only(data: memoryview) -> Array:
    """The bytes as an array of the one type that the kernels are compiled for."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


def _ends(rows: int) -> Array:
    """Arrow's offsets of a column: where each row ends, after the 0 where the first begins."""
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return ends


def _bits(rows: int) -> Array:
    return np.zeros((rows + 7) // 8, np.uint8)


def _binary(
    kind: pa.DataType, rows: int, ends: Array, data: Any, bits: Array | None = None, nulls: int = 0
) -> pa.Array:
    validity = pa.py_buffer(bits) if nulls else None
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def _names(rows: int, ends: Array, data: Any) -> pa.Array:
    """Names of headers as text. A byte of a name that is not UTF-8 becomes an escape such as `\\xff`."""
    names = _binary(pa.string(), rows, ends, data)
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.cast(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "backslashreplace") for name in raw], pa.string())
    return names


def _fixed_width(kind: pa.DataType, values: Array, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)


def _explain(source: _Source, batch: int) -> CorruptBatch:
    """The error of a batch that a kernel refused. Kernels have no messages, so the plain decoder makes it."""
    start, end = source.table[batch][columns.START], source.table[batch][columns.END]
    try:
        decode_records(source.headers[batch], source.data[start:end].tobytes())
    except CorruptBatch as error:
        return error
    raise AssertionError("the two decoders do not agree about a batch")


def _with_place(error: KafkaError, place: TopicPartition) -> KafkaError:
    message = f"{place}: {error.message}"
    return CorruptBatch(message) if isinstance(error, CorruptBatch) else KafkaError(error.code, message)
