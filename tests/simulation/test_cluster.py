"""A few seeds of the simulated cluster; SEED=n chooses where they begin. `make simulate` runs many."""

from __future__ import annotations

import os

import pytest

from klamm.replication.leader import Leader
from klamm.testing.simulation.cluster import Settings, SimulationFailed, simulate
from klamm.testing.simulation.replica import Replica

FIRST_SEED = int(os.environ.get("SEED", "1"))
SEED_COUNT = 3


def test_a_cluster_under_faults_keeps_what_it_acknowledged_and_recovers() -> None:
    results = [simulate(seed) for seed in range(FIRST_SEED, FIRST_SEED + SEED_COUNT)]
    assert sum(result.seconds for result in results) > 600 * SEED_COUNT
    # The runs are worth nothing if little happens in them.
    assert sum(result.elections for result in results) > 10 * SEED_COUNT
    assert sum(result.acknowledged for result in results) > 100 * SEED_COUNT
    assert sum(result.commits for result in results) > 100 * SEED_COUNT
    assert sum(result.rebalances for result in results) > 2 * SEED_COUNT
    assert sum(result.read for result in results) >= sum(result.committed for result in results)


def test_a_seed_runs_the_same_way_each_time() -> None:
    settings = Settings(seconds=100)
    assert simulate(FIRST_SEED, settings) == simulate(FIRST_SEED, settings)
    assert simulate(FIRST_SEED, settings) != simulate(FIRST_SEED + 1, settings)


class DeafLeader(Leader):
    def on_fetch(self, *arguments: object) -> None:
        return None


class DeafReplica(Replica):
    leader_class = DeafLeader


def test_a_failure_names_its_seed_and_the_last_events() -> None:
    settings = Settings(seconds=20, replica_class=DeafReplica)
    with pytest.raises(SimulationFailed, match=r"seed 3 failed: 120 s after healing") as caught:
        simulate(3, settings)
    assert "VIOLATION: 120 s after healing" in str(caught.value)
    assert "SEED=3" in str(caught.value)
