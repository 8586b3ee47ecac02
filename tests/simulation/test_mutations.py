"""The simulation notices broken rules: each mutation here loses something, and some seed must show it.

The mutations take the place of real parts. Those that few seeds notice are left to `make test-long`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from klamm.cluster.controller import brokers
from klamm.groups.group import Group
from klamm.groups.log_port import LedPartition
from klamm.replication.follower import Follower
from klamm.replication.isr import Isr, IsrChange, Outcome
from klamm.replication.leader import Leader
from klamm.replication.progress import FollowerProgress
from klamm.testing.simulation.cluster import Settings, SimulationFailed, simulate
from klamm.testing.simulation.disk import SimulatedLog
from klamm.testing.simulation.replica import Replica
from tests.long import cases

MOST_SEEDS = 100
DENSE = {"seconds": 400.0, "pause_between_faults_s": 6.0, "pause_of_clients_s": 0.7}

Patch = Callable[[pytest.MonkeyPatch], None]


# ---- replicas


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


def leads(leader: type[Leader]) -> Patch:
    return lambda patch: patch.setattr(Replica, "leader_class", leader)


def follows(follower: type[Follower]) -> Patch:
    return lambda patch: patch.setattr(Replica, "follower_class", follower)


# ---- the controller


def unclean_members_stay(patch: pytest.MonkeyPatch) -> None:
    """A broker that registers without a clean shutdown stays in the ISR."""
    real = brokers._without_failed
    patch.setattr(
        brokers,
        "_without_failed",
        lambda partition, alive, restarted: real(
            partition, alive, restarted._replace(all=frozenset(), unclean=frozenset())
        ),
    )


# ---- groups


def commits_are_answered_before_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    real = LedPartition.append

    async def at_once() -> None:
        pass

    def append(self: LedPartition, records: Any) -> Awaitable[None]:
        real(self, records).close()  # type: ignore[attr-defined]
        return at_once()

    patch.setattr(LedPartition, "append", append)


def groups_are_loaded_too_early(patch: pytest.MonkeyPatch) -> None:
    """A new leader serves groups before it knows what its predecessor has committed."""

    async def at_once(self: LedPartition) -> None:
        pass

    patch.setattr(LedPartition, "until_committed", at_once)


def generations_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A member commits in whatever generation."""
    patch.setattr(Group, "commit_error", lambda *arguments: None)


def generations_begin_again(patch: pytest.MonkeyPatch) -> None:
    """A group that is loaded has lost count."""
    real = Group.restore
    patch.setattr(
        Group, "restore", lambda snapshot, *settings: real(snapshot._replace(generation=0), *settings)
    )


MUTATIONS: dict[str, Patch] = {
    "a stale replica joins the ISR": leads(AnybodyJoins),
    "an unknown outcome is reverted": leads(UnknownIsNotApplied),
    "truncation to the high watermark": follows(TruncatesToHighWatermark),
    "an unclean member stays in the ISR": unclean_members_stay,
    "commits are answered before the high watermark": commits_are_answered_before_the_high_watermark,
    "groups are loaded too early": groups_are_loaded_too_early,
    "generations are not compared": generations_are_not_compared,
    "generations begin again": generations_begin_again,
}

NOTICED_SOON = frozenset(
    {
        "commits are answered before the high watermark",
        "generations are not compared",
        "generations begin again",
        "groups are loaded too early",
    }
)


@pytest.mark.parametrize("mutation", cases(MUTATIONS, lambda name: name in NOTICED_SOON))
def test_a_broken_rule_is_noticed(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[mutation](monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            simulate(seed, Settings(**DENSE))
        except SimulationFailed:
            return
    pytest.fail(f"{mutation}: {MOST_SEEDS} seeds have not noticed it")


@pytest.mark.long
def test_the_same_faults_are_survived_with_all_rules_kept() -> None:
    for seed in range(5):
        simulate(seed, Settings(**DENSE))
