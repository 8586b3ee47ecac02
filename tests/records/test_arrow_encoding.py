"""Arrow columns as batches: the rows come back, in order, in the partitions that the client would choose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.bounds import run_with_checks

from klamm.client.producer.partitioners import KEY_PARTITIONERS
from klamm.records.arrow_encoding import ColumnError, EncodedRecords, encode_columns
from klamm.records.batch import HEADER_SIZE
from klamm.records.builder import assemble_batch
from klamm.records.compression import Codec
from klamm.records.reader import StoredRecord, iter_records

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
DEFAULTS = {"partitions_count": 1, "batch_size": 1 << 16, "now_ms": NOW_MS}
nullable_bytes = st.none() | st.binary(max_size=80)
pairs = st.none() | st.lists(st.tuples(st.text(max_size=5), nullable_bytes), max_size=3)
rows_strategy = st.lists(st.tuples(nullable_bytes, nullable_bytes, pairs), min_size=1, max_size=60)


def encode(table: pa.RecordBatch | pa.Table, **arguments: object) -> list[EncodedRecords]:
    return encode_columns(table, **{**DEFAULTS, **arguments})  # type: ignore[arg-type]


def assembled(encoded: EncodedRecords, codec: int = 0) -> bytearray:
    """The batch as the producer sends it."""
    return assemble_batch(
        encoded.batch[HEADER_SIZE:],
        records_count=encoded.count,
        base_offset=0,
        last_offset_delta=encoded.count - 1,
        leader_epoch=-1,
        attributes=codec,
        base_timestamp=encoded.base_timestamp,
        max_timestamp=encoded.max_timestamp,
    )


def read(encoded: EncodedRecords, codec: int = 0) -> list[StoredRecord]:
    """What a consumer would read."""
    records = list(iter_records(assembled(encoded, codec)))
    assert encoded.max_timestamp == max(record.timestamp for record in records)
    assert [record.offset for record in records] == list(range(encoded.count))
    return records


def by_partition(batches: Iterable[EncodedRecords]) -> dict[int, list[StoredRecord]]:
    found: dict[int, list[StoredRecord]] = defaultdict(list)
    for encoded in batches:
        found[encoded.partition] += [record._replace(offset=0) for record in read(encoded)]
    return dict(found)


def values_of(batches: Iterable[EncodedRecords]) -> list[bytes | None]:
    return [record.value for encoded in batches for record in read(encoded)]


def headers_array(rows: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    as_dicts = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows]
    return pa.array(as_dicts, HEADERS)


@given(rows=rows_strategy, data=st.data())
def test_rows_come_back(rows: list[tuple], data: st.DataObject) -> None:  # type: ignore[type-arg]
    times = [data.draw(st.none() | st.integers(0, 2**50)) for _ in rows]
    partitions = [data.draw(st.none() | st.integers(0, 2)) for _ in rows]
    method = data.draw(st.sampled_from(["murmur2", "crc32"]))
    batch_size = data.draw(st.sampled_from([1, 100, 200, 500, 65536]))
    table = pa.table(
        {
            "k": pa.array([row[0] for row in rows], pa.binary()),
            "v": pa.array([row[1] for row in rows], pa.binary()),
            "h": headers_array([row[2] for row in rows]),
            "t": pa.array(times, pa.timestamp("ms")),
            "p": pa.array(partitions, pa.int8()),
        }
    )
    cut = data.draw(st.integers(0, len(rows)))
    table, rest = table.slice(cut), table.slice(0, cut)  # chunks with offsets of their own
    order = list(range(cut, len(rows)))
    if data.draw(st.booleans()):
        table, order = pa.concat_tables([table, rest]), [*order, *range(cut)]
    encoded = encode(
        table,
        key="k",
        value="v",
        headers="h",
        timestamp="t",
        partition="p",
        partitions_count=3,
        batch_size=batch_size,
        partitioner=method,
    )
    free: list[StoredRecord] = []
    expected: dict[int, list[StoredRecord]] = defaultdict(list)
    for row in order:
        key, value, headers = rows[row]
        time = NOW_MS if times[row] is None else times[row]
        record = StoredRecord(0, time, key, value, tuple(headers or ()))
        partition = partitions[row]
        if partition is None and key is not None:
            partition = KEY_PARTITIONERS[method](key, 3)
        if partition is None:
            free.append(record)
        else:
            expected[partition].append(record)
    found = by_partition(encoded)
    for partition in range(3):
        remaining = iter(found.get(partition, []))
        assert all(record in remaining for record in expected[partition]), "rows of a partition changed order"
    everything = [record for records in found.values() for record in records]
    assert sorted(map(repr, everything)) == sorted(
        map(repr, [*free, *(r for e in expected.values() for r in e)])
    )
    for one in encoded:
        assert len(one.batch) <= batch_size or one.count == 1


@pytest.mark.parametrize("method", ["murmur2", "crc32"])
@given(keys=st.lists(st.binary(max_size=40), min_size=1, max_size=50), count=st.integers(1, 200))
def test_keys_choose_as_in_send(method: str, keys: list[bytes], count: int) -> None:
    batch = pa.record_batch({"k": pa.array(keys, pa.binary())})
    encoded = encode(
        batch, key="k", value="k", partitions_count=count, partitioner=method, rotation=[count - 1]
    )
    expected = defaultdict(list)
    for key in keys:
        chosen = KEY_PARTITIONERS[method](key, count)
        expected[count - 1 if chosen is None else chosen].append(key)
    assert {p: [r.key for r in records] for p, records in by_partition(encoded).items()} == expected


def test_rows_without_key_go_round_a_batch_each() -> None:
    values = [b"%04d" % row + bytes(96) for row in range(1000)]
    encoded = encode(
        pa.record_batch({"v": values}), value="v", partitions_count=4, batch_size=5000, rotation=[2, 0, 3]
    )
    assert [one.partition for one in encoded] == ([2, 0, 3] * 10)[: len(encoded)]
    assert values_of(encoded) == values
    assert all(4800 < len(one.batch) <= 5000 for one in encoded[:-1])


def test_a_row_larger_than_a_batch_goes_alone() -> None:
    values = [b"a", bytes(1000), b"b", b"c"]
    encoded = encode(pa.record_batch({"v": values}), value="v", batch_size=200)
    assert [one.count for one in encoded] == [1, 1, 2]
    assert values_of(encoded) == values


VALUES = [b"one", b"", None, b"three", b"one"]
TYPES = {
    "binary": pa.array(VALUES, pa.binary()),
    "string": pa.array(VALUES, pa.binary()).cast(pa.string()),
    "large_binary": pa.array(VALUES, pa.large_binary()),
    "large_string": pa.array(VALUES, pa.binary()).cast(pa.large_string()),
    "binary_view": pa.array(VALUES, pa.binary_view()),
    "string_view": pa.array(["one", "", None, "three", "one"], pa.string_view()),
    "dictionary": pa.array(VALUES, pa.binary()).dictionary_encode(),
    "dictionary of strings": pa.array(VALUES, pa.binary()).cast(pa.string()).dictionary_encode(),
    "chunks": pa.chunked_array([VALUES[:2], [], VALUES[2:]], pa.binary()),
    "dictionaries": pa.chunked_array(
        [pa.array(VALUES[:3], pa.binary()).dictionary_encode(), pa.array(VALUES[3:]).dictionary_encode()]
    ),
    "slice": pa.array([b"x", *VALUES, b"y"], pa.binary()).slice(1, 5),
    "sliced bits": pa.array([None] * 13 + VALUES + [None], pa.large_binary()).slice(13, 5),
}


@pytest.mark.parametrize("kind", TYPES)
def test_columns_of_bytes(kind: str) -> None:
    column = TYPES[kind]
    for form in forms({"k": column, "v": column}):
        (encoded,) = encode(form, value="v", key="k")
        assert [record.value for record in read(encoded)] == VALUES
        assert [record.key for record in read(encoded)] == VALUES


def forms(columns: dict[str, pa.Array | pa.ChunkedArray]) -> Iterable[pa.RecordBatch | pa.Table]:
    """A table, and a batch where that can be: there slices keep their place in what they are slices of."""
    yield pa.table(columns)
    if not any(isinstance(column, pa.ChunkedArray) for column in columns.values()):
        yield pa.record_batch(columns)


def test_bytes_of_fixed_size() -> None:
    fixed = pa.array([b"abcd", None, b"efgh"], pa.binary(4))
    assert values_of(encode(pa.record_batch({"v": fixed}), value="v")) == [b"abcd", None, b"efgh"]
    assert values_of(encode(pa.record_batch({"v": fixed.slice(1)}), value="v")) == [None, b"efgh"]
    uuids = pa.array([bytes(range(16))], pa.uuid())
    assert values_of(encode(pa.record_batch({"v": uuids}), value="v")) == [bytes(range(16))]


def test_no_values_at_all() -> None:
    batch = pa.record_batch({"k": [b"a", b"b"], "n": pa.nulls(2)})
    for value in (None, "n"):
        assert values_of(encode(batch, value=value, key="k")) == [None, None]
    assert encode(batch.slice(0, 0), value="k") == []


@pytest.mark.parametrize(
    "column",
    [
        headers_array([[("a", b"1"), ("ü", None)], None, []]),
        headers_array([[("x", b"")], [("a", b"1"), ("ü", None)], None, []]).slice(1),
        pa.array([[("a", b"1"), ("ü", None)], None, []], pa.map_(pa.string(), pa.binary())),
        pa.array(
            [[("x", b"y")], [("a", b"1"), ("ü", None)], None, []], pa.map_(pa.string(), pa.binary())
        ).slice(1),
        headers_array([[("a", b"1"), ("ü", None)], None, []]).cast(
            pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
        ),
        pa.array(
            [[{"value": b"1", "key": b"a"}, {"value": None, "key": "ü".encode()}], None, []],
            pa.list_(pa.struct([("value", pa.binary()), ("key", pa.binary())])),
        ),
        pa.chunked_array([headers_array([[("a", b"1"), ("ü", None)]]), headers_array([None, []])]),
    ],
    ids=["list", "list slice", "map", "map slice", "large list", "fields of bytes", "chunks"],
)
def test_headers(column: pa.Array) -> None:
    for form in forms({"v": pa.array([b"1", b"2", b"3"]), "h": column}):
        (encoded,) = encode(form, value="v", headers="h")
        assert [record.headers for record in read(encoded)] == [(("a", b"1"), ("ü", None)), (), ()]


def test_headers_of_a_null_row_are_not_sent() -> None:
    pairs = pa.array([{"key": "a", "value": b"1"}], HEADERS.value_type)
    ends = pa.array([0, 1, 1], pa.int32())
    column = pa.ListArray.from_arrays(ends, pairs, mask=pa.array([True, False]))
    assert column.null_count == 1
    batch = pa.record_batch({"v": [b"1", b"2"], "h": column})
    assert [record.headers for record in read(encode(batch, value="v", headers="h")[0])] == [(), ()]


@pytest.mark.parametrize(
    "kind", [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC", "Asia/Tokyo")]
)
def test_timestamps_of_any_unit(kind: pa.DataType) -> None:
    moment = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    column = pa.array([moment.replace(tzinfo=None) if kind.tz is None else moment, None], kind)
    (encoded,) = encode(pa.record_batch({"v": [b"1", b"2"], "t": column}), value="v", timestamp="t")
    expected = int(moment.timestamp() * 1000)
    assert [record.timestamp for record in read(encoded)] == [expected, NOW_MS]
    assert (encoded.base_timestamp, encoded.max_timestamp) == (expected, max(expected, NOW_MS))


def test_timestamps_in_milliseconds_that_go_back() -> None:
    batch = pa.record_batch({"v": [b"1", b"2", b"3"], "t": [10**12, 5, 10**12 + 1]})
    (encoded,) = encode(batch, value="v", timestamp="t")
    assert [record.timestamp for record in read(encoded)] == [10**12, 5, 10**12 + 1]


@pytest.mark.parametrize("codec", list(Codec))
def test_payloads_are_compressed_as_they_are(codec: Codec) -> None:
    values = [b"%d" % row for row in range(1000)]
    (encoded,) = encode(pa.record_batch({"v": values}), value="v")
    assert [record.value for record in read(encoded, codec)] == values


ERRORS = {
    "no such column": ({"value": "w"}, r"no column named 'w'; its columns are 'v', 'i', 't', 'l', 'p', 'n'"),
    "value type": ({"value": "i"}, "column 'i' is int64; a value must be binary or string"),
    "key type": ({"value": "v", "key": "t"}, r"column 't' is timestamp\[s\]; a key must be"),
    "time type": ({"value": "v", "timestamp": "v"}, "column 'v' is binary; a timestamp must be"),
    "time before 1970": ({"value": "v", "timestamp": "t"}, "column 't', row 1: the timestamp is before 1970"),
    "partition type": ({"value": "v", "partition": "v"}, "column 'v' is binary; a partition must be"),
    "partition": (
        {"value": "v", "partition": "p"},
        "column 'p', row 1: partition 3 does not exist; the topic has 3",
    ),
    "negative partition": (
        {"value": "v", "partition": "n"},
        "column 'n', row 1: partition -1 does not exist",
    ),
    "headers type": ({"value": "v", "headers": "l"}, "column 'l' is list<.*int64>; headers must be"),
    "headers type, no list": ({"value": "v", "headers": "v"}, "column 'v' is binary; headers must be"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_columns_are_named(name: str) -> None:
    arguments, message = ERRORS[name]
    batch = pa.record_batch(
        {
            "v": [b"1", b"2"],
            "i": [1, 2],
            "t": pa.array([1, -5], pa.timestamp("s")),
            "l": [[1], []],
            "p": [2, 3],
            "n": [None, -1],
        }
    )
    with pytest.raises(ColumnError, match=message):
        encode(batch, partitions_count=3, **arguments)


def test_names_of_headers() -> None:
    nameless = headers_array([[("a", b"")], [(None, b"1")]])  # type: ignore[list-item]
    with pytest.raises(ColumnError, match="column 'h', row 1: a header has no name"):
        encode(pa.record_batch({"v": [b"1", b"2"], "h": nameless}), value="v", headers="h")
    kind = pa.map_(pa.binary(), pa.binary())
    with pytest.raises(ColumnError, match="'h' has a header whose name is not UTF-8"):
        encode(
            pa.record_batch({"v": [b"1"], "h": pa.array([[(b"\xff", b"")]], kind)}), value="v", headers="h"
        )


def test_two_columns_of_one_name() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array([b"2"])], names=["v", "v"])
    with pytest.raises(ColumnError, match="2 columns named 'v'"):
        encode(batch, value="v")


@pytest.mark.parametrize("ends", [[0, 5, 3], [0, 99, 5], [0, -1, 3], [0, 2**62, 5]])
def test_malformed_arrays_are_refused(ends: list[int]) -> None:
    """Nobody may make us read outside of a column, not even with arrays that break Arrow's rules."""
    buffers = [None, pa.py_buffer(np.array(ends, np.int64)), pa.py_buffer(b"abcde")]
    broken = pa.Array.from_buffers(pa.large_binary(), 2, buffers)
    batch = pa.record_batch({"v": [b"1", b"2"], "b": broken})
    for arguments in ({"value": "b"}, {"value": "v", "key": "b"}):
        with pytest.raises(ColumnError, match=r"column 'b', row [01]: the Arrow array is malformed"):
            encode(batch, **arguments)


