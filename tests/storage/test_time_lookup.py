"""From a timestamp to the first record that is not older."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.logs import NOW_MS, Harness, all_records

from klamm.records.batch import BatchHeader
from klamm.records.compression import Codec
from klamm.storage import time_lookup


@pytest.mark.parametrize("codec", list(Codec))
def test_the_exact_record_inside_a_batch(tmp_path: Path, codec: Codec) -> None:
    harness = Harness(tmp_path)
    harness.append(10, timestamp=NOW_MS, epoch=1, codec=codec)
    harness.append(10, timestamp=NOW_MS + 100, epoch=2, codec=codec)
    log = harness.log
    assert log.offset_for_timestamp(NOW_MS + 4) == (4, NOW_MS + 4, 1)
    assert log.offset_for_timestamp(NOW_MS + 10) == (10, NOW_MS + 100, 2)
    assert log.offset_for_timestamp(0) == (0, NOW_MS, 1)
    assert log.offset_for_timestamp(NOW_MS + 110) is None
    assert log.offset_of_max_timestamp() == (19, NOW_MS + 109, 2)


def test_deleted_records_are_not_found(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.append(10, timestamp=NOW_MS)
    harness.log.delete_records_before(4)
    assert harness.log.offset_for_timestamp(0) == (4, NOW_MS + 4, 0)


def test_the_largest_timestamp_of_what_is_left(tmp_path: Path) -> None:
    """Timestamps need not ascend: the newest record may be deleted before others."""
    harness = Harness(tmp_path, segment_bytes=1000)
    harness.append(timestamp=NOW_MS + 50)
    harness.append(5, timestamp=NOW_MS)
    log = harness.log
    assert log.offset_of_max_timestamp() == (0, NOW_MS + 50, 0)
    log.delete_records_before(1)
    assert log.offset_of_max_timestamp() == (5, NOW_MS + 4, 0)
    log.delete_records_before(6)
    assert log.offset_of_max_timestamp() is None


def test_a_log_that_is_truncated_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(tmp_path)
    harness.append(timestamp=NOW_MS, epoch=1)
    harness.append(timestamp=NOW_MS + 1, epoch=1)
    read_batch = time_lookup.read_batch

    def truncate_and_read_batch(fd: int, position: int, header: BatchHeader) -> bytes:
        harness.log.truncate_to(1, NOW_MS)
        return read_batch(fd, position, header)

    monkeypatch.setattr(time_lookup, "read_batch", truncate_and_read_batch)
    assert harness.log.offset_for_timestamp(NOW_MS + 1) is None


def test_an_empty_log_has_none(tmp_path: Path) -> None:
    log = Harness(tmp_path).log
    assert log.offset_for_timestamp(0) is None and log.offset_of_max_timestamp() is None


@settings(max_examples=60)
@given(
    timestamps=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4)), min_size=1, max_size=60),
    interval=st.sampled_from([0, 150, 4096]),
    restart=st.sampled_from(["none", "clean", "crash"]),
    deleted=st.integers(0, 30),
)
def test_against_a_plain_search(
    timestamps: list[tuple[int, int]], interval: int, restart: str, deleted: int
) -> None:
    """Timestamps in any order, several segments, some records deleted, before and after a restart."""
    with tempfile.TemporaryDirectory() as directory:
        harness = Harness(Path(directory), segment_bytes=700, index_interval_bytes=interval)
        for timestamp, count in timestamps:
            harness.append(count, timestamp=timestamp)
        log_start_offset = harness.log.delete_records_before(min(deleted, harness.log.log_end_offset - 1))
        if restart == "clean":
            harness.close_and_open()
        elif restart == "crash":
            harness.crash_and_open()
        records = [record for record in all_records(harness.log) if record.offset >= log_start_offset]
        for wanted in range(0, 210, 7):
            expected = next((r.offset for r in records if r.timestamp >= wanted), None)
            found = harness.log.offset_for_timestamp(wanted)
            assert (found.offset if found else None) == expected
        newest = max(record.timestamp for record in records)
        found = harness.log.offset_of_max_timestamp()
        assert found is not None
        assert found.offset == next(r.offset for r in records if r.timestamp == newest)
