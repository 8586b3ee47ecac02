"""Which brokers hold the replicas of new partitions.

Leaders go round the brokers, so that each leads about as many; the other replicas follow at a distance that
grows with every round, so that the load of a broker that fails spreads over all the others; and no rack
gets a second replica before every rack has one. A round begins with the first new partition, whichever broker
leads it, and has one distance. So after every round all brokers hold equally many of the new replicas, if all
racks have equally many brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence


def place_replicas(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, its first leader first.

    `racks` has the rack of every living broker; `replication_factor` is at most their number. `start`, any
    number, says which broker comes first, so that topics do not all begin at the same one.
    """
    assert 0 < replication_factor <= len(racks), "checked by the caller"
    order = _alternate_racks(racks)
    placed: list[tuple[int, ...]] = []
    for index in range(partition_count):
        position = (start + first_partition + index) % len(order)
        distance = start // len(order) + index // len(order)
        others = order[position + 1 :] + order[:position]
        turn = distance % len(others) if others else 0
        followers = others[turn:] + others[:turn]
        placed.append(_spread((order[position], *followers), racks, replication_factor))
    return placed


def _alternate_racks(racks: Mapping[int, str | None]) -> list[int]:
    """The brokers in an order in which neighbours are in different racks where possible."""
    by_rack: dict[str | None, deque[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], deque()).append(broker_id)
    order: list[int] = []
    waiting = [by_rack[rack] for rack in sorted(by_rack, key=lambda rack: rack or "")]
    while waiting:
        for brokers in waiting:
            order.append(brokers.popleft())
        waiting = [brokers for brokers in waiting if brokers]
    return order


def _spread(
    candidates: Sequence[int], racks: Mapping[int, str | None], replication_factor: int
) -> tuple[int, ...]:
    """The first candidates, but one of each rack before the second of any."""
    chosen: list[int] = []
    remaining = list(candidates)
    while len(chosen) < replication_factor:
        used: set[str | None] = set()
        for broker_id in tuple(remaining):
            if len(chosen) == replication_factor:
                break
            if racks[broker_id] is None or racks[broker_id] not in used:
                used.add(racks[broker_id])
                chosen.append(broker_id)
                remaining.remove(broker_id)
    return tuple(chosen)
