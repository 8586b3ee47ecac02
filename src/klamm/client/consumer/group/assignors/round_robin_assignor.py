"""The round-robin assignor: all partitions of all topics in order, dealt out one by one.

The result is exactly that of Java's RoundRobinAssignor. A member that does not subscribe to a partition's
topic is passed over and is next again only when its turn comes round.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import cycle

from klamm.client.consumer.group.assignors.members import (
    Assignment,
    GroupMember,
    Topics,
    in_order,
    java_order,
    no_partitions,
)
from klamm.model.ids import TopicPartition


def assign_round_robin(members: Collection[GroupMember], topics: Topics) -> Assignment:
    assignment = no_partitions(members)
    subscribed = frozenset().union(*(member.topics for member in members))
    turns = cycle(in_order(members))
    for topic in sorted(subscribed & topics.keys(), key=java_order):
        for number in range(len(topics[topic])):
            taker = next(member for member in turns if topic in member.topics)
            assignment[taker.member_id].append(TopicPartition(topic, number))
    return assignment
