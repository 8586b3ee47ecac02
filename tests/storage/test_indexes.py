"""The two indexes against lists, through writing, loading, forgetting and cutting."""

from __future__ import annotations

import struct
import tempfile
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.storage.segments import offset_index
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.page_cache import WouldBlock
from klamm.storage.segments.time_index import TimeIndex

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.sampled_from(["flush", "load", "unload", "reopen"]), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
    ),
    max_size=25,
)


@settings(max_examples=80)
@given(operations=OPERATIONS)
def test_offset_index(operations: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_index, "PENDING_LIMIT", 16)
        patch.setattr(offset_index, "KEPT_ENTRIES", 4)
        path = f"{directory}/index"
        index = OffsetIndex(path)
        model: list[tuple[int, int]] = []
        for operation, argument in operations:
            if operation == "append":
                for _ in range(argument):
                    last = model[-1] if model else (0, 0)
                    model.append((last[0] + 3, last[1] + 100))
                    index.append(*model[-1])
            elif operation == "truncate":
                index.truncate(argument)
                del model[argument:]
            elif operation == "reopen":
                index.flush()
                data = Path(path).read_bytes() if model else b""
                assert data == b"".join(struct.pack(">ii", *entry) for entry in model)
                index = OffsetIndex(path, len(model))
            else:
                getattr(index, operation)()
            assert len(index) == len(model)
            assert index.last_entry() == (model[-1] if model else None)
            check_lookups(index, model)
        assert index.entries() == model


def check_lookups(index: OffsetIndex, model: list[tuple[int, int]]) -> None:
    """Right, or not in memory; what is not yet in the file is always in memory."""
    for offset in range(0, len(model) * 3 + 5, 4):
        place = bisect_right([entry[0] for entry in model], offset)
        try:
            assert index.lookup(offset) == (model[place - 1][1] if place else 0)
            assert index.floor_position(offset * 33) == max(
                (p for _, p in model if p <= offset * 33), default=0
            )
        except WouldBlock:
            assert index._resident.first > 0
    if model and index._written < len(model):
        assert index.lookup(model[-1][0]) == model[-1][1]


@settings(max_examples=80)
@given(
    timestamps=st.lists(st.integers(0, 300), min_size=1, max_size=80),
    flush_every=st.integers(1, 30),
    keep=st.integers(0, 80),
)
def test_time_index(timestamps: list[int], flush_every: int, keep: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/timeindex"
        index = TimeIndex(path)
        model: list[tuple[int, int]] = []
        for offset, timestamp in enumerate(timestamps):
            if timestamp > (model[-1][0] if model else -1):
                model.append((timestamp, offset))
            index.append_if_later(timestamp, offset)
            if offset % flush_every == 0:
                index.flush()
        assert index.entries() == model
        for reopened in (index, reopen(index, path)):
            reopened.truncate(keep)
            assert reopened.entries() == model[:keep]
            assert reopened.last_entry() == (model[:keep][-1] if model[:keep] else None)
            for wanted in range(-1, 301, 13):
                expected = [offset for timestamp, offset in model[:keep] if timestamp <= wanted]
                assert reopened.lookup(wanted) == (expected[-1] if expected else 0)


def reopen(index: TimeIndex, path: str) -> TimeIndex:
    index.flush()
    data = Path(path).read_bytes()
    assert data == b"".join(struct.pack(">qi", *entry) for entry in index.entries())
    return TimeIndex(path, len(index))


def test_memory_holds_only_the_end_of_a_long_index(tmp_path: Path) -> None:
    index = OffsetIndex(str(tmp_path / "index"))
    for number in range(100_000):
        index.append(number, number * 4096)
    assert len(index) == 100_000
    assert len(index._resident.offsets) <= 1024
    not_in_memory = 100_000 - len(index._resident.offsets)
    assert index.load() == not_in_memory * 8
    assert index.lookup(50_000) == 50_000 * 4096
