"""The loop appends while threads read, flush, look up and delete: nobody sees half of anything."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.storage.logs import NOW_MS, Harness, all_records, split_batches

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import compute_crc, parse_header
from klamm.storage.log import WouldBlock
from klamm.storage.verify import verify_log_directory

BATCHES = 1500


def test_everybody_at_once(tmp_path: Path) -> None:
    harness = Harness(
        tmp_path, segment_bytes=20_000, index_interval_bytes=300, retention_bytes=100_000, retention_ms=-1
    )
    log = harness.log
    is_done = threading.Event()
    failures: list[str] = []

    def repeat(work: Callable[[random.Random], None], seed: int) -> threading.Thread:
        def run() -> None:
            chance = random.Random(seed)
            while not is_done.is_set() and not failures:
                try:
                    work(chance)
                except KafkaError as error:
                    if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:  # retention was faster
                        failures.append(f"seed {seed}: {error!r}")
                except BaseException as error:
                    failures.append(f"seed {seed}: {error!r}")

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def read_along(chance: random.Random) -> None:
        """A consumer that follows, from some place to the end."""
        offset = chance.randint(log.log_start_offset, log.log_end_offset)
        while not is_done.is_set():
            end_offset = log.log_end_offset
            limit = chance.choice([1, 1000, 70_000])
            may_block = chance.random() < 0.5
            try:
                file_slice = log.read(offset, limit, end_offset, must_return_one=True, may_block=may_block)
            except WouldBlock:
                continue
            if file_slice is None:
                return
            batches = split_batches(bytes(file_slice.read()))
            headers = [parse_header(batch) for batch in batches]
            assert headers[0].base_offset <= offset <= headers[0].last_offset
            assert headers[-1].last_offset < end_offset
            for before, after in pairwise(headers):
                assert after.base_offset == before.last_offset + 1
            assert all(compute_crc(b) == h.crc for b, h in zip(batches, headers, strict=True))
            offset = headers[-1].last_offset + 1

    def look_up(chance: random.Random) -> None:
        number = chance.randint(0, BATCHES)
        found = log.offset_for_timestamp(NOW_MS + number)
        assert found is None or found.timestamp >= NOW_MS + number

    threads = [repeat(read_along, seed) for seed in range(3)]
    threads.append(repeat(look_up, 10))
    threads.append(repeat(lambda chance: log.flush(), 11))
    threads.append(repeat(lambda chance: _ignore(log.delete_expired(NOW_MS)), 12))
    threads.append(repeat(lambda chance: _ignore(log.remove_deleted_files(2**62)), 13))
    try:
        for number in range(BATCHES):
            harness.append(
                2, timestamp=NOW_MS + number, producer_id=1, producer_epoch=0, base_sequence=2 * number
            )
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert log.log_end_offset == 2 * BATCHES
    assert len(log.segments) > 1
    assert all_records(log)[-1].offset == 2 * BATCHES - 1
    log.remove_deleted_files(2**62)
    log.close()
    assert verify_log_directory(harness.directory) == []


class Interrupted:
    """A lock before which something else happens, once."""

    def __init__(self, lock: Any, work: Callable[[], object]) -> None:
        self._lock = lock
        self._work: Callable[[], object] | None = work

    def __enter__(self) -> object:
        work, self._work = self._work, None
        if work is not None:
            work()
        return self._lock.__enter__()

    def __exit__(self, *how: Any) -> object:
        return self._lock.__exit__(*how)


def test_a_reader_whose_records_are_deleted_meanwhile_does_not_get_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(tmp_path, segment_bytes=2000, retention_bytes=4000, retention_ms=-1)
    log = harness.log
    for _ in range(100):
        harness.append(2)
    assert log.log_start_offset == 0
    monkeypatch.setattr(log, "_lock", Interrupted(log._lock, lambda: log.delete_expired(NOW_MS)))
    with pytest.raises(KafkaError) as refused:
        log.read(0, 1000, log.log_end_offset, must_return_one=True, may_block=True)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE and log.log_start_offset > 0
    log.close()


def test_readers_beside_a_log_that_is_cut_again_and_again(tmp_path: Path) -> None:
    """They get whole batches of one leader after the other, or learn that the log ends earlier by now."""
    harness = Harness(tmp_path, segment_bytes=30_000, index_interval_bytes=300, retention_ms=-1)
    log = harness.log
    is_done = threading.Event()
    failures: list[str] = []

    def read_and_look_up(seed: int) -> None:
        chance = random.Random(seed)
        while not is_done.is_set() and not failures:
            try:
                log.offset_for_timestamp(NOW_MS + chance.randint(0, 100))
                offset = chance.randint(0, log.log_end_offset)
                limit = chance.choice([1, 3000, 200_000])
                got = log.read(offset, limit, log.log_end_offset, must_return_one=True, may_block=True)
                if got is not None:
                    batches = split_batches(bytes(got.read()))
                    assert parse_header(batches[0]).last_offset >= offset
                    assert all(compute_crc(batch) == parse_header(batch).crc for batch in batches)
                    epochs = [parse_header(batch).partition_leader_epoch for batch in batches]
                    assert epochs == sorted(epochs)
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    failures.append(f"seed {seed}: {error!r}")
            except OSError as error:
                if "truncated while this was sent" not in str(error):
                    failures.append(f"seed {seed}: {error!r}")
            except BaseException as error:
                failures.append(f"seed {seed}: {error!r}")

    threads = [threading.Thread(target=read_and_look_up, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    chance = random.Random(5)
    try:
        for epoch in range(20):
            for number in range(12):
                size = chance.choice([10, 500, 9000])
                harness.append(2, value=b"v" * size, epoch=epoch, timestamp=NOW_MS + epoch + number)
            log.truncate_to(max(0, log.log_end_offset - chance.randint(0, 22)), NOW_MS)
            log.remove_deleted_files(2**62)
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    log.close()
    assert verify_log_directory(harness.directory) == []


def _ignore(result: object) -> None:
    """What the call does is wanted, not what it says."""
