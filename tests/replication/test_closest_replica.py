from __future__ import annotations

import pytest

from klamm.replication.closest_replica import NO_PREFERENCE, ReplicaProgress, closest_replica

LEADER = ReplicaProgress(1, "east", True, 0, 100)


def follower(
    replica_id: int = 2, rack: str | None = "west", *, in_sync: bool = True, start: int = 0, end: int = 100
) -> ReplicaProgress:
    return ReplicaProgress(replica_id, rack, in_sync, start, end)


def choose(*followers: ReplicaProgress, rack: str = "west", offset: int = 50) -> int:
    return closest_replica(rack, offset, LEADER.replica_id, (LEADER, *followers))


def test_a_follower_in_the_consumers_rack_is_chosen() -> None:
    assert choose(follower(2, "north"), follower(3, "west")) == 3


@pytest.mark.parametrize("rack", ["", "east", "south"])
def test_the_leader_serves_its_own_rack_and_consumers_of_unknown_racks(rack: str) -> None:
    assert choose(follower(2), follower(3, "east"), follower(4, None), rack=rack) == NO_PREFERENCE


def test_a_follower_outside_of_the_isr_is_not_chosen() -> None:
    assert choose(follower(2, in_sync=False)) == NO_PREFERENCE
    assert choose(follower(2, in_sync=False, end=100), follower(3, end=60)) == 3


@pytest.mark.parametrize(("offset", "chosen"), [(9, NO_PREFERENCE), (10, 2), (90, 2), (91, NO_PREFERENCE)])
def test_a_follower_must_have_the_offset(offset: int, chosen: int) -> None:
    assert choose(follower(start=10, end=90), offset=offset) == chosen


def test_the_follower_that_has_most_is_chosen_and_of_equal_ones_always_the_same() -> None:
    assert choose(follower(2, end=80), follower(3, end=90), follower(4, end=70)) == 3
    assert choose(follower(3), follower(2)) == choose(follower(2), follower(3)) == 2
