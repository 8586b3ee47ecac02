"""Which segments go, and when."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faulty_disk import is_below, replace_below
from tests.storage.logs import NOW_MS, Harness, all_records, read

from klamm.model.errors import ErrorCode, KafkaError
from klamm.storage import log as log_module
from klamm.storage.log import Log
from klamm.storage.retention import count_expired
from klamm.storage.segments import time_index
from klamm.storage.verify import verify_log_directory


def with_segments(tmp_path: Path, count: int, **settings: int) -> Harness:
    """Segments of one batch each, a second apart; the last is active."""
    harness = Harness(tmp_path, segment_bytes=150, message_timestamp_after_max_ms=2**60, **settings)
    for number in range(count):
        harness.append(timestamp=NOW_MS + 1000 * number, now_ms=NOW_MS)
    assert len(harness.log.segments) == count
    return harness


def bases(harness: Harness) -> list[int]:
    return [segment.base_offset for segment in harness.log.segments]


def test_by_time(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 5, retention_ms=10_000)
    assert harness.log.delete_expired(NOW_MS + 10_000) == 0
    assert harness.log.delete_expired(NOW_MS + 12_001) == 3
    assert bases(harness) == [3, 4]
    assert harness.log.log_start_offset == 3
    with pytest.raises(KafkaError) as caught:
        read(harness.log, 2)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.offset for record in all_records(harness.log)] == [3, 4]


def test_an_expired_active_segment_rolls_first(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 3, retention_ms=1000)
    assert harness.log.delete_expired(NOW_MS + 100_000) == 3
    assert bases(harness) == [3]
    assert (harness.log.log_start_offset, harness.log.log_end_offset) == (3, 3)
    assert harness.log.delete_expired(NOW_MS + 200_000) == 0, "an empty active segment stays"
    assert harness.append().base_offset == 3
    assert harness.close_and_open().log_end_offset == 4


def test_by_size(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 6, retention_ms=-1)
    size = harness.log.segments[0].size
    harness.log.config = harness.log.config.__class__(retention_ms=-1, retention_bytes=3 * size)
    assert harness.log.delete_expired(NOW_MS) == 3
    assert bases(harness) == [3, 4, 5]
    harness.log.config = harness.log.config.__class__(retention_ms=-1, retention_bytes=3 * size - 1)
    assert harness.log.delete_expired(NOW_MS) == 0, "never less than the bound"


def test_by_log_start_offset_and_only_below_it(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 5, retention_ms=-1)
    assert harness.log.delete_records_before(3) == 3
    assert harness.log.delete_expired(NOW_MS) == 3
    assert bases(harness) == [3, 4]
    harness.log.delete_records_before(5)
    assert harness.log.delete_expired(NOW_MS) == 1, "the active segment is not deleted for it"
    assert harness.log.log_start_offset == 5
    with pytest.raises(KafkaError) as caught:
        harness.log.delete_records_before(6)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_not_above_the_high_watermark(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 5, retention_ms=1)
    assert harness.log.delete_expired(NOW_MS + 100_000, deletable_before=2) == 2


def test_compacted_logs_lose_only_what_is_below_their_start(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 5, retention_ms=1, cleanup_delete=False, cleanup_compact=True)
    assert harness.log.delete_expired(NOW_MS + 100_000) == 0
    harness.log.delete_records_before(2)
    assert harness.log.delete_expired(NOW_MS + 100_000) == 2


def test_records_without_timestamps_age_from_when_the_segment_was_made(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=150, retention_ms=1000)
    for _ in range(3):
        harness.append(timestamp=-1)
    assert harness.log.delete_expired(NOW_MS + 1000) == 0
    assert harness.log.delete_expired(NOW_MS + 1001) == 3


def test_appends_go_on_while_files_are_looked_at_and_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = with_segments(tmp_path, 5, retention_ms=10_000)
    harness.close_and_open()  # what is known of old segments is in their files
    read_at, rename = time_index.read_at, os.rename
    offsets: list[int] = []

    with ThreadPoolExecutor(1) as loop:

        def append_meanwhile() -> None:
            offsets.append(loop.submit(harness.append).result(timeout=5).base_offset)

        def slow_read_at(path: str, position: int, length: int) -> bytes:
            if is_below(tmp_path, path):
                append_meanwhile()
            return read_at(path, position, length)

        def slow_rename(source: str, target: str) -> None:
            append_meanwhile()
            rename(source, target)

        monkeypatch.setattr(time_index, "read_at", slow_read_at)
        replace_below(tmp_path, monkeypatch, "rename", slow_rename)
        assert harness.log.delete_expired(NOW_MS + 12_001) == 3
    monkeypatch.undo()
    assert offsets == list(range(5, 5 + len(offsets))) and len(offsets) >= 3 * 3
    assert bases(harness)[:2] == [3, 4]
    assert len(harness.files(".deleted")) == 9
    assert harness.log.log_end_offset == 5 + len(offsets)
    harness.log.remove_deleted_files(2**62)
    harness.log.close()
    assert verify_log_directory(harness.directory) == []


def test_records_that_come_while_all_the_others_expire_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = with_segments(tmp_path, 3, retention_ms=1000)
    harness.log.config = replace(harness.log.config, segment_bytes=10_000)
    late_ms = NOW_MS + 100_000

    def count_then_append(*arguments: Any, **settings: Any) -> int:
        count = count_expired(*arguments, **settings)
        harness.append(timestamp=late_ms, now_ms=late_ms)
        return count

    monkeypatch.setattr(log_module, "count_expired", count_then_append)
    assert harness.log.delete_expired(late_ms) == 2
    assert [record.timestamp for record in all_records(harness.log)] == [NOW_MS + 2000, late_ms]


def test_a_decision_that_another_overtakes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = with_segments(tmp_path, 5, retention_ms=10_000)

    def count_and_be_overtaken(*arguments: Any, **settings: Any) -> int:
        monkeypatch.undo()
        count = count_expired(*arguments, **settings)
        assert harness.log.delete_expired(NOW_MS + 12_001) == count == 3
        return count

    monkeypatch.setattr(log_module, "count_expired", count_and_be_overtaken)
    assert harness.log.delete_expired(NOW_MS + 12_001) == 0
    assert bases(harness) == [3, 4]


def test_a_log_that_is_made_anew_meanwhile_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between taking segments out of the list and renaming their files, the topic is deleted and made."""
    harness = with_segments(tmp_path, 3, retention_ms=1)
    take_out = Log._take_out
    made_anew: list[Harness] = []

    def take_out_and_be_deleted(log: Log, *arguments: Any) -> Any:
        expired = take_out(log, *arguments)
        log.rename_for_delete()
        made_anew.append(Harness(tmp_path))
        made_anew[0].append()
        return expired

    monkeypatch.setattr(Log, "_take_out", take_out_and_be_deleted)
    assert harness.log.delete_expired(NOW_MS + 100_000) == 3
    assert made_anew[0].files(".log") == [f"{0:020d}.log"]
    assert made_anew[0].files(".deleted") == []


def test_files_are_removed_later_and_readers_are_not_disturbed(tmp_path: Path) -> None:
    harness = with_segments(tmp_path, 3, retention_ms=1, file_delete_delay_ms=500)
    log = harness.log
    file_slice = log.read(0, 1000, 3, must_return_one=True, may_block=True)
    assert file_slice is not None
    log.flush()
    log.delete_expired(NOW_MS + 100_000)
    assert len(harness.files(".deleted")) == 9
    assert log.remove_deleted_files(NOW_MS + 100_499) == NOW_MS + 100_500
    assert log.remove_deleted_files(NOW_MS + 100_500) is None
    assert harness.files(".deleted") == []
    assert os.pread(file_slice.file.fileno(), len(file_slice), 0) == file_slice.read()
    log.close()
    assert harness.files(".snapshot") == [f"{3:020d}.snapshot"]
    assert verify_log_directory(harness.directory) == []
