"""Replicas outside the ISR that have every committed record all the same (eligible leaders, KIP-966).

The high watermark stands still while an ISR has fewer than min.insync.replicas members. So members that leave
such an ISR have all that is committed, however long they are away, and may lead if no member of the ISR can.
A replica stays eligible until the ISR has enough members again, until its broker registers without having
stopped cleanly, or until its log cannot be used: then it may have lost records that it had acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection

from klamm.cluster.image import PartitionImage, TopicImage
from klamm.config.loading import BrokerConfig
from klamm.config.topic_keys import topic_value

MIN_ISR_KEY = "min.insync.replicas"


def min_insync_replicas(config: BrokerConfig, topic: TopicImage) -> int:
    value = topic_value(config, topic.config, MIN_ISR_KEY)
    assert isinstance(value, int)
    return value


def eligible_after(
    before: PartitionImage, after: PartitionImage, minimum: int, untrusted: Collection[int]
) -> tuple[int, ...]:
    """The eligible replicas of `after`. `untrusted` brokers may have lost records."""
    complete = {*before.isr, *before.eligible_replicas}
    if len(after.isr) >= min(minimum, len(after.replicas)):
        return ()
    if complete.isdisjoint(after.isr):
        return ()  # an unclean election: what the new leader lacks is committed no longer
    left = complete.difference(after.isr, untrusted, after.offline_replicas)
    return tuple(each for each in after.replicas if each in left)
