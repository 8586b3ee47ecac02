"""The core of compaction: which records stay, and what becomes of their batches."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.records.batch import DELETE_HORIZON_FLAG, BatchHeader, CorruptBatch, compute_crc, parse_header
from klamm.records.builder import build_batch
from klamm.records.compression import Codec
from klamm.records.reader import StoredRecord, iter_records, iter_spans, open_payload
from klamm.storage.compaction.batch_filter import BatchFilter, Retention
from klamm.storage.compaction.offset_map import (
    MAP_ENTRY_BYTES,
    SHORT_KEY_BYTES,
    OffsetMap,
    build_offset_map,
    key_identity,
)

T0 = 1_700_000_000_000
DAY_MS = 86_400_000
PLENTY = 1 << 30


def batch(base_offset: int, *pairs: tuple[bytes | None, bytes | None], **options: object) -> bytes:
    records = [StoredRecord(base_offset + i, T0 + base_offset + i, *pair) for i, pair in enumerate(pairs)]
    return bytes(build_batch(records, base_offset=base_offset, **options))  # type: ignore[arg-type]


def parsed(batches: list[bytes]) -> list[tuple[BatchHeader, memoryview]]:
    return [(parse_header(data), memoryview(data)) for data in batches]


def compact(
    batches: list[bytes],
    *,
    first_dirty: int = 0,
    now_ms: int = T0,
    bound: int = 1 << 40,
    map_limit_bytes: int = PLENTY,
    producers: tuple[tuple[int, int], ...] = (),
) -> list[bytes]:
    dirty = [(header, data) for header, data in parsed(batches) if header.last_offset >= first_dirty]
    offset_map = build_offset_map(dirty, first_dirty, map_limit_bytes)
    filter_ = BatchFilter(offset_map, Retention(now_ms, DAY_MS, bound, frozenset(producers)))
    kept = [filter_.apply(header, data) for header, data in parsed(batches)]
    result = [bytes(data) for data in kept if data is not None]
    for data in result:
        header = parse_header(data)
        assert header.size == len(data)
        assert header.crc == compute_crc(data)
        assert header.records_count == len(list(iter_records(data)))
    return result


def contents(batches: list[bytes]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for data in batches for r in iter_records(data)]


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    batches = [
        batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")),
        batch(3, (b"c", b"1"), (b"b", b"2")),
        batch(5, (b"a", b"3")),
    ]
    assert contents(compact(batches)) == [(3, b"c", b"1"), (4, b"b", b"2"), (5, b"a", b"3")]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_keeps_all_but_the_records_it_lost(codec: Codec) -> None:
    original = batch(
        10,
        *((f"k{i % 40}".encode(), b"v" * 50) for i in range(100)),
        codec=codec,
        leader_epoch=3,
        producer_id=7,
        producer_epoch=2,
        base_sequence=100,
    )
    (cleaned,) = compact([original])
    before, after = parse_header(original), parse_header(cleaned)
    assert contents([cleaned]) == contents([original])[60:]
    changed = {"batch_length", "crc", "records_count"}
    for field in BatchHeader._fields:
        if field not in changed:
            assert getattr(after, field) == getattr(before, field), field
    assert [r.timestamp for r in iter_records(cleaned)] == [T0 + 10 + i for i in range(60, 100)]


def test_max_timestamp_is_that_of_the_records_that_stay() -> None:
    records = [
        StoredRecord(0, T0 + 500, b"a", b"1"),
        StoredRecord(1, T0 + 3, b"b", b"1"),
        StoredRecord(2, T0 + 2, b"a", b"2"),
    ]
    (cleaned,) = compact([bytes(build_batch(records))])
    assert parse_header(cleaned).max_timestamp == T0 + 3
    assert [r.timestamp for r in iter_records(cleaned)] == [T0 + 3, T0 + 2]


def test_a_batch_that_loses_nothing_is_the_same_object() -> None:
    data = memoryview(batch(0, (b"a", b"1"), (b"b", b"1"), codec=Codec.GZIP))
    filter_ = BatchFilter(OffsetMap({}, 10), Retention(T0, DAY_MS, 100, frozenset()))
    assert filter_.apply(parse_header(data), data) is data


def test_a_tombstone_lives_until_its_horizon() -> None:
    batches = [batch(0, (b"a", b"1"), (b"b", b"1")), batch(2, (b"a", None), (b"c", b"1"))]
    dated = compact(batches, now_ms=T0)
    assert contents(dated) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    header = parse_header(dated[-1])
    assert header.attributes & DELETE_HORIZON_FLAG
    assert header.delete_horizon_ms == T0 + DAY_MS
    assert header.max_timestamp == T0 + 3
    assert [r.timestamp for r in iter_records(dated[-1])] == [T0 + 2, T0 + 3]

    kept = compact(dated, first_dirty=4, now_ms=T0 + DAY_MS - 1)
    assert kept == dated, "a second compaction must not set a new date"
    dropped = compact(dated, first_dirty=4, now_ms=T0 + DAY_MS)
    assert contents(dropped) == [(1, b"b", b"1"), (3, b"c", b"1")]
    assert [r.timestamp for r in iter_records(dropped[-1])] == [T0 + 3]
    assert parse_header(dropped[-1]).max_timestamp == T0 + 3


def test_a_tombstone_past_the_map_gets_no_date() -> None:
    limit_bytes = 2 * MAP_ENTRY_BYTES
    batches = [batch(0, (b"a", b"1"), (b"b", b"1")), batch(2, (b"c", None))]
    assert compact(batches, map_limit_bytes=limit_bytes) == batches


def test_a_tombstone_in_a_batch_that_the_map_reaches_into_gets_no_date() -> None:
    """Its other records are not in the map yet; the next compaction dates the whole batch."""
    limit_bytes = 2 * MAP_ENTRY_BYTES
    batches = [batch(0, (b"a", b"1")), batch(1, (b"b", None), (b"c", None))]
    assert compact(batches, map_limit_bytes=limit_bytes) == batches
    (_, dated) = compact(batches, first_dirty=2, map_limit_bytes=limit_bytes)
    assert parse_header(dated).delete_horizon_ms == T0 + DAY_MS


def test_records_without_a_key_go() -> None:
    assert contents(compact([batch(0, (None, b"1"), (b"a", b"2"), (None, None))])) == [(1, b"a", b"2")]


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    options = {"producer_id": 7, "producer_epoch": 1}
    batches = [
        batch(0, (b"a", b"1"), base_sequence=0, **options),
        batch(1, (b"a", b"2"), (b"b", b"2"), base_sequence=1, codec=Codec.ZSTD, **options),
        batch(3, (b"a", b"3"), (b"b", b"3")),
    ]
    cleaned = compact(batches, producers=((7, 2),))
    assert [parse_header(data).base_offset for data in cleaned] == [1, 3]
    empty = parse_header(cleaned[0])
    assert (empty.records_count, empty.base_sequence, empty.last_offset) == (0, 1, 2)
    assert (empty.producer_id, empty.producer_epoch, empty.compression) == (7, 1, Codec.NONE)
    assert compact(cleaned, first_dirty=5, producers=((7, 2),)) == cleaned
    assert len(compact(cleaned, first_dirty=5)) == 1, "once the producer is forgotten its batch may go"


def test_the_last_batch_before_the_bound_stays_without_records() -> None:
    batches = [batch(0, (b"a", b"1")), batch(1, (None, b"x"))]
    cleaned = compact(batches, bound=2)
    assert [(parse_header(d).last_offset, parse_header(d).records_count) for d in cleaned] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("option", ["is_control", "is_transactional"])
def test_what_is_not_understood_stays_and_counts_for_nothing(option: str) -> None:
    special = batch(1, (b"a", b"2"), (b"a", None), producer_id=1, **{option: True})
    batches = [batch(0, (b"a", b"1")), special]
    assert compact(batches, now_ms=T0 + 10 * DAY_MS) == batches


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_damaged_batch_stays_as_it_is(codec: Codec) -> None:
    damaged = bytearray(batch(1, (b"a", b"2"), codec=codec))
    damaged[-3] ^= 0xFF
    batches = [batch(0, (b"a", b"1")), bytes(damaged)]
    offset_map = build_offset_map(parsed(batches), 0, PLENTY)
    filter_ = BatchFilter(offset_map, Retention(T0, DAY_MS, 9, frozenset()))
    assert [filter_.apply(*pair) for pair in parsed(batches)] == batches
    assert offset_map.end_offset == 2


def test_a_full_map_compacts_up_to_where_it_reaches() -> None:
    pairs = [(f"k{i % 10}".encode(), str(i).encode()) for i in range(20)]
    batches = [batch(0, *pairs[:7]), batch(7, *pairs[7:])]
    limit_bytes = 8 * MAP_ENTRY_BYTES
    offset_map = build_offset_map(parsed(batches), 0, limit_bytes)
    assert (len(offset_map.offsets), offset_map.end_offset) == (8, 8)
    first = compact(batches, map_limit_bytes=limit_bytes)
    assert contents(first) == contents(batches)
    second = compact(first, first_dirty=8, map_limit_bytes=limit_bytes)
    third = compact(second, first_dirty=16, map_limit_bytes=limit_bytes)
    assert contents(third) == contents(batches)[10:]


def test_long_keys_are_told_apart() -> None:
    long = b"x" * (SHORT_KEY_BYTES + 1)
    assert key_identity(long) != key_identity(long + b"y")
    assert key_identity(long[:-1]) == long[:-1]
    assert contents(compact([batch(0, (long, b"1"), (long + b"y", b"1"), (long, b"2"))])) == [
        (1, long + b"y", b"1"),
        (2, long, b"2"),
    ]


keys = st.sampled_from([b"", b"a", b"b", b"c" * 60, b"d" * 200])
values = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=200)), max_size=3).map(tuple)
deltas = st.integers(-(2**40), 2**40)
some_records = st.lists(st.tuples(deltas, st.none() | keys, values, headers), min_size=1, max_size=60)


@given(some_records, st.data())
def test_the_scan_of_damaged_records_ends_in_corrupt_batch_or_records(
    fields: list[tuple[int, bytes, bytes, tuple]], data: st.DataObject
) -> None:
    records = [StoredRecord(i, T0 + delta, *rest) for i, (delta, *rest) in enumerate(fields)]
    payload = bytearray(open_payload(build_batch(records)))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for damaged in (bytes(payload), cut):
        with contextlib.suppress(CorruptBatch):
            list(iter_spans(damaged, len(records)))


batch_plans = st.lists(
    st.tuples(
        st.lists(st.tuples(st.none() | keys, values), min_size=1, max_size=8),
        st.sampled_from(list(Codec)),
        st.sampled_from([-1, 1, 2]),
    ),
    min_size=1,
    max_size=12,
)


@given(batch_plans, st.integers(1, 6), st.lists(st.integers(0, 3 * DAY_MS), min_size=1, max_size=4))
def test_many_compactions_agree_with_a_model(
    plans: list[tuple[list[tuple[bytes | None, bytes | None]], Codec, int]],
    capacity: int,
    steps_ms: list[int],
) -> None:
    """The model: a key's last record stays; if it is a tombstone, it may go a day after it was first seen."""
    batches: list[bytes] = []
    sequences = {1: 0, 2: 0}
    end = 0
    for pairs, codec, producer_id in plans:
        options = {"codec": codec, "producer_id": producer_id, "producer_epoch": 0 if producer_id > 0 else -1}
        options["base_sequence"] = sequences.get(producer_id, -1)
        batches.append(batch(end, *pairs, **options))
        if producer_id > 0:
            sequences[producer_id] += len(pairs)
        end += len(pairs)
    producers = {parse_header(b).producer_id: parse_header(b).last_offset for b in batches}
    producers.pop(-1, None)
    original = contents(batches)
    last = {key: (offset, value) for offset, key, value in original if key is not None}
    cleaned, first_dirty, now_ms, rounds = batches, 0, T0, 0
    while first_dirty < end or rounds < len(steps_ms):
        now_ms += steps_ms[rounds % len(steps_ms)]
        dirty = [pair for pair in parsed(cleaned) if pair[0].last_offset >= first_dirty]
        offset_map = build_offset_map(dirty, first_dirty, capacity * MAP_ENTRY_BYTES)
        filter_ = BatchFilter(offset_map, Retention(now_ms, DAY_MS, end, frozenset(producers.items())))
        kept = [filter_.apply(*pair) for pair in parsed(cleaned)]
        cleaned = [bytes(data) for data in kept if data is not None]
        assert offset_map.end_offset > first_dirty or first_dirty == end, "it must come forward"
        first_dirty, rounds = offset_map.end_offset, rounds + 1
    survivors = contents(cleaned)
    assert set(survivors) <= set(original)
    assert [offset for offset, _, _ in survivors] == sorted({offset for offset, _, _ in survivors})
    expected = {(offset, key, value) for key, (offset, value) in last.items()}
    assert set(survivors) <= expected
    assert {entry for entry in expected if entry[2] is not None} <= set(survivors)
    if sum(steps_ms) < DAY_MS and rounds == len(steps_ms):
        assert set(survivors) == expected
    last_batches = {parse_header(b).producer_id: parse_header(b) for b in cleaned}
    for producer_id, last_offset in producers.items():
        header = last_batches[producer_id]
        assert header.last_offset == last_offset
        assert (header.base_sequence + header.last_offset_delta + 1) == sequences[producer_id]
    assert max(parse_header(b).last_offset for b in cleaned) == end - 1
