from __future__ import annotations

from typing import Any

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.isr import IsrChange, Outcome
from klamm.replication.leader import REFUSED_JOIN_PAUSE_MS, Leader, diverging_epoch
from klamm.replication.progress import LagWatch

LAG_TIME_MAX_MS = 10_000
BROKER_EPOCHS = {1: 10, 2: 20, 3: 30}


class Scene:
    """A leader on broker 1, and what its followers and the controller do."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), **changed: Any) -> None:
        self.now_ms = 1_000_000
        self.lag_watch = LagWatch()
        settings: dict[str, Any] = {
            "broker_id": 1,
            "broker_epoch": BROKER_EPOCHS[1],
            "leader_epoch": 5,
            "replicas": (1, 2, 3),
            "isr": isr,
            "partition_epoch": 7,
            "log_end_offset": 100,
            "high_watermark": 90,
            "min_insync_replicas": 2,
            "lag_time_max_ms": LAG_TIME_MAX_MS,
            "now_ms": self.now_ms,
        }
        self.leader = Leader(TopicPartition("t", 0), self.lag_watch, **{**settings, **changed})

    def fetch(self, replica_id: int, offset: int, broker_epoch: int | None = None) -> IsrChange | None:
        epoch = BROKER_EPOCHS[replica_id] if broker_epoch is None else broker_epoch
        return self.leader.on_fetch(replica_id, epoch, offset, 0, self.now_ms)

    def after(self, ms: int) -> list[tuple[int, ...]]:
        """The ISRs that the check of the lag proposes `ms` later."""
        self.now_ms += ms
        return [change.isr for _, change in self.lag_watch.check(self.now_ms)]

    def apply(self, change: IsrChange | None) -> IsrChange | None:
        assert change is not None
        return self.leader.on_alter_partition(
            change, Outcome.APPLIED, self.now_ms, change.isr, change.partition_epoch + 1
        )


# ---- the high watermark


def test_the_high_watermark_is_what_all_in_sync_replicas_have_or_an_election_loses_acknowledged_records() -> (
    None
):
    scene = Scene()
    scene.leader.on_append(110)
    scene.fetch(2, 110)
    assert scene.leader.high_watermark == 90, "nothing is known of broker 3"
    scene.fetch(3, 105)
    assert scene.leader.high_watermark == 105


def test_a_follower_outside_the_isr_does_not_hold_the_high_watermark() -> None:
    scene = Scene((1, 2))
    scene.fetch(2, 100)
    assert scene.leader.high_watermark == 100


def test_the_high_watermark_waits_for_a_pending_addition_or_the_future_isr_lacks_acknowledged_records() -> (
    None
):
    scene = Scene((1, 2))
    scene.fetch(2, 100)
    assert scene.fetch(3, 100) is not None
    scene.leader.on_append(110)
    scene.fetch(2, 110)
    assert scene.leader.high_watermark == 100
    scene.fetch(3, 110)
    assert scene.leader.high_watermark == 110


def test_the_high_watermark_waits_for_a_pending_removal_or_the_removed_replica_may_be_elected() -> None:
    scene = Scene()
    scene.fetch(2, 100)
    scene.fetch(3, 100)
    scene.leader.on_append(110)
    scene.after(0)
    scene.fetch(2, 110)
    assert scene.after(LAG_TIME_MAX_MS + 1) == [(1, 2)]
    assert scene.leader.high_watermark == 100
    scene.apply(scene.leader.isr.pending)
    assert scene.leader.high_watermark == 110


def test_the_high_watermark_stays_below_the_minimum_of_in_sync_replicas() -> None:
    scene = Scene((1,))
    scene.leader.on_append(110)
    assert scene.leader.high_watermark == 90
    change = scene.fetch(3, 110)
    assert scene.leader.high_watermark == 90, "the addition is not committed yet"
    scene.apply(change)
    assert scene.leader.high_watermark == 110


def test_the_minimum_is_no_more_than_the_number_of_replicas_or_one_replica_never_takes_acks_all() -> None:
    scene = Scene((1,), replicas=(1,))
    assert scene.leader.has_enough_replicas
    assert scene.leader.high_watermark == 100
    scene.leader.on_append(110)
    assert scene.leader.high_watermark == 110
    assert len(scene.lag_watch) == 0


def test_the_high_watermark_never_goes_back() -> None:
    scene = Scene((1, 2))
    scene.fetch(2, 100)
    scene.leader.take_over((1, 2, 3), (1, 2, 3), 8, scene.now_ms)
    scene.fetch(3, 50)
    assert scene.leader.high_watermark == 100


def test_a_raised_minimum_stops_the_high_watermark_and_a_lowered_one_lets_it_go() -> None:
    scene = Scene((1, 2), min_insync_replicas=3)
    scene.fetch(2, 100)
    assert scene.leader.high_watermark == 90
    scene.leader.set_min_insync_replicas(2)
    assert scene.leader.high_watermark == 100


def test_a_leader_that_was_replaced_without_knowing_acknowledges_nothing_unfetched() -> None:
    scene = Scene()
    scene.fetch(2, 100)
    scene.fetch(3, 100)
    scene.leader.on_append(120)
    for _ in range(5):
        for _, change in scene.lag_watch.check(scene.now_ms):
            scene.leader.on_alter_partition(change, Outcome.UNKNOWN, scene.now_ms)
        scene.now_ms += LAG_TIME_MAX_MS
    assert scene.leader.high_watermark == 100


# ---- acks=all and ListOffsets


def test_acks_all_is_refused_before_and_after_the_append_when_too_few_replicas_are_in_sync() -> None:
    scene = Scene((1, 2))
    assert scene.leader.has_enough_replicas
    scene.leader.take_over((1, 2, 3), (1,), 8, scene.now_ms)
    assert not scene.leader.has_enough_replicas


def test_the_latest_offset_is_not_told_before_the_epochs_start_is_committed_or_it_goes_backwards() -> None:
    scene = Scene((1, 2))
    assert not scene.leader.may_answer_latest
    scene.fetch(2, 99)
    assert not scene.leader.may_answer_latest
    scene.fetch(2, 100)
    assert scene.leader.may_answer_latest


def test_the_low_watermark_is_the_lowest_log_start_of_all_replicas() -> None:
    scene = Scene()
    scene.leader.on_fetch(2, 20, 100, 40, scene.now_ms)
    assert scene.leader.low_watermark(50, (1, 2, 3)) == -1, "broker 3 has not told its log start"
    scene.leader.on_fetch(3, 30, 100, 60, scene.now_ms)
    assert scene.leader.low_watermark(50, (1, 2, 3)) == 40
    assert scene.leader.low_watermark(50, (1, 3)) == 50, "broker 2 is not alive"


# ---- joining the ISR


def test_a_follower_below_the_high_watermark_does_not_join_or_committed_records_are_lost() -> None:
    scene = Scene((1, 2), log_end_offset=100, high_watermark=100)
    scene.leader.on_append(110)
    scene.fetch(2, 110)
    assert scene.fetch(3, 109) is None
    change = scene.fetch(3, 110)
    assert change is not None
    assert change.members == ((1, 10), (2, 20), (3, 30))


def test_a_follower_below_the_start_of_the_epoch_does_not_join_as_the_high_watermark_may_be_stale() -> None:
    scene = Scene((1, 2), log_end_offset=100, high_watermark=50)
    assert scene.fetch(3, 60) is None
    assert scene.fetch(3, 100) is not None


def test_a_fetch_with_an_older_broker_epoch_is_refused_or_a_stale_replica_joins() -> None:
    scene = Scene((1, 2))
    scene.fetch(3, 95, broker_epoch=31)
    with pytest.raises(KafkaError) as caught:
        scene.fetch(3, 100, broker_epoch=30)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_broker_without_a_replica_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        Scene().leader.on_fetch(9, 90, 100, 0, 0)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_member_that_restarted_acknowledges_nothing_until_it_has_left_the_isr() -> None:
    scene = Scene((1, 2))
    scene.fetch(2, 100)
    scene.leader.on_append(110)
    scene.fetch(2, 110, broker_epoch=21)
    assert scene.leader.high_watermark == 100, "the controller does not count broker 2 any more"
    assert scene.leader.take_over((1, 2, 3), (1,), 8, scene.now_ms) is None, "what it had may be gone"
    change = scene.fetch(2, 110, broker_epoch=21)
    assert change is not None
    assert change.members == ((1, 10), (2, 21))
    scene.apply(change)
    assert scene.leader.high_watermark == 110


def test_a_restarted_member_leaves_the_isr_by_its_lag_if_the_controller_says_nothing() -> None:
    scene = Scene()
    scene.fetch(2, 100)
    scene.fetch(3, 100)
    assert scene.after(0) == []
    assert len(scene.lag_watch) == 0
    scene.fetch(3, 100, broker_epoch=31)
    assert scene.after(LAG_TIME_MAX_MS + 1) == [(1, 2)]


def test_a_follower_that_asks_while_a_change_is_in_flight_joins_after_it() -> None:
    scene = Scene((1,))
    change = scene.fetch(2, 100)
    assert scene.fetch(3, 100) is None
    following = scene.apply(change)
    assert following is not None
    assert (following.isr, following.partition_epoch) == ((1, 2, 3), 8)


def test_a_refused_follower_is_not_proposed_with_each_of_its_fetches() -> None:
    scene = Scene((1, 2))
    scene.fetch(2, 100)
    change = scene.fetch(3, 100)
    assert change is not None
    assert scene.leader.on_alter_partition(change, Outcome.NOT_APPLIED, scene.now_ms) is None
    assert scene.fetch(3, 100) is None
    assert scene.after(REFUSED_JOIN_PAUSE_MS) == [(1, 2, 3)], "though it does not fetch again"


def test_an_unknown_outcome_is_asked_for_again_and_the_follower_counts_meanwhile() -> None:
    scene = Scene((1, 2))
    change = scene.fetch(3, 100)
    assert change is not None
    assert scene.leader.on_alter_partition(change, Outcome.UNKNOWN, scene.now_ms) == change
    scene.leader.on_append(110)
    scene.fetch(2, 110)
    assert scene.leader.high_watermark == 100


# ---- leaving the ISR


def test_nobody_lags_at_the_start_of_an_epoch_or_a_new_leader_drops_its_whole_isr() -> None:
    scene = Scene(log_end_offset=100)
    assert scene.after(LAG_TIME_MAX_MS) == []
    assert scene.after(1) == [(1,)]


def test_a_follower_at_the_leaders_log_end_stays_however_long_ago_it_fetched() -> None:
    scene = Scene()
    scene.fetch(2, 100)
    scene.fetch(3, 100)
    assert scene.after(100 * LAG_TIME_MAX_MS) == []
    assert len(scene.lag_watch) == 0, "an idle partition costs nothing"


def test_the_time_to_lag_starts_with_the_append_after_an_idle_time() -> None:
    scene = Scene()
    scene.fetch(2, 100)
    scene.fetch(3, 100)
    scene.after(100 * LAG_TIME_MAX_MS)
    scene.leader.on_append(110)
    assert scene.after(1) == []
    scene.fetch(2, 110)
    assert scene.after(LAG_TIME_MAX_MS) == []
    assert scene.after(1) == [(1, 2)]


def test_a_follower_that_reaches_each_time_the_former_log_end_is_caught_up_on_a_busy_partition() -> None:
    scene = Scene()
    scene.after(0)
    for end_offset in range(110, 200, 10):
        scene.leader.on_append(end_offset)
        scene.fetch(2, end_offset - 10)
        scene.fetch(3, 100)
        proposals = scene.after(LAG_TIME_MAX_MS // 2)
        if proposals:
            break
    assert proposals == [(1, 2)]


def test_lag_is_not_proposed_twice_while_the_first_proposal_is_in_flight() -> None:
    scene = Scene()
    assert scene.after(LAG_TIME_MAX_MS + 1) == [(1,)]
    assert scene.after(LAG_TIME_MAX_MS + 1) == []


def test_who_joins_has_its_full_time_to_lag() -> None:
    scene = Scene((1, 2))
    scene.fetch(2, 100)
    scene.leader.on_append(110)
    scene.after(LAG_TIME_MAX_MS)
    change = scene.fetch(3, 105)
    assert change is not None
    scene.fetch(2, 110)
    scene.apply(change)
    assert scene.after(LAG_TIME_MAX_MS) == []
    assert scene.after(1) == [(1, 2)]


# ---- divergence


class EpochsOfLeader:
    """Epoch 3 from offset 0, epoch 5 from 50, epoch 7 from 80; the log ends at 100."""

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return {3: (3, 50), 4: (3, 50), 5: (5, 80), 6: (5, 80), 7: (7, 100)}.get(epoch, (-1, -1))


@pytest.mark.parametrize(
    ("fetch_offset", "last_fetched_epoch", "expected"),
    [
        (0, -1, None),
        (40, 3, None),
        (50, 3, None),
        (51, 3, (3, 50)),
        (60, 4, (3, 50)),
        (45, 4, (3, 50)),
        (100, 7, None),
        (101, 7, (7, 100)),
    ],
)
def test_a_log_that_parts_from_the_leaders_is_told_where(
    fetch_offset: int, last_fetched_epoch: int, expected: tuple[int, int] | None
) -> None:
    assert diverging_epoch(EpochsOfLeader(), fetch_offset, last_fetched_epoch) == expected


def test_an_epoch_that_the_leaders_log_does_not_reach_is_out_of_range() -> None:
    with pytest.raises(KafkaError) as caught:
        diverging_epoch(EpochsOfLeader(), 10, 8)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
