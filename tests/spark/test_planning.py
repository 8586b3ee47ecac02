from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.ids import TopicPartition
from pyspark_klamm.planning import (
    TASK_RECORDS,
    OffsetRange,
    TriggerGate,
    count_records,
    first_start,
    limited,
    plan_ranges,
    plan_tasks,
    split_ranges,
    unstarted,
    within_logs,
)

A, B, C = (TopicPartition("t", number) for number in range(3))


# ---- ranges of a batch


def test_a_batch_reads_from_start_to_end() -> None:
    plan = plan_ranges({A: 5, B: 7}, {A: 9, B: 7}, {})
    assert plan.ranges == [OffsetRange("t", 0, 5, 9)]
    assert not plan.losses


def test_a_new_partition_starts_at_its_earliest_offset() -> None:
    assert unstarted({A: 5}, {A: 5, B: 3}) == [B]
    plan = plan_ranges({A: 5}, {A: 5, B: 3}, {B: 0})
    assert plan.ranges == [OffsetRange("t", 1, 0, 3)]
    assert not plan.losses


def test_a_new_partition_that_has_lost_records_is_a_loss() -> None:
    plan = plan_ranges({}, {B: 3}, {B: 2})
    assert plan.ranges == [OffsetRange("t", 1, 2, 3)]
    assert plan.losses == ["the new partition t-1 starts at offset 2 instead of 0"]
    assert plan_ranges({}, {B: 3}, {}).losses == ["the new partition t-1 no longer exists"]


def test_partitions_that_are_gone_are_a_loss() -> None:
    plan = plan_ranges({A: 5, B: 1, C: 0}, {A: 6}, {})
    assert plan.ranges == [OffsetRange("t", 0, 5, 6)]
    assert plan.losses == ["t-1, t-2 no longer exist"]


def test_a_log_that_begins_anew_is_read_from_its_beginning() -> None:
    assert unstarted({A: 50}, {A: 4}) == [A]
    plan = plan_ranges({A: 50}, {A: 4}, {A: 1})
    assert plan.ranges == [OffsetRange("t", 0, 1, 4)]
    assert plan.losses == ["t-0 was read up to offset 50, but its log ends at offset 4 now"]


def test_a_first_batch_that_was_planned_before_keeps_to_its_end() -> None:
    assert first_start({A: 5, B: 2, C: 0}, {A: 3, B: 7}, at_latest=True) == {A: 3, B: 2}
    assert first_start({A: 5, B: 2, C: 0}, {A: 3, B: 7}, at_latest=False) == {A: 5, B: 2}


def test_offsets_that_were_given_are_moved_into_the_logs() -> None:
    offsets, losses = within_logs({A: 1, B: 99, C: 5}, {A: 3, B: 0, C: 0}, {A: 9, B: 9, C: 5})
    assert offsets == {A: 3, B: 9, C: 5}
    assert losses == [
        "offset 1 of t-0 does not exist: the log has offsets 3 to 8",
        "offset 99 of t-1 does not exist: the log has offsets 0 to 8",
    ]


# ---- parts

sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=8)


def ranges_of(sizes: list[int]) -> list[OffsetRange]:
    return [OffsetRange("t", number, 100, 100 + size) for number, size in enumerate(sizes)]


@given(sizes, st.none() | st.integers(1, 60), st.none() | st.integers(1, 5000))
def test_parts_cover_the_ranges_once(sizes: list[int], least: int | None, most: int | None) -> None:
    if most is not None:
        most = max(most, sum(sizes) // 200)  # not thousands of parts
    ranges = ranges_of(sizes)
    parts = split_ranges(ranges, least, most)
    position = 0
    for whole in ranges:
        offset = whole.start
        while offset < whole.end:
            part = parts[position]
            assert part.place == whole.place
            assert part.start == offset < part.end
            assert most is None or part.size <= most
            offset = part.end
            position += 1
        assert offset == whole.end
    assert position == len(parts)
    assert len(parts) >= min(least or 0, sum(sizes))


def test_without_options_a_partition_is_one_part() -> None:
    assert split_ranges(ranges_of([5, 500]), None, None) == ranges_of([5, 500])
    assert split_ranges(ranges_of([5, 500]), 2, 1000) == ranges_of([5, 500])


def test_large_ranges_are_cut_and_small_ones_are_not() -> None:
    parts = split_ranges(ranges_of([10, 1000]), 5, None)
    assert [part.size for part in parts] == [10, 250, 250, 250, 250]


def test_parts_of_equal_size_keep_to_the_most_records() -> None:
    assert [part.size for part in split_ranges(ranges_of([10]), None, 4)] == [3, 3, 4]


@given(sizes, st.none() | st.integers(1, 60), st.none() | st.integers(1000, 5000))
def test_tasks_have_the_parts_in_order_and_few_are_small(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    ranges = ranges_of(sizes)
    tasks = plan_tasks(ranges, least, most)
    assert [part for task in tasks for part in task] == split_ranges(ranges, least, most)
    counts = [sum(part.size for part in task) for task in tasks]
    for task, count in zip(tasks, counts, strict=True):
        assert len(task) == 1 or (least is None and count <= TASK_RECORDS)
    if least is None:
        assert all(sum(two) > TASK_RECORDS for two in pairwise(counts))


def test_a_small_batch_is_one_task_whatever_its_partitions() -> None:
    ranges = ranges_of([167, 167, 167, 167, 166, 166])
    assert plan_tasks(ranges, None, None) == [tuple(ranges)]
    assert plan_tasks(ranges, None, 400) == [tuple(ranges[:2]), tuple(ranges[2:4]), tuple(ranges[4:])]
    assert plan_tasks(ranges, 6, None) == [(each,) for each in ranges]


# ---- limits


@given(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 1000), min_size=1), st.integers(1, 1500))
def test_a_limit_is_kept_and_nobody_starves(sizes: dict[TopicPartition, int], most: int) -> None:
    start = dict.fromkeys(sizes, 50)
    end = {each: 50 + size for each, size in sizes.items()}
    chosen = limited(start, end, most)
    assert chosen.keys() == end.keys()
    for each, size in sizes.items():
        assert start[each] + min(size, 1) <= chosen[each] <= end[each]
    partitions = sum(size > 0 for size in sizes.values())
    assert count_records(start, chosen) == min(sum(sizes.values()), max(most, partitions))


def test_shares_are_in_proportion() -> None:
    assert limited({A: 0, B: 0, C: 10}, {A: 300, B: 100, C: 10}, 100) == {A: 75, B: 25, C: 10}


def test_a_log_that_begins_anew_is_not_limited_below_zero() -> None:
    assert limited({A: 50}, {A: 4}, 2) == {A: 4}


# ---- holding back


def test_a_gate_opens_for_enough_records_or_after_its_delay() -> None:
    gate = TriggerGate(min_offsets=100, max_delay_seconds=60)
    assert gate.lets_pass(1, now=1000.0), "the first batch is not held back"
    assert not gate.lets_pass(99, now=1001.0)
    assert gate.lets_pass(100, now=1002.0)
    assert not gate.lets_pass(99, now=1061.9)
    assert gate.lets_pass(99, now=1062.0)
    assert not gate.lets_pass(99, now=1063.0)


@pytest.mark.parametrize(("start", "end", "count"), [({A: 1}, {A: 3, B: 7}, 2), ({A: 5}, {A: 3}, 0)])
def test_records_are_counted_where_the_start_is_known(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], count: int
) -> None:
    assert count_records(start, end) == count
