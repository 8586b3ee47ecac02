"""The simulation notices broken rules: each mutation here loses records, and some seed must show it.

The mutations are subclasses that the simulated cluster runs in place of the real parts.
"""

from __future__ import annotations

from typing import Any

import pytest

from klamm.replication.follower import Follower
from klamm.replication.isr import Isr, IsrChange, Outcome
from klamm.replication.leader import Leader
from klamm.replication.progress import FollowerProgress
from klamm.testing.simulation.cluster import Settings, SimulationFailed, simulate
from klamm.testing.simulation.controller import Registration, SmallController
from klamm.testing.simulation.disk import SimulatedLog
from klamm.testing.simulation.replica import MIN_INSYNC_REPLICAS, Replica

MOST_SEEDS = 100
"""Each of these mutations is noticed by one seed in sixteen or more."""
DENSE = {"seconds": 400.0, "pause_between_faults_s": 6.0, "pause_of_clients_s": 0.7}


class AnybodyJoins(Leader):
    """A follower joins the ISR with its first fetch, whatever it has."""

    def _may_join(self, follower: FollowerProgress) -> bool:
        return follower.log_end_offset >= 0


class RevertingIsr(Isr):
    def settle(self, change: IsrChange, outcome: Outcome, *state: Any) -> IsrChange | None:
        reverted = Outcome.NOT_APPLIED if outcome is Outcome.UNKNOWN else outcome
        return super().settle(change, reverted, *state)


class UnknownIsNotApplied(Leader):
    """A change of the ISR without an answer counts as not applied."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.isr = RevertingIsr(self.isr.leader_epoch, self.isr.committed, self.isr.partition_epoch)


class TruncatesToHighWatermark(Follower):
    """A follower cuts its log back to its high watermark when it hears of a new leader."""

    def __init__(self, log: SimulatedLog, **settings: Any) -> None:
        super().__init__(log, **settings)
        log.truncate_to(self.high_watermark)


class UncleanMembersStay(SmallController):
    """A broker that registers without a clean shutdown stays in the ISR."""

    def is_member(self, registration: Registration | None, broker_epoch: int) -> bool:
        return registration is not None


def replica_with(leader: type[Leader] = Leader, follower: type[Follower] = Follower) -> type[Replica]:
    return type("MutatedReplica", (Replica,), {"leader_class": leader, "follower_class": follower})


MUTATIONS = {
    "a stale replica joins the ISR": Settings(**DENSE, replica_class=replica_with(leader=AnybodyJoins)),
    "an unknown outcome is reverted": Settings(
        **DENSE, replica_class=replica_with(leader=UnknownIsNotApplied)
    ),
    "truncation to the high watermark": Settings(
        **DENSE, replica_class=replica_with(follower=TruncatesToHighWatermark)
    ),
    "an unclean member stays in the ISR": Settings(
        **DENSE, controller=UncleanMembersStay(MIN_INSYNC_REPLICAS)
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_is_noticed(mutation: str) -> None:
    for seed in range(MOST_SEEDS):
        try:
            simulate(seed, MUTATIONS[mutation])
        except SimulationFailed as failure:
            assert "committed" in str(failure) or "healing" in str(failure)
            return
    pytest.fail(f"{mutation}: {MOST_SEEDS} seeds have not noticed it")


def test_the_same_faults_are_survived_with_all_rules_kept() -> None:
    for seed in range(5):
        simulate(seed, Settings(**DENSE))
