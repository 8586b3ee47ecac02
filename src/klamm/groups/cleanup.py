"""Deletes the offsets that groups have committed for topics that were deleted, in the background.

Nobody waits for it: OffsetFetch hides the offset of a topic that is gone by the topic's id. So a topic of the
same name may be created meanwhile, and offsets for that one stay. If the broker stops before the end, the
other offsets expire like any (`expired_partitions`).
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

    def has(self, committed: CommittedOffset) -> bool:
        """False for an offset of a topic that was created under the name since."""
        if committed.topic_id == ZERO_TOPIC_ID:
            return committed.commit_timestamp_ms <= self._last_deleted_ms
        return committed.topic_id in self._topic_ids


_DeletedTopics = dict[str, _DeletedTopic]


class OffsetCleanup:
    def __init__(self, shards: Callable[[], list[Shard]], clock: WallClock) -> None:
        self._shards = shards
        self._clock = clock
        self._deleted: _DeletedTopics = {}
        """Topics that no group has been searched for yet."""
        self._task: asyncio.Task[None] | None = None

    def start(self, topic_ids: Mapping[str, bytes]) -> None:
        """Delete the offsets of these topics, given by name, soon."""
        now_ms = self._clock.now_ms()
        for name, topic_id in topic_ids.items():
            self._deleted.setdefault(name, _DeletedTopic()).add(topic_id, now_ms)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._deleted:
                deleted, self._deleted = self._deleted, {}
                for shard in self._shards():
                    await self._clean(shard, deleted)
        except Exception:
            _LOGGER.exception("deleting the offsets of deleted topics failed with an unexpected error")

    async def _clean(self, shard: Shard, deleted: _DeletedTopics) -> None:
        if not await shard.wait_until_load_ends():
            return
        group_ids = await _groups_with(shard.table, deleted)
        if not group_ids:
            return
        code = await shard.writer.write_in_pieces(partial(_tombstones, shard.table, group_ids, deleted))
        if code is not ErrorCode.NONE:
            _LOGGER.warning(
                "offsets of deleted topics are left in __consumer_offsets-%d until they expire: %s",
                shard.partition,
                code.name,
            )


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
