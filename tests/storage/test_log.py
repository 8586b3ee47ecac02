"""Appending to a log and reading it back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.descriptors import open_below
from tests.faulty_disk import replace_below
from tests.storage.logs import NOW_MS, Harness, all_batches, all_records, append, read, split_batches

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import compute_crc, parse_header
from klamm.records.compression import Codec
from klamm.records.reader import iter_records
from klamm.storage import durability
from klamm.storage.files import LogDirFailure
from klamm.storage.log import WouldBlock
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.segment import INLINE_BYTES
from klamm.storage.verify import verify_log_directory


def test_offsets_and_epochs_are_written_into_the_batch(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    assert harness.append(3, epoch=4)[:2] == (0, 2)
    result = harness.append(2, epoch=5, codec=Codec.ZSTD)
    assert result == (3, 4, -1, 0, False)
    first, second = split_batches(read(harness.log, 0))
    assert parse_header(second).base_offset == 3
    assert [parse_header(batch).partition_leader_epoch for batch in (first, second)] == [4, 5]
    assert compute_crc(second) == parse_header(second).crc
    assert harness.log.epochs.entries == ((4, 0), (5, 3))
    assert [record.offset for record in all_records(harness.log)] == [0, 1, 2, 3, 4]


def test_reading_returns_the_batch_that_contains_the_offset(tmp_path: Path) -> None:
    log = Harness(tmp_path).log
    for _ in range(3):
        append(log, 10)
    assert parse_header(read(log, 15)).base_offset == 10
    assert read(log, 30) == b""
    for offset in (-1, 31):
        with pytest.raises(KafkaError) as caught:
            read(log, offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_nothing_at_or_above_the_end_offset_is_returned(tmp_path: Path) -> None:
    log = Harness(tmp_path).log
    for _ in range(5):
        append(log, 10)
    assert len(split_batches(read(log, 0, end_offset=30))) == 3
    assert read(log, 30, end_offset=30) == b""
    assert len(split_batches(read(log, 30, end_offset=40))) == 1


def test_limits_cut_at_whole_batches(tmp_path: Path) -> None:
    log = Harness(tmp_path).log
    size = len(all_batches_of_one(log))
    append(log)
    append(log)
    assert len(read(log, 0, 3 * size)) == 3 * size
    assert len(read(log, 0, 3 * size - 1)) == 2 * size
    assert len(read(log, 0, size - 1)) == size
    assert read(log, 0, size - 1, must_return_one=False) == b""
    assert len(read(log, 1, size, must_return_one=False)) == size


def all_batches_of_one(log: object) -> bytes:
    append(log)  # type: ignore[arg-type]
    return read(log, 0)  # type: ignore[arg-type]


def test_large_reads_are_ranges_of_the_file(tmp_path: Path) -> None:
    log = Harness(tmp_path).log
    for _ in range(30):
        append(log, value=bytes(10_000))
    file_slice = log.read(3, 1 << 20, log.log_end_offset, must_return_one=True, may_block=False)
    assert file_slice is not None and len(file_slice) > INLINE_BYTES
    data = os.pread(file_slice.file.fileno(), len(file_slice), file_slice.position)
    assert data == file_slice.read()
    assert [parse_header(batch).base_offset for batch in split_batches(data)] == list(range(3, 30))


def test_segments_roll_by_size_and_reads_go_over_them(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=1000)
    for _ in range(50):
        harness.append(2)
    log = harness.log
    assert len(log.segments) == 5
    assert all(segment.size <= 1000 for segment in log.segments)
    assert [record.offset for record in all_records(log)] == list(range(100))
    assert [parse_header(batch).base_offset for batch in all_batches(log)] == list(range(0, 100, 2))
    harness.log.close()
    assert verify_log_directory(harness.directory) == []


def test_segments_roll_by_time(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_ms=1000, message_timestamp_after_max_ms=10**9)
    harness.append(timestamp=NOW_MS)
    harness.append(timestamp=NOW_MS + 1000)
    assert len(harness.log.segments) == 1
    harness.append(timestamp=NOW_MS + 1001)
    assert [segment.base_offset for segment in harness.log.segments] == [0, 2]
    assert not harness.log.maybe_roll(NOW_MS + 2001)
    assert harness.log.maybe_roll(NOW_MS + 2002)
    assert not harness.log.maybe_roll(NOW_MS + 9999), "an empty segment does not roll"


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_index_bytes=48, index_interval_bytes=0)
    for number in range(20):
        harness.append(timestamp=NOW_MS + number)
    harness.log.close()
    assert len(harness.log.segments) > 4
    assert max(os.stat(harness.directory / name).st_size for name in harness.files("index")) <= 48
    assert verify_log_directory(harness.directory) == []


def test_a_roll_calls_for_a_flush(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=150)
    rolled = []
    harness.log.on_roll = rolled.append
    harness.append()
    harness.append()
    assert rolled == [harness.log]
    assert harness.log.has_unflushed_segment and not harness.log.needs_flush(NOW_MS)
    harness.log.flush(harness.log.segments[-1].base_offset)
    assert harness.log.recovery_point == 1 and not harness.log.has_unflushed_segment


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=1000)
    with pytest.raises(KafkaError) as caught:
        harness.append(value=bytes(1000))
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert harness.log.log_end_offset == 0


def test_log_append_time(tmp_path: Path) -> None:
    harness = Harness(tmp_path, message_timestamp_type="LogAppendTime")
    assert harness.append(2, timestamp=5, now_ms=NOW_MS).log_append_time_ms == NOW_MS
    (batch,) = all_batches(harness.log)
    header = parse_header(batch)
    assert header.uses_log_append_time and compute_crc(batch) == header.crc
    assert [record.timestamp for record in iter_records(batch)] == [NOW_MS, NOW_MS]
    harness.log.close()
    assert verify_log_directory(harness.directory) == []


def test_timestamps_far_from_now_are_refused(tmp_path: Path) -> None:
    harness = Harness(tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    for timestamp in (NOW_MS - 1001, NOW_MS + 1001):
        with pytest.raises(KafkaError) as caught:
            harness.append(timestamp=timestamp)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert harness.log.log_end_offset == 0
    harness.append(timestamp=NOW_MS - 1000)


def test_flush_settings(tmp_path: Path) -> None:
    harness = Harness(tmp_path, flush_messages=3, flush_ms=500)
    harness.append(2)
    assert not harness.log.needs_flush(NOW_MS)
    assert harness.log.needs_flush(NOW_MS + 500)
    harness.append(1)
    assert harness.log.needs_flush(NOW_MS)
    harness.log.flush()
    assert harness.log.recovery_point == 3
    assert not harness.log.needs_flush(NOW_MS + 10_000), "nothing to flush"


def test_without_blocking_only_what_is_at_hand_is_read(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for _ in range(10):
        harness.append()
    log = harness.close_and_open()
    with pytest.raises(WouldBlock):
        read(log, 5, may_block=False)
    assert len(harness.open_files) == 0, "an idle log has no file open"
    expected = read(log, 5)
    assert read(log, 5, may_block=False) == expected
    assert len(harness.open_files) == 1


def test_an_index_out_of_memory_needs_blocking(tmp_path: Path) -> None:
    harness = Harness(tmp_path, index_interval_bytes=1)
    for _ in range(2000):
        harness.append()
    harness.log.flush()
    with pytest.raises(WouldBlock):
        read(harness.log, 700, 50, may_block=False)
    assert read(harness.log, 1900, 50, may_block=False)
    assert read(harness.log, 700, 50) == read(harness.log, 700, 50, may_block=False)


def test_files_are_closed_when_too_many_are_open_but_not_under_a_reader(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=200)
    for _ in range(100):
        harness.append(value=bytes(50))
    log = harness.log
    first = log.read(0, 1000, 100, must_return_one=True, may_block=True)
    assert first is not None
    before = open_below(tmp_path)
    for offset in range(100):
        read(log, offset)
    assert len(harness.open_files) == 16
    assert open_below(tmp_path) <= before + 16
    assert os.pread(first.file.fileno(), len(first), first.position) == first.read()


def test_preallocated_segments_end_where_their_batches_do(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=4096, preallocate=True, segment_ms=10)
    for number in range(5):
        harness.append(timestamp=NOW_MS + number * 11)
    assert os.stat(harness.directory / harness.files(".log")[-1]).st_size == 4096
    log = harness.close_and_open()
    assert log.log_end_offset == 5 and harness.reports == []
    assert verify_log_directory(harness.directory) == []
    append(log, timestamp=NOW_MS + 1000)
    append(log, timestamp=NOW_MS + 2000)
    assert harness.crash_and_open().log_end_offset == 7


class TestFailingDisk:
    def test_a_full_disk_leaves_everything_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = Harness(tmp_path)
        producer = {"producer_id": 7, "producer_epoch": 0}
        harness.append(2, base_sequence=0, **producer)
        real_pwrite = os.pwrite
        calls = []

        def full_disk(fd: int, data: bytes, position: int) -> int:
            """Takes half of the batch, then has no room."""
            calls.append(position)
            if len(calls) == 1:
                return real_pwrite(fd, data[: len(data) // 2], position)
            raise OSError(28, "No space left on device")

        before = (read(harness.log, 0), harness.log.log_end_offset, dict(harness.log.producers.entries))
        replace_below(tmp_path, monkeypatch, "pwrite", full_disk)
        with pytest.raises(KafkaError, match="No space left on device") as caught:
            harness.append(3, base_sequence=2, epoch=1, **producer)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        monkeypatch.undo()
        after = (read(harness.log, 0), harness.log.log_end_offset, dict(harness.log.producers.entries))
        assert after == before
        assert os.stat(harness.directory / harness.files(".log")[0]).st_size == len(before[0])
        assert harness.append(3, base_sequence=2, epoch=1, **producer).base_offset == 2
        harness.log.close()
        assert verify_log_directory(harness.directory) == []

    def test_no_room_for_a_new_segment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = Harness(tmp_path, segment_bytes=150)
        harness.append()
        real_open = os.open

        def no_new_files(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT and not os.path.exists(path):
                raise OSError(28, "No space left on device")
            return real_open(path, flags, mode)

        replace_below(tmp_path, monkeypatch, "open", no_new_files)
        for _ in range(2):
            with pytest.raises(KafkaError, match="No space left"):
                harness.append()
        monkeypatch.undo()
        assert len(harness.log.segments) == 1 and len(harness.files(".log")) == 1
        assert harness.append().base_offset == 1
        assert [record.offset for record in all_records(harness.log)] == [0, 1]

    def test_no_room_for_an_index_is_no_reason_to_refuse_a_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = Harness(tmp_path, index_interval_bytes=0)
        real_open = os.open

        def no_index_files(path: str, flags: int, mode: int = 0o777) -> int:
            if path.endswith("index"):
                raise OSError(28, "No space left on device")
            return real_open(path, flags, mode)

        replace_below(tmp_path, monkeypatch, "open", no_index_files)
        for number in range(2000):
            harness.append(timestamp=NOW_MS + number)
        assert read(harness.log, 1000, 10)
        monkeypatch.undo()
        harness.log.close()
        assert verify_log_directory(harness.directory) == []

    def test_the_directory_knows_the_files_of_flushed_records(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = Harness(tmp_path, segment_bytes=150)
        harness.append()
        log = harness.close_and_open()
        assert harness.files(".snapshot") == [f"{1:020d}.snapshot"], "none is due when the log rolls here"
        synced: list[str] = []
        monkeypatch.setattr(durability, "sync_directory", synced.append)
        harness.append()
        assert len(log.segments) == 2
        log.flush()
        assert synced == [str(harness.directory)]
        log.flush()
        assert len(synced) == 1, "nothing new"

    def test_a_failed_fsync_ends_writing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = Harness(tmp_path)
        harness.append()

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        replace_below(tmp_path, monkeypatch, "fsync", broken)
        with pytest.raises(LogDirFailure, match="Input/output error"):
            harness.log.flush()
        monkeypatch.undo()
        assert harness.log.recovery_point == 0
        with pytest.raises(KafkaError) as caught:
            harness.append()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(all_records(harness.log)) == 1, "what is there can still be read"


def test_open_files_spares_what_was_used() -> None:
    class Holder:
        def __init__(self) -> None:
            self.recently_used = False
            self.released = 0

        def release(self) -> None:
            self.released += 1

    holders = [Holder() for _ in range(4)]
    files = OpenFiles(limit=2, index_limit_bytes=100)
    files.admit(holders[0])
    files.admit(holders[1])
    holders[0].recently_used = True
    files.admit(holders[2])
    assert [holder.released for holder in holders] == [0, 1, 0, 0]
    files.admit(holders[2], index_bytes=80)
    files.admit(holders[3], index_bytes=80)
    assert files.index_bytes == 80 and holders[2].released == 1
    files.forget(holders[3])
    assert files.index_bytes == 0
