"""All fetchers of a broker: for each leader one for the partitions that keep up, and some for those behind.

A partition is far behind if an answer held much of it, and committed records are still missing. It is not in
the ISR then, and nobody waits for it. It moves to a connection of its own, as far as there are some, and back
when it has caught up. So:

* Those that keep up do not wait for megabytes of others, nor do the writes with acks=all that wait for them.
* A follower that returns asks for the next part of one partition while it writes another. It cannot ask for
  the next part of the same one: to a leader, a fetch offset says that all before it is written.

Invariants:
* A partition belongs to at most one fetcher.
* It moves only while no request of its fetcher is under way, and the next request of that fetcher's session
  begins with forgetting it. Else a leader could hear of an old position after a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from klamm.client.network.connection import BrokerConnection
from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.replication.fetched_writes import FetchedWriter, RunInThread, Slowness
from klamm.replication.fetcher import FetchSettings, LeaderFetcher, Settings
from klamm.replication.followed import FollowedPartition

KEEPING_UP = 0
"""The lane of a leader for the partitions that keep up; the others are for those behind."""

MUCH_BYTES = 256 * 1024
"""Less of a partition in an answer does not make it move."""

LANES_BEHIND = 3
"""With one, a leader waits while the follower writes. Other numbers than three were not measured."""

Connect = Callable[[int, int], Awaitable[BrokerConnection]]
"""Opens a connection to a leader, for one of its lanes."""


class Fetchers:
    def __init__(self, connect: Connect, settings: Settings, run_in_thread: RunInThread) -> None:
        self._connect = connect
        self._settings = settings
        self._run_in_thread = run_in_thread
        self._lanes: dict[int, list[LeaderFetcher]] = {}
        """By leader."""
        self._fetcher_of: dict[FollowedPartition, LeaderFetcher] = {}
        self._slowness = Slowness()
        self._is_over = False

    def __contains__(self, partition: FollowedPartition) -> bool:
        """True if the partition is fetched."""
        return partition in self._fetcher_of

    def follow(self, leader_id: int, partitions: Iterable[FollowedPartition]) -> None:
        """Fetch these partitions, which nobody fetches now, from `leader_id`."""
        lanes = self._lanes.setdefault(leader_id, [])
        if not lanes:
            self._add_lane(leader_id)
        chosen = list(partitions)
        for partition in chosen:
            assert partition not in self._fetcher_of, f"{partition.key} is fetched already"
            self._fetcher_of[partition] = lanes[KEEPING_UP]
        lanes[KEEPING_UP].add(chosen)

    async def unfollow(self, partitions: Iterable[FollowedPartition]) -> None:
        """Stop fetching these partitions; returns when nothing of them is being written any more."""
        fetchers: set[LeaderFetcher] = set()
        for partition in partitions:
            fetcher = self._fetcher_of.pop(partition, None)
            if fetcher is not None:
                fetcher.release(partition)
                fetchers.add(fetcher)
        for fetcher in fetchers:
            await fetcher.until_written()

    async def shut_down(self) -> None:
        self._is_over = True
        fetchers = [fetcher for lanes in self._lanes.values() for fetcher in lanes]
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
        self._lanes.clear()
        self._fetcher_of.clear()

    def _add_lane(self, leader_id: int) -> LeaderFetcher:
        lanes = self._lanes[leader_id]
        number = len(lanes)
        lanes.append(
            LeaderFetcher(
                leader_id,
                number,
                lambda: self._connect(leader_id, number),
                self._settings if number == KEEPING_UP else self._settings_behind,
                FetchedWriter(self._run_in_thread, self._slowness),
                self._on_fetched,
            )
        )
        return lanes[number]

    def _settings_behind(self) -> FetchSettings:
        """The lanes share what an answer may hold, however few partitions are behind. Large answers are few:
        to ask for one, and to wake the leader, costs as much as copying a quarter of a megabyte."""
        settings = self._settings()
        share = settings.max_bytes // LANES_BEHIND
        return settings._replace(
            max_bytes=share, partition_max_bytes=max(share, settings.partition_max_bytes)
        )

    def _on_fetched(self, fetcher: LeaderFetcher, partition: FollowedPartition, data: PartitionData) -> None:
        """Move the partition, if it does not belong to this fetcher any longer."""
        if self._is_over:
            return
        if fetcher.lane == KEEPING_UP:
            if data.records and len(data.records) >= MUCH_BYTES and _is_behind(partition, data):
                self._move(partition, fetcher, self._free_lane(fetcher.leader_id))
        elif not _is_behind(partition, data):
            self._move(partition, fetcher, self._lanes[fetcher.leader_id][KEEPING_UP])

    def _free_lane(self, leader_id: int) -> LeaderFetcher:
        """The one with the fewest partitions among those for partitions that are behind."""
        behind = self._lanes[leader_id][KEEPING_UP + 1 :]
        least = min(behind, key=len, default=None)
        if least is None or (len(least) and len(behind) < LANES_BEHIND):
            return self._add_lane(leader_id)
        return least

    def _move(self, partition: FollowedPartition, fetcher: LeaderFetcher, to: LeaderFetcher) -> None:
        assert self._fetcher_of[partition] is fetcher
        fetcher.release(partition)
        self._fetcher_of[partition] = to
        to.add((partition,))


def _is_behind(partition: FollowedPartition, data: PartitionData) -> bool:
    """True if the leader has committed records that are not here after this answer."""
    position = partition.next_fetch()
    return position is not None and position.fetch_offset < data.high_watermark
