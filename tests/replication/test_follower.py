from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode
from klamm.replication.follower import Action, Do, FetchPosition, Follower
from klamm.replication.leader import diverging_epoch


class EpochOnlyLog:
    """A log of which there is nothing but its offsets and epochs."""

    def __init__(self, epochs: list[tuple[int, int]], end_offset: int, start_offset: int = 0) -> None:
        self.epochs = epochs
        self.log_start_offset = start_offset
        self.log_end_offset = end_offset

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        if not self.epochs or epoch > self.latest_epoch:
            return -1, -1
        ends = [*(start for _, start in self.epochs[1:]), self.log_end_offset]
        known = [(own, end) for (own, _), end in zip(self.epochs, ends, strict=True) if own <= epoch]
        return known[-1] if known else (epoch, self.epochs[0][1])

    def truncate_to(self, offset: int) -> None:
        self.log_end_offset = min(self.log_end_offset, offset)
        self.epochs = [entry for entry in self.epochs if entry[1] < offset]


def follower_of(log: EpochOnlyLog, high_watermark: int = 0) -> Follower:
    return Follower(log, leader_id=2, leader_epoch=9, high_watermark=high_watermark)


def truncate_until_logs_agree(own: EpochOnlyLog, leaders: EpochOnlyLog) -> list[int]:
    """The offsets that the follower truncates to, one a fetch."""
    follower = follower_of(own)
    offsets = []
    while True:
        position = follower.next_fetch()
        assert position is not None
        diverging = diverging_epoch(leaders, position.fetch_offset, position.last_fetched_epoch)
        if diverging is None:
            return offsets
        action = follower.on_answer(
            position.fetch_offset, 0, diverging_epoch=diverging[0], diverging_end_offset=diverging[1]
        )
        assert action.do is Do.TRUNCATE
        own.truncate_to(action.offset)
        follower.on_truncated()
        offsets.append(action.offset)
        assert len(offsets) < 10


def test_a_fetch_says_where_the_log_ends_and_in_which_epochs() -> None:
    follower = follower_of(EpochOnlyLog([(3, 0), (5, 50)], 80, start_offset=10))
    assert follower.next_fetch() == FetchPosition(80, 5, 9, 10)


# ---- truncation


def test_logs_that_agree_are_not_truncated_or_committed_records_above_the_high_watermark_are_lost() -> None:
    own = EpochOnlyLog([(3, 0)], 80)
    assert truncate_until_logs_agree(own, EpochOnlyLog([(3, 0), (5, 100)], 120)) == []
    assert own.log_end_offset == 80


def test_records_of_a_leader_that_was_replaced_are_cut_where_its_successor_began() -> None:
    own = EpochOnlyLog([(3, 0)], 80)
    assert truncate_until_logs_agree(own, EpochOnlyLog([(3, 0), (5, 60)], 120)) == [60]


def test_after_rapid_elections_truncation_goes_on_until_the_epochs_agree() -> None:
    # Epochs 4 and 6 wrote on this side only, 5 on the other: one round cannot find where both agree.
    own = EpochOnlyLog([(3, 0), (4, 40), (6, 60)], 80)
    leaders = EpochOnlyLog([(3, 0), (5, 50), (7, 70)], 90)
    assert truncate_until_logs_agree(own, leaders) == [60, 40]
    assert own.epochs == [(3, 0)]


def test_an_epoch_without_records_is_removed_though_the_log_keeps_its_end() -> None:
    own = EpochOnlyLog([(3, 0), (5, 80)], 80)
    assert truncate_until_logs_agree(own, EpochOnlyLog([(3, 0), (6, 80)], 90)) == [80]
    assert own.epochs == [(3, 0)]


def test_a_log_of_unknown_epochs_is_cut_to_where_the_leaders_epochs_begin() -> None:
    own = EpochOnlyLog([(4, 0)], 80)
    assert truncate_until_logs_agree(own, EpochOnlyLog([(5, 20)], 90, start_offset=20)) == [20]


def test_truncation_takes_the_high_watermark_along() -> None:
    log = EpochOnlyLog([(3, 0)], 80)
    follower = follower_of(log, high_watermark=80)
    log.truncate_to(60)
    follower.on_truncated()
    assert follower.high_watermark == 60


# ---- answers


def test_the_high_watermark_is_the_leaders_but_not_above_the_own_log_end() -> None:
    log = EpochOnlyLog([(3, 0)], 80)
    follower = follower_of(log, high_watermark=70)
    assert follower.on_answer(80, 0) == Action(Do.APPEND)
    log.log_end_offset = 90
    assert follower.on_appended(100, 0) is None
    assert follower.high_watermark == 90
    follower.on_appended(85, 0)
    assert follower.high_watermark == 90, "a new leader may know of a lower one"


def test_the_checkpointed_high_watermark_is_clipped_to_the_log_end() -> None:
    assert follower_of(EpochOnlyLog([(3, 0)], 80), high_watermark=100).high_watermark == 80


def test_the_log_start_follows_the_leaders() -> None:
    follower = follower_of(EpochOnlyLog([(3, 0)], 80, start_offset=10))
    assert follower.on_appended(80, 10) is None
    assert follower.on_appended(80, 40) == 40
    assert follower.on_appended(80, 90) == 80


def test_a_follower_that_is_too_far_behind_starts_at_the_leaders_log_start() -> None:
    follower = follower_of(EpochOnlyLog([(3, 0)], 80))
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.on_answer(80, out_of_range, leader_log_start_offset=200) == Action(Do.START_AT, 200)
    assert follower.on_answer(80, out_of_range, leader_log_start_offset=50) == Action(Do.RETRY_LATER), (
        "its own log is never dropped for a leader whose log starts below its end"
    )


def test_an_empty_log_beyond_the_leaders_end_starts_over() -> None:
    follower = follower_of(EpochOnlyLog([], 80, start_offset=80))
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.on_answer(80, out_of_range, leader_log_start_offset=0) == Action(Do.START_AT, 0)


def test_an_answer_to_a_fetch_before_a_truncation_is_dropped_or_records_get_wrong_offsets() -> None:
    log = EpochOnlyLog([(3, 0)], 80)
    follower = follower_of(log)
    log.truncate_to(60)
    assert follower.on_answer(80, 0) == Action(Do.DROP)


def test_a_fenced_follower_waits_for_a_newer_epoch_or_a_zombie_keeps_fetching() -> None:
    follower = follower_of(EpochOnlyLog([(3, 0)], 80))
    assert follower.on_answer(80, ErrorCode.FENCED_LEADER_EPOCH) == Action(Do.WAIT_FOR_EPOCH)
    assert follower.next_fetch() is None
    assert follower.on_answer(80, 0) == Action(Do.DROP), "an answer that was on its way"


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_a_leader_that_cannot_answer_yet_is_asked_later(error: ErrorCode) -> None:
    follower = follower_of(EpochOnlyLog([(3, 0)], 80))
    assert follower.on_answer(80, error) == Action(Do.RETRY_LATER)
    assert follower.next_fetch() is not None
