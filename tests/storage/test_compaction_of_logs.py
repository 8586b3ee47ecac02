"""Compaction of real logs by the real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from pathlib import Path

import pytest
from tests.storage.compaction_logs import (
    DAY_MS,
    T0,
    Cleaning,
    append,
    compacted,
    contents,
    contents_on_loop,
    fill,
    last_of_each_key,
    open_log,
    read_batches,
    roll,
)

from klamm.model.errors import KafkaError
from klamm.records.batch import parse_header
from klamm.records.builder import build_batch
from klamm.records.compression import Codec
from klamm.records.reader import StoredRecord
from klamm.storage.compaction.cleaner import CLEANER_OFFSET_FILE
from klamm.storage.log import Log, WouldBlock
from klamm.storage.recovery import SWAP_SUFFIX
from klamm.storage.segments.segment import CLEANED_SUFFIX


async def clean(log: Log, now_ms: int = T0) -> None:
    async with Cleaning([log], now_ms) as cleaning:
        assert await cleaning.cleaner.clean_now(log) is not None, cleaning.said


@pytest.mark.parametrize("codec", list(Codec))
async def test_the_last_value_of_each_key_stays(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path)
    fill(log, 100, codec=codec)
    active_base = log.segments[-1].base_offset
    before = contents(log)
    sealed = [entry for entry in before if entry[0] < active_base]
    expected = sorted(last_of_each_key(sealed)) + [entry for entry in before if entry[0] >= active_base]
    await clean(log)
    assert contents(log) == expected
    assert all(parse_header(data).compression == codec for data in read_batches(log))
    assert log.segments[-1].base_offset == active_base, "the active segment is left alone"
    assert len(log.segments) == 2, "small segments are merged"
    reopened = open_log(tmp_path)
    assert contents(reopened) == expected
    assert reopened.log_end_offset == log.log_end_offset


async def test_segments_are_merged_up_to_their_size(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(300):
        append(log, [(b"key-%d" % (number % 200), b"v" * 100)])
    count = len(log.segments)
    await clean(log)
    assert 2 < len(log.segments) < count
    assert all(segment.size <= log.config.segment_bytes for segment in log.segments)
    assert len(contents(log)) < 240


async def test_a_tombstone_lives_for_delete_retention_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(delete_retention_ms=DAY_MS))
    append(log, [(b"a", b"1"), (b"b", b"1")])
    append(log, [(b"a", None)])
    roll(log)
    await clean(log, T0)
    assert contents(log) == [(1, b"b", b"1"), (2, b"a", None)]
    await clean(log, T0 + DAY_MS - 1)
    assert contents(log) == [(1, b"b", b"1"), (2, b"a", None)]
    await clean(log, T0 + DAY_MS)
    assert contents(log) == [(1, b"b", b"1")]
    assert log.log_end_offset == 3
    assert open_log(tmp_path).log_end_offset == 3


async def test_an_idempotent_producer_goes_on_where_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    options = {"producer_id": 9, "producer_epoch": 0}
    for number in range(20):
        append(log, [(b"a", b"%d" % number), (b"b", b"x")], base_sequence=2 * number, **options)
    fill(log, 100)
    append(log, [(b"a", b"last"), (b"b", b"last")])
    roll(log)
    await clean(log)
    assert any(parse_header(data).records_count == 0 for data in read_batches(log))
    for name in os.listdir(log.directory):
        if name.endswith(".snapshot"):
            os.unlink(log.directory / name)
    reopened = open_log(tmp_path)
    end = reopened.log_end_offset
    append(reopened, [(b"a", b"19"), (b"b", b"x")], base_sequence=38, **options)
    assert reopened.log_end_offset == end, "the batch sent again was recognised"
    with pytest.raises(KafkaError, match="expected 40"):
        append(reopened, [(b"a", b"gap")], base_sequence=41, **options)
    append(reopened, [(b"a", b"next")], base_sequence=40, **options)
    assert reopened.log_end_offset == end + 1


async def test_a_look_up_by_time_passes_over_what_was_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(100):
        append(log, [(b"key-%d" % (number % 7), b"v" * 100)], now_ms=T0 + number)
    append(log, [(b"key-%d" % number, b"last") for number in range(7)], now_ms=T0 + 500)
    roll(log)
    await clean(log)
    found = log.offset_for_timestamp(T0 + 3)
    assert found is not None
    assert (found.offset, found.timestamp) == (100, T0 + 500)


async def test_it_reads_the_same_while_it_is_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=20_000))
    rng = random.Random(5)
    for number in range(2000):
        append(log, [(b"key-%d" % rng.randrange(100), b"%d" % number)])
    expected = last_of_each_key(contents(log))
    held = log.read(0, 1 << 20, log.log_end_offset, must_return_one=True, may_block=True)
    assert held is not None
    held_bytes = bytes(held.read())
    passes = 0

    finished = asyncio.Event()

    async def read_on() -> None:
        nonlocal passes
        is_last = False
        while not is_last:
            is_last = finished.is_set()
            got = await contents_on_loop(log)
            assert [offset for offset, _, _ in got] == sorted({offset for offset, _, _ in got})
            assert last_of_each_key(got) == expected
            passes += 1
            await asyncio.sleep(0)

    reader = asyncio.create_task(read_on())
    async with Cleaning([log]) as cleaning:
        assert await cleaning.cleaner.clean_now(log) is not None, cleaning.said
    finished.set()
    await reader
    assert passes > 2
    assert len(contents(log)) < 400
    assert os.pread(held.file.fd, held.length, held.position) == held_bytes


async def test_a_replaced_segment_does_not_open_its_successor(tmp_path: Path) -> None:
    """A reader in a thread may hold the old segment, but not yet its file, while the names change hands."""
    log = open_log(tmp_path, compacted(index_interval_bytes=100))
    fill(log, 100)
    old = log.segments[0]
    await clean(log)
    assert f"{old.base_offset:020d}.log" in os.listdir(log.directory)
    with pytest.raises(FileNotFoundError, match="replaced"):
        old.open_handle()
    with pytest.raises(FileNotFoundError, match="replaced"):
        old.load_index()
    assert len(old.offset_index) > 0
    with pytest.raises(WouldBlock):  # another reader, who came after: there is nothing to be found
        old.offset_index.lookup(0)


async def test_appends_go_on_while_it_is_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 200)
    async with Cleaning([log]) as cleaning:
        task = asyncio.create_task(cleaning.cleaner.clean_now(log))
        while not task.done():
            append(log, [(b"during", b"%d" % log.log_end_offset)])
            await asyncio.sleep(0)
    offsets = [offset for offset, key, _ in contents(log) if key == b"during"]
    assert offsets == list(range(2000, log.log_end_offset))


STALL_LIMIT_S = 0.050
ATTEMPTS = 3
"""On a busy machine a stall may be the machine's. One of ours comes every time."""


