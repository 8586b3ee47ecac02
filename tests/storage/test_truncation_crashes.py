"""A crash at any moment of a truncation leaves a log that was cut not at all, in part, or as wanted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faulty_disk import Crash, crash_below
from tests.storage.logs import NOW_MS, Harness, all_batches, append

from klamm.records.batch import parse_header
from klamm.storage.log import Log
from klamm.storage.verify import verify_log_directory

OPERATIONS = ("open", "rename", "unlink", "fsync", "pwrite", "write", "ftruncate")
BATCHES = 20


def fill(harness: Harness) -> None:
    for number in range(BATCHES):
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 2 * number}
        append(harness.log, 2, value=b"v" * 40, epoch=number // 5, **producer)
        if number == 15:
            harness.log.flush()


def crash_in(
    directory: Path, work: Callable[[], object], operations: int, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Let so many operations on files below `directory` happen, then none; true if more were to come."""
    with monkeypatch.context() as patch:
        crash_below(directory, patch, OPERATIONS)(operations)
        try:
            work()
        except Crash:
            return True
    return False


@pytest.mark.parametrize("kind", ["cut", "between segments", "start"])
def test_a_crash_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a kill loses nothing that the kernel has
    begun = Harness(tmp_path / "begun", segment_bytes=700, index_interval_bytes=150, retention_ms=-1)
    fill(begun)
    before = all_batches(begun.log)
    boundary = begun.log.segments[3].base_offset
    target = {"cut": 14, "between segments": boundary, "start": 100}[kind]
    epochs = begun.log.epochs.entries
    recovery_point = begun.log.recovery_point
    begun.log.close(clean=False)
    operations = 0
    is_crashed = True
    while is_crashed:
        harness = begun.copy_to(tmp_path / f"{operations}")
        harness.log = harness._open(recovery_point, clean=False)
        log = harness.log
        move = log.start_at if kind == "start" else log.truncate_to
        is_crashed = crash_in(tmp_path, lambda move=move: move(target, NOW_MS), operations, monkeypatch)
        log.close(clean=False)
        checkpointed = recovery_point if operations % 2 else log.recovery_point
        harness.log = harness._open(checkpointed, clean=False)
        check(harness, before, epochs, target, kind)
        if not is_crashed:
            assert harness.log.log_end_offset == target + 2, "as wanted, and one more batch"
        shutil.rmtree(harness.directory)
        operations += 1
    assert operations > 20


def check(
    harness: Harness, before: list[bytes], epochs: tuple[tuple[int, int], ...], target: int, kind: str
) -> None:
    log = harness.log
    kept = all_batches(log)
    assert kept == before[: len(kept)], "a prefix"
    if kind != "start":
        assert len(kept) * 2 >= target
        assert log.epochs.entries == tuple(entry for entry in epochs if entry[1] < log.log_end_offset)
    check_producers(log, kept)
    append(log, 2, epoch=9, producer_id=1, producer_epoch=1, base_sequence=0)
    assert len(all_batches(log)) == len(kept) + 1
    log.close()
    log.remove_deleted_files(2**62)
    assert verify_log_directory(harness.directory) == []


def check_producers(log: Log, kept: list[bytes]) -> None:
    entry = log.producers.entries.get(1)
    if kept:
        assert entry is not None and entry.batches[-1].last_offset == parse_header(kept[-1]).last_offset
