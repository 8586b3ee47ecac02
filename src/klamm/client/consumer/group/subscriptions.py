"""What members of a group tell each other, as Java's consumer writes it, and what their leader makes of it.

A member sends its subscription once for every strategy it knows (the broker picks the strategy), the leader
answers with an assignment for each member. Both are opaque to the broker. Two strategies add data of their
own to the subscription: sticky what the member had last and since which generation, because it has given up
everything when it joins; cooperative-sticky the generation, for leaders older than version 2.

What others send is read kindly: versions 0 to 3 and later ones, librdkafka's cooperative-sticky with the user
data of sticky. A member whose bytes make no sense subscribes to nothing, and harms only itself.

The leader alone notices when a topic that any member subscribes to gets partitions, comes or goes; the other
members rely on it. A core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from typing import NamedTuple

from klamm.client.consumer.group.assignors import ASSIGNORS, COOPERATIVE_STICKY, STICKY, GroupMember, Topics
from klamm.model.ids import TopicPartition
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from klamm.protocol.messages.consumer_protocol import TopicPartition as TopicNumbers
from klamm.protocol.messages.k11_join_group import JoinGroupResponseMember
from klamm.protocol.messages.k14_sync_group import SyncGroupRequestAssignment
from klamm.protocol.schema import Message, array, field, int32


class StickyUserData(Message, versions="0-1"):
    """The user data of sticky; version 0, without the generation, is from before Kafka 2.3."""

    previous_assignment: list[TopicNumbers] = field(array(TopicNumbers))
    generation: int = field(int32, versions="1+", default=-1, ignorable=True)


class CooperativeUserData(Message, versions="0"):
    generation: int = field(int32, default=-1)


class Ownership(NamedTuple):
    """Partitions that a member had, and the generation in which it had them."""

    partitions: Collection[TopicPartition] = ()
    generation: int = -1


def write_subscription(
    strategy: str, topics: Iterable[str], owned: Ownership, last: Ownership | None, rack: str | None
) -> bytes:
    """`owned` is what the member holds while it joins, `last` what it was last assigned, if ever."""
    user_data = None
    if strategy == STICKY and last is not None:
        sticky = StickyUserData(previous_assignment=_by_topic(last.partitions), generation=last.generation)
        user_data = encode(sticky, 1)
    elif strategy == COOPERATIVE_STICKY:
        user_data = encode(CooperativeUserData(generation=-1 if last is None else last.generation), 0)
    subscription = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=_by_topic(owned.partitions),
        generation_id=owned.generation,
        rack_id=rack,
    )
    return encode_subscription(subscription)


def read_member(strategy: str, member_id: str, instance_id: str | None, metadata: bytes) -> GroupMember:
    try:
        subscription = decode_subscription(metadata)
    except MalformedMessage:
        return GroupMember(member_id, frozenset(), instance_id)
    owned = _ownership(strategy, subscription)
    return GroupMember(
        member_id,
        frozenset(subscription.topics),
        instance_id,
        tuple(owned.partitions),
        owned.generation if owned.generation >= 0 else None,
        subscription.rack_id,
    )


def _ownership(strategy: str, subscription: ConsumerProtocolSubscription) -> Ownership:
    user_data = subscription.user_data or b""
    if strategy == STICKY:
        return _read_sticky(user_data)
    owned = _flat(subscription.owned_partitions)
    if strategy != COOPERATIVE_STICKY or subscription.generation_id >= 0:
        return Ownership(owned, subscription.generation_id)
    if len(user_data) == int32.size:
        return Ownership(owned, decode(CooperativeUserData, 0, user_data)[0].generation)
    return Ownership(owned, _read_sticky(user_data).generation)


def _read_sticky(user_data: bytes) -> Ownership:
    for version in (1, 0):
        try:
            data, end = decode(StickyUserData, version, user_data)
        except MalformedMessage:
            continue
        if end == len(user_data):
            return Ownership(_flat(data.previous_assignment), data.generation)
    return Ownership()


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)))


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """The partitions in a leader's answer; no bytes at all mean none. Raises MalformedMessage."""
    return frozenset(_flat(decode_assignment(data).assigned_partitions)) if data else frozenset()


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TopicNumbers]:
    return [
        TopicNumbers(topic=topic, partitions=[each.partition for each in of_topic])
        for topic, of_topic in groupby(sorted(partitions), key=lambda each: each.topic)
    ]


def _flat(topics: Iterable[TopicNumbers]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, number) for each in topics for number in each.partitions)


class Leadership:
    """A group as its leader sees it, for one generation."""

    def __init__(
        self, strategy: str, members: Iterable[JoinGroupResponseMember], *, keeps_all: bool = False
    ) -> None:
        """`keeps_all` when the coordinator says that everybody just keeps what it has."""
        self.strategy = strategy
        self.keeps_all = keeps_all
        self.members: list[GroupMember] = [
            read_member(strategy, each.member_id, each.group_instance_id, bytes(each.metadata))
            for each in members
        ]
        self.topics: frozenset[str] = frozenset().union(*(member.topics for member in self.members))
        self._seen: dict[str, int] | None = None

    def share_out(self, topics: Topics) -> list[SyncGroupRequestAssignment]:
        """The assignments of all members, over the topics as they are now."""
        self._seen = self._counts(topics)
        if self.keeps_all:
            return []
        existing = {topic: topics[topic] for topic in self.topics if topics.get(topic)}
        assignment = ASSIGNORS[self.strategy](self.members, existing)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(partitions))
            for member_id, partitions in assignment.items()
        ]

    def is_outdated(self, topics: Topics) -> bool:
        """Whether the topics have changed since partitions were shared out."""
        return self._seen is not None and self._counts(topics) != self._seen

    def _counts(self, topics: Topics) -> dict[str, int]:
        return {topic: len(topics.get(topic, ())) for topic in self.topics}