def address(encoded: list[EncodedRecords]) -> int:
    return int(np.frombuffer(encoded[0].batch, np.uint8).ctypes.data)


def test_memory_is_used_again_only_when_nobody_has_it() -> None:
    def table(letter: bytes) -> pa.RecordBatch:
        return pa.record_batch({"v": pa.array([letter * 1000] * 2000, pa.binary())})

    first = encode(table(b"a"), value="v")
    second = encode(table(b"b"), value="v")
    left = first.pop()
    del first  # one batch of it is still there
    third = encode(table(b"c"), value="v")
    assert set(values_of([left])) == {b"a" * 1000}
    assert set(values_of(second)) == {b"b" * 1000} and set(values_of(third)) == {b"c" * 1000}

    place = address(third)
    del third
    fourth = encode(table(b"d"), value="v")
    assert address(fourth) == place
    assert set(values_of(fourth)) == {b"d" * 1000} and set(values_of(second)) == {b"b" * 1000}


@pytest.mark.long
def test_nothing_is_read_or_written_out_of_bounds() -> None:
    """These tests once more, with kernels that check each index."""
    arguments = ["-q", "-p", "no:cacheprovider", __file__, "-k", "not bounds"]
    done = run_with_checks("-m", "pytest", *arguments)
    assert done.returncode == 0, done.stdout
