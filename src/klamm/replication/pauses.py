"""Going through many topics or partitions with pauses, in which other work of the event loop goes on.

The pauses are counted and do not follow the clock, so that a simulation of a cluster can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import islice

from klamm.cluster.image import ClusterImage, ImageDelta, PartitionImage, TopicImage

TOPICS_BETWEEN_PAUSES = 50
PARTITIONS_BETWEEN_PAUSES = 500
"""Topics that take over settings, and partitions of one topic that are added or take over roles, before other
work of the loop goes on: a few milliseconds."""


async def changed_topics(new: ClusterImage, delta: ImageDelta) -> AsyncIterator[TopicImage]:
    """The topics that `delta` has left; all of them if it changes what they have as defaults."""
    after = (change.after for change in delta.topics.values())
    changed = new.topics.values() if delta.broker_configs else filter(None, after)
    for number, topic in enumerate(changed, 1):
        yield topic
        if number % TOPICS_BETWEEN_PAUSES == 0:
            await asyncio.sleep(0)


async def pieces_of(states: Mapping[int, PartitionImage]) -> AsyncIterator[dict[int, PartitionImage]]:
    """Partitions of one topic in pieces, with a pause after each but the last."""
    left = iter(states.items())
    while piece := dict(islice(left, PARTITIONS_BETWEEN_PAUSES)):
        yield piece
        if len(piece) == PARTITIONS_BETWEEN_PAUSES:
            await asyncio.sleep(0)
