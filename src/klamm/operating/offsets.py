"""The first and last offsets of many partitions, without waiting for those that have no leader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.client.errors import BatchFailed
from klamm.client.results import TopicPartition
from klamm.operating.ranges import Ends

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin
    from klamm.client.admin.types import OffsetWord


async def last_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each partition. Those that do not exist or have no leader are left out."""
    return await _offsets(admin, await led_partitions(admin, partitions), "latest")


async def ends_of(
    admin: Admin, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, Ends]:
    """The first offset and the end of each partition. Those that do not exist or have no leader are left out.
    With `read_committed`, a partition ends where its first open transaction begins."""
    led = await led_partitions(admin, partitions)
    firsts = await _offsets(admin, led, "earliest")
    lasts = await _offsets(admin, led, "latest", read_committed=read_committed)
    return {each: Ends(firsts[each], lasts[each]) for each in led if each in firsts and each in lasts}


async def led_partitions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those of the partitions that exist and have a leader. The client would wait long for the others."""
    wanted = sorted(set(partitions))
    topics = sorted({each.topic for each in wanted})
    if not topics:
        return []
    try:
        described = await admin.describe_topics(topics)
    except BatchFailed as failed:  # topics that were deleted
        described = failed.results
    led = {
        TopicPartition(topic.name, each.partition)
        for topic in described.values()
        for each in topic.partitions
        if each.leader is not None
    }
    return [each for each in wanted if each in led]


async def _offsets(
    admin: Admin, partitions: Iterable[TopicPartition], word: OffsetWord, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    try:
        found = await admin.list_offsets(dict.fromkeys(partitions, word), read_committed=read_committed)
    except BatchFailed as failed:  # a leader that has just gone
        found = failed.results
    return {partition: one.offset for partition, one in found.items() if one is not None}
