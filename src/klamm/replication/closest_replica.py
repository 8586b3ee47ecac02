"""Which replica a consumer should read from (KIP-392): the leader, or a follower in its rack. A core.

The leader decides, by what it knows of each follower. A follower is only named while it is in the ISR and
has the offset that the consumer asks for: its answer would be OFFSET_OUT_OF_RANGE otherwise, and the
consumer would come back to the leader with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NO_PREFERENCE = -1
"""The value of `preferred_read_replica` if the consumer should go on reading from whom it asked."""


class ReplicaProgress(NamedTuple):
    """What the leader of a partition knows of one of its replicas, itself included."""

    replica_id: int
    rack: str | None
    is_in_sync: bool
    """True if the replica is in the ISR and its broker is alive."""
    log_start_offset: int
    log_end_offset: int


def closest_replica(rack: str, fetch_offset: int, leader_id: int, replicas: Iterable[ReplicaProgress]) -> int:
    """The follower that a consumer in `rack` should read `fetch_offset` from, or NO_PREFERENCE.

    Of several followers in the rack the one with the largest log end offset is chosen; of equal ones the one
    with the smallest id, so that a consumer is not sent to and fro.
    """
    if not rack:
        return NO_PREFERENCE
    closest: ReplicaProgress | None = None
    for replica in replicas:
        if replica.rack != rack:
            continue
        if replica.replica_id == leader_id:
            return NO_PREFERENCE
        if not replica.is_in_sync or not (replica.log_start_offset <= fetch_offset <= replica.log_end_offset):
            continue
        if closest is None or (-replica.log_end_offset, replica.replica_id) < (
            -closest.log_end_offset,
            closest.replica_id,
        ):
            closest = replica
    return NO_PREFERENCE if closest is None else closest.replica_id
