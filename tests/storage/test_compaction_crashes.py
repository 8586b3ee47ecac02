"""A crash at any moment of a compaction leaves each old segment or its successor, whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faulty_disk import Crash, crash_below
from tests.storage.compaction_logs import (
    T0,
    Content,
    append,
    compacted,
    contents,
    fill,
    last_of_each_key,
    open_log,
    roll,
)

from klamm.storage.compaction.cleaner import put_in_place
from klamm.storage.compaction.rewriting import clean
from klamm.storage.compaction.schedule import examine, plan_for
from klamm.storage.log import Log
from klamm.storage.segments.segment import CLEANED_SUFFIX

OPERATIONS = ("open", "rename", "unlink", "fsync", "pwrite", "ftruncate", "utime")


@pytest.fixture
def crash_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Let so many file operations happen, then no more; None lets all happen."""
    allow = crash_below(tmp_path, monkeypatch, OPERATIONS)
    yield allow
    allow(None)


def compact_here(log: Log, now_ms: int = T0) -> None:
    """All of a compaction in this process."""
    cleanable = examine(log, log.log_start_offset, log.log_end_offset, now_ms)
    segments = {segment.base_offset: segment for segment in cleanable.segments}
    for cleaned in clean(plan_for(cleanable, now_ms, 1 << 20)):
        put_in_place(log, cleaned, [segments[base] for base in cleaned.replaced], now_ms)


def by_range(entries: list[Content], bounds: list[int]) -> list[list[Content]]:
    ends = [*bounds[1:], 1 << 60]
    return [[e for e in entries if low <= e[0] < high] for low, high in zip(bounds, ends, strict=True)]


def make_log(directory: Path) -> Log:
    """Six sealed segments that become two: some lose all their records, some none."""
    log = open_log(directory, compacted(segment_bytes=1200, index_interval_bytes=100))
    fill(log, 2)
    roll(log)
    append(log, [(b"key-3", b"once more"), (b"gone", b"soon")])
    roll(log)
    append(log, [(b"stays-%d" % i, b"v" * 150) for i in range(6)])
    roll(log)
    append(log, [(b"gone", None), (b"key-1", b"later")])
    roll(log)
    append(log, [(b"key-3", b"at last")], producer_id=5, producer_epoch=0, base_sequence=0)
    roll(log)
    fill(log, 1)
    roll(log)
    append(log, [(b"key-1", b"active")])
    return log


@pytest.mark.long
def test_a_crash_before_any_file_operation_leaves_old_or_new(
    tmp_path: Path, crash_before: Callable[[int | None], None]
) -> None:
    template = tmp_path / "template"
    log = make_log(template)
    log.close()
    bounds = [segment.base_offset for segment in log.segments]
    before = contents(log)

    shutil.copytree(template, tmp_path / "whole")
    whole = open_log(tmp_path / "whole", log.config)
    compact_here(whole)
    after = contents(whole)
    assert len(whole.segments) == 3
    assert set(after) >= last_of_each_key(before)
    assert len(after) < len(before)

    outcomes = set()
    operations = 0
    while True:
        directory = tmp_path / f"crash-{operations}"
        shutil.copytree(template, directory)
        victim = open_log(directory, log.config)
        crash_before(operations)
        try:
            compact_here(victim)
        except Crash:
            crashed = True
        else:
            crashed = False
        crash_before(None)
        survivor = open_log(directory, log.config)
        found = contents(survivor)
        for place, (got, old, new) in enumerate(
            zip(by_range(found, bounds), by_range(before, bounds), by_range(after, bounds), strict=True)
        ):
            assert got in (old, new), f"segment {bounds[place]} after {operations} operations"
        assert last_of_each_key(found) == last_of_each_key(before)
        assert survivor.log_end_offset == log.log_end_offset
        assert 5 in survivor.producers.entries
        leftovers = [n for n in os.listdir(survivor.directory) if n.endswith((".swap", CLEANED_SUFFIX))]
        assert not leftovers
        compact_here(survivor)
        assert contents(survivor) == after, "the next compaction must finish the work"
        outcomes.add(tuple(found))
        if not crashed:
            break
        operations += 1
        shutil.rmtree(directory)
    assert operations > 50
    assert tuple(before) in outcomes
    assert tuple(after) in outcomes
    assert len(outcomes) > 2, "between two exchanges some segments are old and some new"


def test_an_index_without_its_log_file_replaces_nothing(tmp_path: Path) -> None:
    """Left when a crash interrupts the dropping of a result that was not needed any more."""
    log = make_log(tmp_path)
    log.close()
    before = contents(log)
    for suffix in (".index", ".timeindex"):
        Path(log.segments[2].path(suffix + ".swap")).write_bytes(bytes(24))
    reopened = open_log(tmp_path, log.config)
    assert contents(reopened) == before
    assert not [name for name in os.listdir(log.directory) if name.endswith(".swap")]
    for offset, _, _ in before:
        assert reopened.read(offset, 1, reopened.log_end_offset, must_return_one=True, may_block=True)
    sizes = {name: os.stat(log.directory / name).st_size for name in os.listdir(log.directory)}
    assert sizes[f"{log.segments[2].base_offset:020d}.timeindex"] == 12