def _run_delay_s() -> float:
    """How long threads of this process have waited for a core that others had.

    All of them: one that holds the interpreter's lock while it waits keeps the loop waiting, too.
    """
    delay_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            delay_ns += int(path.read_text().split()[1])
    return delay_ns / 1e9


async def _worst_stall_s(log: Log) -> float:
    """The longest time that the loop did not turn while the log was compacted."""
    worst_s = 0.0

    async def tick() -> None:
        nonlocal worst_s
        while True:
            start, waited_s = time.perf_counter(), _run_delay_s()
            await asyncio.sleep(0.001)
            lag_s = time.perf_counter() - start - 0.001
            if lag_s > STALL_LIMIT_S:
                lag_s -= max(0.0, _run_delay_s() - waited_s)
            worst_s = max(worst_s, lag_s)

    ticker = asyncio.create_task(tick())
    await clean(log)
    ticker.cancel()
    return worst_s


async def test_the_loop_stays_responsive_while_50_mb_are_compacted(tmp_path: Path) -> None:
    value = b"v" * 480
    pairs = [StoredRecord(i, T0, b"key-%06d" % (i * 7 % 4000), value) for i in range(1000)]
    template = build_batch(pairs)
    stalls_s: list[float] = []
    while len(stalls_s) < ATTEMPTS and min(stalls_s, default=1.0) >= STALL_LIMIT_S:
        log = open_log(tmp_path / str(len(stalls_s)), compacted(segment_bytes=8 << 20))
        while log.log_end_offset < 105_000:
            batch = memoryview(bytearray(template))
            log.append(batch, parse_header(batch), 0, T0)
        assert log.size_bytes > 50 << 20
        stalls_s.append(await _worst_stall_s(log))
        assert log.size_bytes < 20 << 20
    assert min(stalls_s) < STALL_LIMIT_S, f"the loop stood still for {stalls_s} s"


async def test_how_far_it_is_clean_survives_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    await clean(log)
    bound = log.segments[-1].base_offset
    assert (tmp_path / CLEANER_OFFSET_FILE).read_text() == f"0\n1\nt 0 {bound}\n"
    log.close()
    again = open_log(tmp_path, clean=True)
    async with Cleaning([again]) as cleaning:
        assert not await cleaning.cleaner.clean_dirtiest(), "nothing is dirty"
        assert cleaning.cleaner.first_dirty_offset(again) == bound
        fill(again, 400)
        assert await cleaning.cleaner.clean_dirtiest()
        assert cleaning.cleaner.first_dirty_offset(again) == again.segments[-1].base_offset


async def test_a_damaged_checkpoint_means_to_start_over(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    (tmp_path / CLEANER_OFFSET_FILE).write_text("0\n7\nt 0 990\n")
    async with Cleaning([log]) as cleaning:
        assert await cleaning.cleaner.clean_dirtiest()
        assert "compacted from their start" in cleaning.said[0]
    assert len(contents(log)) < 200


async def test_a_small_map_takes_several_rounds(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(min_cleanable_dirty_ratio=0.0))
    fill(log, 10, keys=100)
    append(log, [(b"key-%d" % key, b"last") for key in range(100)])
    roll(log)
    expected = sorted(last_of_each_key(contents(log)))
    async with Cleaning([log]) as cleaning:
        cleaning.settings = cleaning.settings._replace(map_limit_bytes=40 * 192)
        rounds = 0
        while await cleaning.cleaner.clean_dirtiest():
            rounds += 1
        assert rounds > 3
        assert all("compacted" in line for line in cleaning.said)
    assert contents(log) == expected


async def test_nothing_is_left_lying_about(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(file_delete_delay_ms=60_000))
    fill(log, 100)
    await clean(log)
    names = os.listdir(log.directory)
    assert not [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    assert [name for name in names if name.endswith(".deleted")]
    log.remove_deleted_files(T0 + 60_000)
    assert not [name for name in os.listdir(log.directory) if name.endswith(".deleted")]
