"""Deletes the offsets that groups have committed for topics that were deleted, in the background.

The leader of each partition of __consumer_offsets does it for its groups. A partition that is being loaded
has its turn when it is loaded; one that another broker leads by then is forgotten.

Nobody waits for it: OffsetFetch hides the offset of a topic that is gone by the topic's id. So a topic of the
same name may be created meanwhile, and offsets for that one stay. If the broker stops, or another one becomes
the leader, before the end, the other offsets expire like any (`expired_partitions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice

from klamm.groups.offsets import CommittedOffset
from klamm.groups.records import KeyValue, offset_tombstone
from klamm.groups.shard import Shard, WallClock
from klamm.groups.table import GroupTable
from klamm.groups.writer import MOST_AT_ONCE
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID, TopicPartition

_LOGGER = logging.getLogger(__name__)
_LOOKUPS_BETWEEN_PAUSES = 1_000
"""The search for offsets gives way to other work after it has looked for this many topics in groups."""


class _DeletedTopic:
    """All topics of one name that were deleted."""

    __slots__ = ("_last_deleted_ms", "_topic_ids")

    def __init__(self) -> None:
        self._topic_ids: set[bytes] = set()
        self._last_deleted_ms = 0

    def add(self, topic_id: bytes, now_ms: int) -> None:
        self._topic_ids.add(topic_id)
        self._last_deleted_ms = now_ms

    def merge(self, other: _DeletedTopic) -> None:
        self._topic_ids |= other._topic_ids
        self._last_deleted_ms = max(self._last_deleted_ms, other._last_deleted_ms)

    def has(self, committed: CommittedOffset) -> bool:
        """False for an offset of a topic that was created under the name since."""
        if committed.topic_id == ZERO_TOPIC_ID:
            return committed.commit_timestamp_ms <= self._last_deleted_ms
        return committed.topic_id in self._topic_ids


_DeletedTopics = dict[str, _DeletedTopic]


class OffsetCleanup:
    def __init__(self, shards: Callable[[], Mapping[int, Shard]], clock: WallClock) -> None:
        """`shards` tells, by partition, those that are led here now."""
        self._shards = shards
        self._clock = clock
        self._deleted: _DeletedTopics = {}
        """Topics that no group has been searched for yet."""
        self._postponed: dict[int, _DeletedTopics] = {}
        """By partition: topics that its groups are searched for when it is loaded."""
        self._task: asyncio.Task[None] | None = None

    def start(self, topic_ids: Mapping[str, bytes]) -> None:
        """Delete the offsets of these topics, given by name, soon."""
        now_ms = self._clock.now_ms()
        for name, topic_id in topic_ids.items():
            self._deleted.setdefault(name, _DeletedTopic()).add(topic_id, now_ms)
        self._run_soon()

    def on_loaded(self, partition: int) -> None:
        if partition in self._postponed:
            self._run_soon()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run_soon(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while work := self._take_work():
                for partition, deleted in work:
                    shard = self._shards().get(partition)
                    if shard is not None and not await self._clean(shard, deleted):
                        self._postpone(partition, deleted)
        except Exception:
            _LOGGER.exception("deleting the offsets of deleted topics failed with an unexpected error")

    def _take_work(self) -> list[tuple[int, _DeletedTopics]]:
        """What can be done now; the rest waits for its partition to be loaded."""
        shards = self._shards()
        serving = [partition for partition, shard in shards.items() if shard.is_serving]
        work = [(each, self._postponed.pop(each)) for each in serving if each in self._postponed]
        self._postponed = {each: topics for each, topics in self._postponed.items() if each in shards}
        if self._deleted:
            deleted, self._deleted = self._deleted, {}
            work += [(partition, deleted) for partition in shards]
        return work

    def _postpone(self, partition: int, deleted: _DeletedTopics) -> None:
        postponed = self._postponed.setdefault(partition, {})
        for name, topic in deleted.items():
            postponed.setdefault(name, _DeletedTopic()).merge(topic)

    async def _clean(self, shard: Shard, deleted: _DeletedTopics) -> bool:
        """False if the shard cannot be searched now, or ended before the end of the search."""
        if not shard.is_serving:
            return False
        group_ids = await _groups_with(shard.table, deleted)
        if not group_ids:
            return True
        code = await shard.writer.write_in_pieces(partial(_tombstones, shard.table, group_ids, deleted))
        if not shard.is_serving:
            return False
        if code is not ErrorCode.NONE:
            _LOGGER.warning(
                "offsets of deleted topics are left in __consumer_offsets-%d until they expire: %s",
                shard.partition,
                code.name,
            )
        return True


async def _groups_with(table: GroupTable, deleted: _DeletedTopics) -> deque[str]:
    """The groups that may have offsets of deleted topics."""
    found: deque[str] = deque()
    lookups = 0
    for group_id in table:
        entry = table.get(group_id)
        if entry is None:
            continue
        lookups += 1 + min(len(deleted), entry.offsets.topic_count)
        if entry.offsets.topics_among(deleted):
            found.append(group_id)
        if lookups >= _LOOKUPS_BETWEEN_PAUSES:
            lookups = 0
            await asyncio.sleep(0)
    return found


def _tombstones(
    table: GroupTable, group_ids: deque[str], deleted: _DeletedTopics
) -> tuple[list[KeyValue], bool]:
    """The next tombstones; True if these are the last. Groups that have no more offsets to delete are removed
    from `group_ids`."""
    tombstones: list[KeyValue] = []
    for _ in range(min(MOST_AT_ONCE, len(group_ids))):
        group_id = group_ids[0]
        room = MOST_AT_ONCE - len(tombstones)
        places = list(islice(_places(table, group_id, deleted), room))
        tombstones += [offset_tombstone(group_id, *place) for place in places]
        if len(places) == room:
            break
        group_ids.popleft()
    return tombstones, not group_ids


def _places(table: GroupTable, group_id: str, deleted: _DeletedTopics) -> Iterator[TopicPartition]:
    entry = table.get(group_id)
    if entry is None:
        return
    for topic in entry.offsets.topics_among(deleted):
        for partition in entry.offsets.partitions_of(topic):
            committed = entry.offsets.get(topic, partition)
            if committed is not None and deleted[topic].has(committed):
                yield TopicPartition(topic, partition)
