"""Opening a directory that something happened to: crashes, damaged files, interrupted operations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.storage.logs import NOW_MS, Harness, all_batches, all_records

from klamm.records.batch import parse_header
from klamm.storage.recovery import DELETED_SUFFIX, SWAP_SUFFIX
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
)
from klamm.storage.verify import verify_log_directory

PRODUCER = {"producer_id": 5, "producer_epoch": 2}


def filled(tmp_path: Path, batches: int = 60, **settings: int) -> Harness:
    harness = Harness(
        tmp_path, **{"segment_bytes": 1500, "index_interval_bytes": 200, "retention_ms": -1, **settings}
    )
    for number in range(batches):
        harness.append(timestamp=NOW_MS + number, base_sequence=number, epoch=number // 20, **PRODUCER)
    return harness


def damage(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


def check(harness: Harness, offsets: int) -> None:
    assert harness.log.log_end_offset == offsets
    assert [record.offset for record in all_records(harness.log)] == list(range(offsets))
    harness.log.close()
    assert verify_log_directory(harness.directory) == []


def test_a_crash_loses_nothing_that_was_written(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    log = harness.crash_and_open()
    assert log.epochs.entries == ((0, 0), (1, 20), (2, 40))
    assert log.producers.entries[5].batches[-1].last_offset == 59
    assert len(log.producers.entries[5].batches) == 5
    assert harness.append(base_sequence=58, **PRODUCER).is_duplicate
    check(harness, 60)


def test_a_clean_stop_needs_no_recovery(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    batches = all_batches(harness.log)
    log = harness.close_and_open()
    assert harness.reports == []
    assert log.recovery_point == 60
    assert log.epochs.entries == ((0, 0), (1, 20), (2, 40))
    result = harness.append(base_sequence=59, **PRODUCER)
    assert result.is_duplicate and result.base_offset == 59
    assert all_batches(log) == batches
    check(harness, 60)


@pytest.mark.parametrize("index_interval_bytes", [200, 10**6], ids=["with index entries", "without"])
def test_records_without_timestamps_are_no_damage(tmp_path: Path, index_interval_bytes: int) -> None:
    harness = Harness(tmp_path, segment_bytes=1500, index_interval_bytes=index_interval_bytes)
    for _ in range(60):
        harness.append(timestamp=-1)
    assert len(harness.log.segments) > 2
    for _ in range(2):
        log = harness.close_and_open()
        assert harness.reports == []
        assert log.segments[-1].is_sealed, "the last one has all its entries, too"
    check(harness, 60)


def test_a_time_index_that_lost_its_entries_is_built_anew(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log.close()
    os.truncate(harness.log.segments[0].path(TIME_INDEX_SUFFIX), 0)
    harness.open_again(clean=True)
    assert len(harness.reports) == 1 and "built them anew" in harness.reports[0]
    check(harness, 60)


@pytest.mark.parametrize("lost_bytes", [1, 30, 60])
def test_a_torn_tail_is_cut(tmp_path: Path, lost_bytes: int) -> None:
    harness = filled(tmp_path)
    active = harness.log.segments[-1]
    harness.log.close(clean=False)
    os.truncate(active.path(LOG_SUFFIX), active.size - lost_bytes)
    harness.open_again(clean=False)
    assert any("cut" in report and "offset 59" in report for report in harness.reports), harness.reports
    assert harness.log.producers.entries[5].batches[-1].last_offset == 58
    check(harness, 59)


@pytest.mark.parametrize("lost_batches", [1, 2])
def test_a_segment_that_lost_whole_batches_at_its_end_ends_the_log(tmp_path: Path, lost_batches: int) -> None:
    """Power failed before the end of a full segment was on the disk, and the next segment was there."""
    harness = filled(tmp_path)
    segment, following = harness.log.segments[1:3]
    sizes = [
        len(batch)
        for batch in all_batches(harness.log)
        if segment.base_offset <= parse_header(batch).base_offset < following.base_offset
    ]
    os.truncate(segment.path(LOG_SUFFIX), sum(sizes[:-lost_batches]))
    harness.crash_and_open()
    check(harness, following.base_offset - lost_batches)


def test_holes_that_compaction_leaves_are_no_losses(tmp_path: Path) -> None:
    harness = filled(tmp_path, cleanup_compact=True)
    segment, following = harness.log.segments[1:3]
    last = all_batches(harness.log)[following.base_offset - 1]
    os.truncate(segment.path(LOG_SUFFIX), segment.size - len(last))
    assert harness.crash_and_open().log_end_offset == 60


def test_a_batch_that_fails_its_crc_ends_the_log(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    damaged = harness.log.segments[2]
    harness.log.close(clean=False)
    damage(damaged.path(LOG_SUFFIX), damaged.size - 3)
    lost = harness.log.segments[3].base_offset - 1
    harness.open_again(clean=False)
    assert any("CRC" in report for report in harness.reports)
    assert any("later segments" in report for report in harness.reports)
    check(harness, lost)


def test_what_was_flushed_is_not_read_again(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log.flush()
    harness.append(base_sequence=60, **PRODUCER)
    damaged = harness.log.segments[0]
    harness.log.close(clean=False)
    damage(damaged.path(LOG_SUFFIX), damaged.size - 3)
    assert harness.open_again(clean=False).log_end_offset == 61
    assert len(harness.reports) == 1 and "checked" in harness.reports[0]


def test_only_the_unflushed_part_of_a_segment_is_checked(tmp_path: Path) -> None:
    harness = filled(tmp_path, segment_bytes=10**6)
    harness.log.flush()
    size = harness.log.segments[0].size
    for number in range(60, 70):
        harness.append(base_sequence=number, timestamp=NOW_MS + number, epoch=2, **PRODUCER)
    grown = harness.log.segments[0].size - size
    harness.crash_and_open()
    (report,) = harness.reports
    checked = int(report.split("checked ")[1].split()[0])
    assert grown <= checked <= grown + 600
    assert harness.log.epochs.entries == ((0, 0), (1, 20), (2, 40))
    check(harness, 70)


def test_a_tail_of_zeros_is_cut(tmp_path: Path) -> None:
    """What a power cut leaves on some file systems."""
    harness = filled(tmp_path)
    active = harness.log.segments[-1]
    harness.log.close(clean=False)
    with open(active.path(LOG_SUFFIX), "ab") as file:
        file.write(bytes(4096))
    harness.open_again(clean=False)
    check(harness, 60)


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("place", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("fault", ["missing", "empty", "torn", "garbage"])
def test_damaged_indexes_are_built_anew(tmp_path: Path, suffix: str, place: int, fault: str) -> None:
    harness = filled(tmp_path, segment_bytes=3000)
    harness.log.close()
    path = harness.log.segments[place].path(suffix)
    whole = Path(path).read_bytes()
    assert whole
    if fault == "missing":
        os.unlink(path)
    elif fault == "empty":
        os.truncate(path, 0)
    elif fault == "torn":
        os.truncate(path, len(whole) - 1)
    else:
        Path(path).write_bytes(os.urandom(len(whole)))
    harness.open_again(clean=True)
    assert [record.offset for record in all_records(harness.log)] == list(range(60))
    for number in range(60):
        found = harness.log.offset_for_timestamp(NOW_MS + number)
        assert found is not None and found.offset == number
    check(harness, 60)


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("garbage", [bytes(240), b"\x00\x00\x00\x01" * 60], ids=["zeros", "ones"])
def test_garbage_after_the_flushed_index_entries_is_dropped(
    tmp_path: Path, suffix: str, garbage: bytes
) -> None:
    """What a loss of power leaves: the entry (0, 0) even points at a batch."""
    harness = filled(tmp_path, segment_bytes=10**6)
    harness.log.flush()
    harness.append(base_sequence=60, timestamp=NOW_MS + 60, **PRODUCER)
    harness.log.close(clean=False)
    path = Path(harness.log.segments[-1].path(suffix))
    path.write_bytes(path.read_bytes() + garbage)
    harness.open_again(clean=False)
    check(harness, 61)


def test_damaged_snapshots_and_epochs_come_from_the_log(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log.close()
    for name in harness.files(".snapshot"):
        damage(str(harness.directory / name), 8)
    (harness.directory / "leader-epoch-checkpoint").write_text("0\n7\n")
    harness.open_again(clean=False)
    assert harness.log.producers.entries[5].batches[-1].last_offset == 59
    assert harness.log.epochs.entries == ((0, 0), (1, 20), (2, 40))
    assert any("snapshot" in report for report in harness.reports)
    assert any("leader-epoch-checkpoint" in report for report in harness.reports)
    check(harness, 60)


def test_leftovers_of_deletions_and_compactions(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log.close()
    first = harness.log.segments[0]
    for suffix in SEGMENT_SUFFIXES:
        for left in (DELETED_SUFFIX, CLEANED_SUFFIX):
            Path(first.path(suffix) + left).write_bytes(b"anything")
    (harness.directory / "leader-epoch-checkpoint.tmp").write_bytes(b"")
    harness.open_again(clean=True)
    check(harness, 60)


def test_a_swap_is_completed(tmp_path: Path) -> None:
    """The compacted form of segments 0 and 1 was about to take their place."""
    harness = filled(tmp_path)
    log = harness.log
    batches = all_batches(log)
    log.close()
    first, second, third = log.segments[:3]
    kept = [batch for batch in batches if parse_header(batch).last_offset < third.base_offset][::3]
    kept.append(batches[third.base_offset - 1])
    Path(first.path(LOG_SUFFIX) + SWAP_SUFFIX).write_bytes(b"".join(kept))
    os.unlink(second.path(LOG_SUFFIX))  # the crash came in the middle of their removal
    harness.open_again(clean=True)
    assert [segment.base_offset for segment in harness.log.segments][:2] == [0, third.base_offset]
    assert all_batches(harness.log) == kept + batches[third.base_offset :]
    assert any("compaction" in report for report in harness.reports)
    harness.log.close()
    assert verify_log_directory(harness.directory) == []


def test_a_swap_that_was_still_being_renamed_is_dropped(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log.close()
    first = harness.log.segments[0]
    Path(first.path(INDEX_SUFFIX) + SWAP_SUFFIX).write_bytes(b"")
    Path(first.path(LOG_SUFFIX) + CLEANED_SUFFIX).write_bytes(b"")
    harness.open_again(clean=True)
    check(harness, 60)


def test_a_log_that_ends_before_its_start_offset_starts_empty(tmp_path: Path) -> None:
    harness = filled(tmp_path, batches=10)
    harness.log.delete_records_before(10)
    active = harness.log.segments[-1]
    harness.log.close(clean=False)
    os.truncate(active.path(LOG_SUFFIX), active.size - 1)
    log = harness.open_again(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert harness.append().base_offset == 10


def test_recovery_twice_is_recovery_once(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.crash_and_open()
    before = all_batches(harness.log)
    harness.crash_and_open()
    assert all_batches(harness.log) == before
    check(harness, 60)
