"""A follower's log: batches appended as its leader has them, the end moved back, and all begun anew."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faulty_disk import replace_below
from tests.storage.logs import NOW_MS, Harness, all_batches, all_records, append, read, split_batches

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, CorruptBatch, parse_header
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.replicated import Run, _Filling, divide
from klamm.storage.segments.segment import LOG_SUFFIX, Segment
from klamm.storage.verify import verify_log_directory

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 200, "retention_ms": -1}


@pytest.fixture
def leader(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "leader", retention_ms=-1)


@pytest.fixture
def follower(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "follower", **SMALL)


def fill(harness: Harness, batches: int, *, epoch: int = 0, **settings: Any) -> None:
    for _ in range(batches):
        append(harness.log, 2, value=b"v" * 50, epoch=epoch, **settings)


def fetched(leader: Harness, offset: int = 0) -> bytes:
    return read(leader.log, offset, 1 << 30)


def catch_up(follower: Harness, leader: Harness) -> None:
    follower.log.append_replicated(fetched(leader, follower.log.log_end_offset), NOW_MS)


def check_files(harness: Harness) -> None:
    """What is left after a clean stop is a whole log."""
    harness.log.close()
    harness.log.remove_deleted_files(2**62)
    assert verify_log_directory(harness.directory) == []
    harness.open_again(clean=True)
    assert harness.reports == []


class TestAppending:
    def test_batches_keep_their_offsets_and_epochs_and_roll_segments(
        self, leader: Harness, follower: Harness
    ) -> None:
        fill(leader, 20, epoch=3)
        fill(leader, 20, epoch=7)
        result = follower.log.append_replicated(fetched(leader), NOW_MS)
        assert result is not None
        assert result == (0, 79, leader.log.size_bytes, 7)
        assert all_batches(follower.log) == all_batches(leader.log)
        assert follower.log.epochs.entries == leader.log.epochs.entries == ((3, 0), (7, 40))
        assert len(follower.log.segments) > 5
        assert all(segment.size <= 1000 for segment in follower.log.segments)
        check_files(follower)
        assert all_batches(follower.log) == all_batches(leader.log)

    def test_segments_roll_where_a_leader_rolls_them(self, tmp_path: Path, follower: Harness) -> None:
        leader = Harness(tmp_path / "leader", **SMALL)
        for number in range(50):
            append(leader.log, 1, value=b"v" * (number * 7 % 300), timestamp=NOW_MS + number)
        data = b"".join(all_batches(leader.log))
        cut = len(data) * 2 // 3
        follower.log.append_replicated(data[:cut], NOW_MS)
        done = sum(segment.size for segment in follower.log.segments)
        follower.log.append_replicated(data[done:], NOW_MS)
        assert [s.base_offset for s in follower.log.segments] == [s.base_offset for s in leader.log.segments]

    def test_an_incomplete_last_batch_is_left_out(self, leader: Harness, follower: Harness) -> None:
        fill(leader, 3)
        data = fetched(leader)
        for size in (1, 60, 61, len(data) // 3 - 1):
            assert follower.log.append_replicated(data[:size], NOW_MS) is None
        result = follower.log.append_replicated(data[:-1], NOW_MS)
        assert result is not None and result.last_offset == 3
        catch_up(follower, leader)
        assert all_batches(follower.log) == all_batches(leader.log)

    def test_gaps_stay(self, leader: Harness, follower: Harness) -> None:
        fill(leader, 10)
        batches = split_batches(fetched(leader))
        follower.log.append_replicated(b"".join(batches[2:4] + batches[7:]), NOW_MS)
        assert follower.log.log_end_offset == 20
        assert split_batches(read(follower.log, 9, 10**6)) == batches[7:]
        check_files(follower)

    @pytest.mark.parametrize("first", [0, 4])
    def test_batches_below_the_end_are_refused(self, leader: Harness, follower: Harness, first: int) -> None:
        fill(leader, 5)
        follower.log.append_replicated(b"".join(split_batches(fetched(leader))[:3]), NOW_MS)
        before = all_batches(follower.log)
        with pytest.raises(KafkaError, match="the log ends at 6") as refused:
            follower.log.append_replicated(fetched(leader, first), NOW_MS)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert all_batches(follower.log) == before

    @pytest.mark.parametrize("position", [8, 16, 23, 100])
    def test_damaged_batches_are_refused(self, leader: Harness, follower: Harness, position: int) -> None:
        fill(leader, 3)
        batches = split_batches(fetched(leader))
        damaged = bytearray(b"".join(batches))
        damaged[len(batches[0]) + position] ^= 0x80
        with pytest.raises(CorruptBatch):
            follower.log.append_replicated(damaged, NOW_MS)
        assert follower.log.log_end_offset == follower.log.size_bytes == 0

    def test_batches_out_of_order_are_refused(self, leader: Harness, follower: Harness) -> None:
        fill(leader, 3)
        one, two, three = split_batches(fetched(leader))
        with pytest.raises(CorruptBatch, match="sent offset 2 after 5"):
            follower.log.append_replicated(one + three + two, NOW_MS)

    def test_producers_are_known_when_the_follower_leads(self, leader: Harness, follower: Harness) -> None:
        for number in range(30):
            fill(leader, 1, producer_id=5, producer_epoch=1, base_sequence=2 * number)
        catch_up(follower, leader)
        assert follower.log.producers.entries == leader.log.producers.entries
        for number in range(25, 30):
            repeated = append(
                follower.log, 2, value=b"v" * 50, producer_id=5, producer_epoch=1, base_sequence=2 * number
            )
            assert repeated.is_duplicate and repeated.base_offset == 2 * number
        with pytest.raises(KafkaError) as refused:
            fill(follower, 1, producer_id=5, producer_epoch=1, base_sequence=70)
        assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_batch_larger_than_a_segment_has_one_to_itself(
        self, leader: Harness, follower: Harness
    ) -> None:
        fill(leader, 2)
        append(leader.log, 1, value=b"v" * 5000)
        fill(leader, 2)
        catch_up(follower, leader)
        assert all_batches(follower.log) == all_batches(leader.log)
        assert [segment.base_offset for segment in follower.log.segments] == [0, 4, 5]

    def test_a_leader_whose_log_starts_inside_a_batch(self, leader: Harness, follower: Harness) -> None:
        append(leader.log, 10)
        fill(leader, 3)
        leader.log.delete_records_before(4)
        follower.log.start_at(4, NOW_MS)
        catch_up(follower, leader)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (4, 16)
        assert read(follower.log, 4) == read(leader.log, 4)
        check_files(follower)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (4, 16)

    @pytest.mark.parametrize("nth", range(6))
    def test_a_full_disk_leaves_the_log_as_it_was(
        self, leader: Harness, follower: Harness, monkeypatch: pytest.MonkeyPatch, nth: int
    ) -> None:
        fill(leader, 3, producer_id=1, producer_epoch=0)
        fill(leader, 30, epoch=2)
        first = split_batches(fetched(leader))[:3]
        follower.log.append_replicated(b"".join(first), NOW_MS)
        files = follower.files()
        entries, epochs = dict(follower.log.producers.entries), follower.log.epochs.entries
        fail_from(follower, monkeypatch, "pwrite", nth)
        with pytest.raises(KafkaError) as failed:
            catch_up(follower, leader)
        assert failed.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        monkeypatch.undo()
        assert all_batches(follower.log) == first
        assert follower.files() == files
        assert follower.log.producers.entries == entries and follower.log.epochs.entries == epochs
        active = follower.log.segments[-1]
        assert os.path.getsize(active.path(LOG_SUFFIX)) == active.size
        catch_up(follower, leader)
        assert all_batches(follower.log) == all_batches(leader.log)
        check_files(follower)


def header_of(base_offset: int, size: int, max_timestamp: int) -> BatchHeader:
    return parse_header(bytes(HEADER_SIZE))._replace(
        base_offset=base_offset, batch_length=size - LOG_OVERHEAD, max_timestamp=max_timestamp
    )


@settings(max_examples=300)
@given(
    batches=st.lists(
        st.tuples(st.sampled_from([201, 100]), st.sampled_from([1000, 1100, 1101])), min_size=1, max_size=4
    ),
    size=st.sampled_from([1, 0, 397, 398, 598, 599, 799, 800]),
    entries=st.sampled_from([11, 10, 9, 3]),
    since_index=st.sampled_from([201, 200]),
    offset=st.sampled_from([10, 2**31 - 2]),
)
def test_one_look_at_all_batches_says_the_same_as_one_look_at_each(
    batches: list[tuple[int, int]], size: int, entries: int, since_index: int, offset: int
) -> None:
    config = LogConfig(segment_bytes=1000, segment_ms=100, index_interval_bytes=200, segment_index_bytes=144)
    active = SimpleNamespace(
        base_offset=0,
        size=size,
        first_timestamp=1000,
        bytes_since_index=since_index,
        offset_index=[None] * entries,
        time_index=[],
    )
    headers = [header_of(offset + place, *batch) for place, batch in enumerate(batches)]

    def divided() -> list[Run]:
        return divide(headers, cast(Segment, active), offset, config, 0, lambda base_offset: 0)

    at_once = divided()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Filling, "has_room_for_all", lambda *args: False)
        assert at_once == divided()


def fail_from(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int = errno.ENOSPC
) -> None:
    """Let the call of `os` fail for files of the log from its `nth` time on, by default as on a full disk."""
    call: Callable[..., Any] = getattr(os, name)
    count = 0

    def failing(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count > nth:
            raise OSError(number, os.strerror(number))
        return call(*arguments, **more)

    replace_below(harness.directory, monkeypatch, name, failing)


class TestTruncating:
    @pytest.mark.parametrize("offset", [2, 8, 14, 40, 58, 59, 60, 61])
    def test_what_lies_at_or_above_is_gone(self, leader: Harness, follower: Harness, offset: int) -> None:
        for number in range(30):
            fill(leader, 1, epoch=number // 7, producer_id=1, producer_epoch=0, base_sequence=2 * number)
        catch_up(follower, leader)
        follower.log.flush()
        expected = [batch for batch in all_batches(leader.log) if parse_header(batch).last_offset < offset]
        end = follower.log.truncate_to(offset, NOW_MS)
        assert end == follower.log.log_end_offset == min(offset - offset % 2, 60)
        assert all_batches(follower.log) == expected
        starts = [(e, s) for e, s in leader.log.epochs.entries if s < end]
        assert list(follower.log.epochs.entries) == starts
        entry = follower.log.producers.entries[1]
        assert entry.batches[-1].last_offset == end - 1
        assert len(entry.batches) == min(5, end // 2), "windows are full again"
        assert follower.log.recovery_point <= end
        check_files(follower)
        assert all_batches(follower.log) == expected
        catch_up(follower, leader)
        assert all_batches(follower.log) == all_batches(leader.log)
        assert follower.log.epochs.entries == leader.log.epochs.entries
        check_files(follower)
        assert all_batches(follower.log) == all_batches(leader.log)

    def test_other_records_take_the_place(self, leader: Harness, follower: Harness) -> None:
        fill(follower, 20, epoch=1)
        fill(leader, 8, epoch=1)
        fill(leader, 15, epoch=2)
        assert follower.log.truncate_to(16, NOW_MS) == 16
        catch_up(follower, leader)
        assert all_batches(follower.log) == all_batches(leader.log)
        follower.crash_and_open()
        assert all_batches(follower.log) == all_batches(leader.log)
        assert follower.log.epochs.entries == ((1, 0), (2, 16))

    def test_look_ups_by_time_end_where_the_log_ends(self, follower: Harness) -> None:
        for number in range(30):
            append(follower.log, 1, value=b"v" * 50, timestamp=NOW_MS + number)
        follower.log.truncate_to(17, NOW_MS)
        newest = follower.log.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 16
        assert follower.log.offset_for_timestamp(NOW_MS + 17) is None
        found = follower.log.offset_for_timestamp(NOW_MS + 11)
        assert found is not None and found.offset == 11
        check_files(follower)
        newest = follower.log.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 16

    def test_below_the_log_start_everything_goes(self, follower: Harness) -> None:
        fill(follower, 30)
        follower.log.delete_records_before(25)
        assert follower.log.truncate_to(9, NOW_MS) == 9
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (9, 9)
        assert follower.log.epochs.entries == () and follower.log.size_bytes == 0
        fill(follower, 2)
        check_files(follower)
        assert [record.offset for record in all_records(follower.log)] == [9, 10, 11, 12]

    def test_a_batch_in_which_the_log_starts_and_is_cut(self, follower: Harness) -> None:
        append(follower.log, 4)
        append(follower.log, 10)
        follower.log.delete_records_before(6)
        assert follower.log.truncate_to(9, NOW_MS) == 6
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (6, 6)
        check_files(follower)

    def test_appends_are_refused_meanwhile(self, follower: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(follower, 10)
        fsync, refusals = os.fsync, []

        def appending(fd: int) -> None:
            with pytest.raises(KafkaError) as refused:
                fill(follower, 1)
            refusals.append(refused.value.code)
            assert not follower.log.maybe_roll(2**62)
            assert [record.offset for record in all_records(follower.log)] == list(range(6))
            fsync(fd)

        replace_below(follower.directory, monkeypatch, "fsync", appending)
        follower.log.truncate_to(6, NOW_MS)
        monkeypatch.undo()
        assert set(refusals) == {ErrorCode.NOT_LEADER_OR_FOLLOWER} and len(refusals) > 3
        fill(follower, 1)

    def test_a_failed_disk_ends_writing(self, follower: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(follower, 10)
        fail_from(follower, monkeypatch, "ftruncate", 0, errno.EIO)
        with pytest.raises(KafkaError) as failed:
            follower.log.truncate_to(6, NOW_MS)
        monkeypatch.undo()
        with pytest.raises(KafkaError):
            follower.log.finish_moving_back()
        assert failed.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            fill(follower, 1)
        assert 3 <= len(all_batches(follower.crash_and_open())) <= 10

    @pytest.mark.parametrize("offset", [0, 6, 31])
    @pytest.mark.parametrize("again", ["truncate_to", "finish_moving_back", "crash"])
    def test_a_full_disk_only_delays_it(
        self, leader: Harness, follower: Harness, monkeypatch: pytest.MonkeyPatch, again: str, offset: int
    ) -> None:
        """Whatever the disk has no room for: an index, the epochs, the next segment."""
        for number in range(20):
            fill(leader, 1, epoch=number // 3, producer_id=1, producer_epoch=0, base_sequence=2 * number)
        catch_up(follower, leader)
        whole = all_batches(leader.log)
        expected = [batch for batch in whole if parse_header(batch).last_offset < offset]
        failures = 0
        for name in ("write", "pwrite", "ftruncate", "open"):
            for nth in range(100):
                told: list[int | None] = []
                follower.log.on_failed_write = lambda place, error, told=told: told.append(error.errno)
                with monkeypatch.context() as full_disk:
                    fail_from(follower, full_disk, name, nth)
                    try:
                        follower.log.truncate_to(offset, NOW_MS)
                    except KafkaError as error:
                        assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
                if not told:
                    break
                failures += 1
                assert told == [errno.ENOSPC]
                if follower.log.is_moved_back_in_part:
                    with pytest.raises(KafkaError):
                        fill(follower, 1)
                if again == "crash":
                    follower.crash_and_open()
                    assert expected == all_batches(follower.log)[: len(expected)]
                    assert whole[: len(all_batches(follower.log))] == all_batches(follower.log)
                elif again == "finish_moving_back":
                    follower.log.finish_moving_back()
                follower.log.truncate_to(offset, NOW_MS)
                assert all_batches(follower.log) == expected
                assert not follower.log.is_moved_back_in_part
                check_files(follower)
                catch_up(follower, leader)
                assert all_batches(follower.log) == whole
                assert follower.log.epochs.entries == leader.log.epochs.entries
            check_files(follower)
            catch_up(follower, leader)
        assert failures >= (2 if offset == 0 else 5)


class TestRangesThatAreBeingSent:
    """What truncation does to them: they are sent as they were, or come short, and are never a mixture."""

    def test_bytes_below_the_cut_stay(self, tmp_path: Path) -> None:
        harness = Harness(tmp_path)
        big = b"v" * 100_000
        for _ in range(4):
            append(harness.log, 1, value=big)
        sent = harness.log.read(0, 250_000, 4, must_return_one=True, may_block=True)
        assert sent is not None and len(sent) > 200_000
        expected = bytes(sent.read())
        harness.log.truncate_to(2, NOW_MS)
        append(harness.log, 1, value=b"w" * 300_000, epoch=1)
        assert sent.read() == expected

    def test_bytes_above_the_cut_are_missing_and_never_others(self, tmp_path: Path) -> None:
        harness = Harness(tmp_path)
        for _ in range(4):
            append(harness.log, 1, value=b"v" * 100_000)
        sent = harness.log.read(1, 350_000, 4, must_return_one=True, may_block=True)
        assert sent is not None and len(sent) > 300_000
        harness.log.truncate_to(2, NOW_MS)
        append(harness.log, 3, value=b"w" * 200_000, epoch=1)
        with pytest.raises(OSError, match="truncated"):
            sent.read()
        assert b"w" not in os.pread(sent.file.fd, 10**6, sent.position)

    def test_dropped_segments_can_be_sent_to_their_end(self, tmp_path: Path) -> None:
        harness = Harness(tmp_path, segment_bytes=150_000)
        for _ in range(4):
            append(harness.log, 1, value=b"v" * 100_000)
        sent = harness.log.read(2, 10**6, 4, must_return_one=True, may_block=True)
        assert sent is not None
        expected = os.pread(sent.file.fd, 10**6, 0)
        harness.log.truncate_to(2, NOW_MS)
        append(harness.log, 1, value=b"w" * 100_000, epoch=1)
        harness.log.remove_deleted_files(2**62)
        assert sent.read() == expected


class TestStartingAnew:
    @pytest.mark.parametrize("offset", [3, 40, 500])
    def test_all_is_dropped(self, follower: Harness, offset: int) -> None:
        fill(follower, 20, producer_id=-1, epoch=4)
        fill(follower, 1, producer_id=3, producer_epoch=0, base_sequence=0, epoch=5)
        follower.log.flush()
        follower.log.start_at(offset, NOW_MS)
        log = follower.log
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (offset,) * 3
        assert log.epochs.entries == () and not log.producers.entries and log.size_bytes == 0
        log.remove_deleted_files(2**62)
        assert len(follower.files(".log")) == 1 and follower.files(".snapshot") == []
        fill(follower, 20, epoch=6)
        assert log.epochs.entries == ((6, offset),)
        follower.crash_and_open()
        assert [record.offset for record in all_records(follower.log)] == list(range(offset, offset + 40))
        assert follower.log.epochs.entries == ((6, offset),)
        check_files(follower)


class TestEpochs:
    def test_leadership_without_records_ends_the_epoch_before(self, follower: Harness) -> None:
        fill(follower, 5, epoch=1)
        follower.log.begin_epoch(4)
        assert follower.log.epoch_end_offset(1) == (1, 10)
        assert follower.log.epoch_end_offset(3) == (1, 10)
        assert follower.log.epoch_end_offset(4) == (4, 10)
        follower.log.begin_epoch(6)
        assert follower.log.epoch_end_offset(4) == (1, 10), "nothing was written in epoch 4"

    @pytest.mark.parametrize("flushes", [False, True])
    def test_after_a_crash_epochs_end_where_they_ended(self, follower: Harness, flushes: bool) -> None:
        """Also those in which nothing was written: they end where the one before did."""
        for epoch in (1, 3, 4, 8):
            follower.log.begin_epoch(epoch)
            if epoch != 3:
                fill(follower, 4, epoch=epoch)
                if flushes:
                    follower.log.flush()
        follower.log.begin_epoch(9)
        if flushes:
            follower.log.flush()
        before = {epoch: end_offset(follower.log, epoch) for epoch in range(9)}
        log = follower.crash_and_open()
        assert {epoch: end_offset(log, epoch) for epoch in range(9)} == before

    def test_an_acknowledged_epoch_is_in_the_file(self, follower: Harness) -> None:
        follower.log.begin_epoch(5)
        fill(follower, 1, epoch=5)
        follower.log.flush()
        assert (follower.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n5 0\n"


def end_offset(log: Log, epoch: int) -> int:
    """Where a follower whose last epoch is `epoch` would cut its log."""
    return log.epoch_end_offset(epoch)[1]
