"""The leader's part in a rebalance: read what the members sent, share out, and keep an eye on the topics.

A core. The leader alone notices when a topic that any member subscribes to gets partitions, comes or goes;
the other members rely on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.client.consumer.group.assignors import ASSIGNORS, GroupMember, Topics
from klamm.client.consumer.group.subscriptions import read_member, write_assignment
from klamm.protocol.messages.k11_join_group import JoinGroupResponseMember
from klamm.protocol.messages.k14_sync_group import SyncGroupRequestAssignment


class Leadership:
    """A group as its leader sees it, for one generation."""

    def __init__(
        self, strategy: str, members: Iterable[JoinGroupResponseMember], *, is_settled: bool = False
    ) -> None:
        """`is_settled` when the coordinator says that everybody just keeps what it has."""
        self.strategy = strategy
        self.is_settled = is_settled
        self.members: list[GroupMember] = [
            read_member(strategy, each.member_id, each.group_instance_id, bytes(each.metadata))
            for each in members
        ]
        self.topics: frozenset[str] = frozenset().union(*(member.topics for member in self.members))
        self._seen: dict[str, int] | None = None

    def share_out(self, topics: Topics) -> list[SyncGroupRequestAssignment]:
        """The assignments of all members, over the topics as they are now."""
        self._seen = self._counts(topics)
        if self.is_settled:
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
