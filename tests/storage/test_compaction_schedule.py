"""Which log is compacted when, and how far."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.storage.compaction_logs import (
    DAY_MS,
    HOUR_MS,
    T0,
    Cleaning,
    append,
    compacted,
    contents,
    fill,
    open_log,
    roll,
)

from klamm.config.broker_config import BrokerConfig
from klamm.storage.compaction.cleaner import CLEANER_OFFSET_FILE, CleanerSettings
from klamm.storage.compaction.schedule import choose, examine
from klamm.storage.log import Log

NOW = T0 + DAY_MS


def sealed(log: Log, *sizes: int, now_ms: int = T0) -> Log:
    """One segment per size, and an empty active one."""
    for size in sizes:
        append(log, [(b"k", b"v" * size)], now_ms=now_ms)
        roll(log)
    return log


def test_the_active_segment_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [(b"a", b"1")])
    cleanable = examine(log, 0, log.log_end_offset, NOW)
    assert (cleanable.segments, cleanable.bound_offset, cleanable.is_due) == ([], 0, False)
    roll(log)
    append(log, [(b"a", b"2")])
    cleanable = examine(log, 0, log.log_end_offset, NOW)
    assert ([s.base_offset for s in cleanable.segments], cleanable.bound_offset) == ([0], 1)


@pytest.mark.parametrize(
    ("first_dirty", "ratio", "is_due"), [(0, 0.5, True), (1, 0.5, True), (2, 0.5, False), (2, 0.2, True)]
)
def test_a_log_is_due_when_enough_of_it_is_dirty(
    tmp_path: Path, first_dirty: int, ratio: float, is_due: bool
) -> None:
    log = sealed(open_log(tmp_path, compacted(min_cleanable_dirty_ratio=ratio)), 100, 100, 100)
    cleanable = examine(log, first_dirty, log.log_end_offset, NOW)
    assert cleanable.dirty_ratio == pytest.approx((3 - first_dirty) / 3)
    assert cleanable.is_due is is_due


def test_a_clean_log_is_never_due(tmp_path: Path) -> None:
    log = sealed(open_log(tmp_path, compacted(min_cleanable_dirty_ratio=0.0)), 100)
    assert not examine(log, 1, log.log_end_offset, NOW).is_due


def test_young_segments_wait_for_min_compaction_lag_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(min_compaction_lag_ms=HOUR_MS))
    sealed(log, 10, 10, now_ms=T0)
    sealed(log, 10, now_ms=T0 + HOUR_MS)
    for now_ms, bound in ((T0 + 1, 0), (T0 + HOUR_MS, 2), (T0 + 2 * HOUR_MS, 3)):
        assert examine(log, 0, log.log_end_offset, now_ms).bound_offset == bound


def test_max_compaction_lag_ms_forces_it(tmp_path: Path) -> None:
    config = compacted(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=HOUR_MS)
    log = sealed(open_log(tmp_path, config), 1000, 10)
    assert not examine(log, 1, log.log_end_offset, T0 + HOUR_MS).is_due
    assert examine(log, 1, log.log_end_offset, T0 + HOUR_MS + 1).is_due
    reopened = open_log(tmp_path, config)
    assert examine(reopened, 1, log.log_end_offset, T0 + HOUR_MS + 1).is_due
    assert not examine(reopened, 2, log.log_end_offset, T0 + HOUR_MS + 1).is_due


def test_what_is_not_stable_is_left_alone(tmp_path: Path) -> None:
    log = sealed(open_log(tmp_path), 10, 10, 10)
    assert examine(log, 0, 2, NOW).bound_offset == 2
    assert examine(log, 0, 0, NOW).bound_offset == 0


@pytest.mark.parametrize("remembered", [0, 99])
def test_a_remembered_offset_outside_the_log_means_its_start(tmp_path: Path, remembered: int) -> None:
    log = sealed(open_log(tmp_path), 10, 10, 10)
    log.delete_records_before(1)
    assert examine(log, remembered, log.log_end_offset, NOW).first_dirty_offset == 1


def test_the_dirtiest_log_comes_first(tmp_path: Path) -> None:
    half = sealed(open_log(tmp_path, name="half"), 100, 100)
    whole = sealed(open_log(tmp_path, name="whole"), 10, 10)
    clean = sealed(open_log(tmp_path, name="clean"), 1000)
    cleanables = [examine(half, 1, 2, NOW), examine(whole, 0, 2, NOW), examine(clean, 1, 1, NOW)]
    chosen = choose(cleanables)
    assert chosen is not None
    assert chosen.log is whole
    assert choose(cleanables[2:]) is None


async def test_only_compacted_topics_are_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(cleanup_compact=False, cleanup_delete=True))
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        assert not await cleaning.cleaner.clean_dirtiest()
    assert len(contents(log)) == 1000


async def test_compact_and_delete_does_both(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(cleanup_delete=True, retention_ms=DAY_MS))
    fill(log, 100, now_ms=T0)
    fill(log, 100, now_ms=T0 + DAY_MS)
    boundary = next(s.base_offset for s in log.segments if s.largest_timestamp() > T0)
    async with Cleaning([log], T0 + DAY_MS + 1) as cleaning:
        assert await cleaning.cleaner.clean_dirtiest()
    assert log.log_start_offset == boundary
    assert min(offset for offset, _, _ in contents(log)) > 1000
    assert len(contents(log)) < 200


async def test_a_log_made_anew_under_an_old_name_is_dirty_from_its_start(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        assert await cleaning.cleaner.clean_dirtiest()
        assert cleaning.cleaner.first_dirty_offset(log) > 800
        log.rename_for_delete()
        shutil.rmtree(log.directory)
        anew = open_log(tmp_path)
        fill(anew, 100)
        cleaning.logs[:] = [anew]
        assert cleaning.cleaner.first_dirty_offset(anew) == 0
        assert await cleaning.cleaner.clean_dirtiest()
    assert len(contents(anew)) < 200


async def test_a_checkpoint_of_a_log_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / CLEANER_OFFSET_FILE).write_text("0\n2\nt 0 0\nu 0 900\n")
    log = open_log(tmp_path)
    fill(log, 100)
    async with Cleaning([log]) as cleaning:
        assert await cleaning.cleaner.clean_dirtiest()
        late = open_log(tmp_path, name="u")
        fill(late, 100)
        cleaning.logs.append(late)
        assert await cleaning.cleaner.clean_dirtiest()
    assert len(contents(late)) < 200


def test_settings_come_from_the_broker_configuration() -> None:
    config = BrokerConfig({"log.cleaner.enable": "false", "log.cleaner.backoff.ms": "7"})
    assert CleanerSettings.from_config(config) == CleanerSettings(False, 7, 134_217_728)


async def test_nothing_at_or_above_the_high_watermark_is_compacted(tmp_path: Path) -> None:
    log = sealed(open_log(tmp_path, compacted(min_cleanable_dirty_ratio=0.0)), *[10] * 6)
    async with Cleaning([log], high_watermark=3) as cleaning:
        await cleaning.cleaner.clean_now(log)
        assert [offset for offset, *_ in contents(log)] == [2, 3, 4, 5]
        cleaning.high_watermark = 4
        await cleaning.cleaner.clean_now(log)
        assert [offset for offset, *_ in contents(log)] == [3, 4, 5]


async def test_retention_of_a_compacted_log_stops_at_the_high_watermark(tmp_path: Path) -> None:
    settings = compacted(cleanup_delete=True, retention_ms=1)
    log = sealed(open_log(tmp_path, settings), *[10] * 4)
    async with Cleaning([log], now_ms=NOW, high_watermark=2) as cleaning:
        await cleaning.cleaner.clean_dirtiest()
        assert log.log_start_offset == 2
