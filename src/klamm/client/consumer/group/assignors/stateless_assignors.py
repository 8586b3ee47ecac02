"""The assignors without a memory: range and round-robin.

Range: of every topic each member gets a run of neighbouring partitions.

The result is exactly that of Java's RangeAssignor, racks included. Topic by topic the members in order get
`count // members` partitions, the first `count % members` one more. Where racks matter, members first take
partitions with a replica in their rack, as many as they would get anyway. Topics with the same members and
the same number of partitions are taken together then, so that equal numbers stay together for joins.

Round-robin: all partitions of all topics in order, dealt out one by one. The result is exactly that of Java's
RoundRobinAssignor. A member that does not subscribe to a partition's topic is passed over and is next again
only when the round comes back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle

from klamm.client.consumer.group.assignors.members import (
    Assignment,
    GroupMember,
    Topics,
    in_order,
    java_order,
    no_partitions,
    racks_matter,
)
from klamm.model.ids import TopicPartition

MayTake = Callable[[GroupMember, int], bool]


def assign_range(members: Collection[GroupMember], topics: Topics) -> Assignment:
    assignment = no_partitions(members)
    ordered = in_order(members)
    shares = [
        _TopicShares(topic, racks, [member for member in ordered if topic in member.topics])
        for topic, racks in sorted(topics.items())
        if racks
    ]
    shares = [each for each in shares if each.members]
    if any(each.needs_racks for each in shares):
        _share_by_rack(shares)
    for each in shares:
        each.hand_out(lambda member, partition: True)
        for member_id, partitions in each.taken.items():
            assignment[member_id].extend(TopicPartition(each.topic, number) for number in sorted(partitions))
    return assignment


class _TopicShares:
    """How the partitions of one topic are handed out, and how many each member may still take."""

    def __init__(self, topic: str, racks: Sequence[frozenset[str]], members: list[GroupMember]) -> None:
        self.topic = topic
        self.racks = racks
        self.members = members
        self.needs_racks = racks_matter(members, racks)
        self.taken: dict[str, list[int]] = {member.member_id: [] for member in members}
        self._left = dict.fromkeys(range(len(racks)))
        self._share = len(racks) // len(members) if members else 0
        self._larger_shares = len(racks) % len(members) if members else 0

    def rack_fits(self, member: GroupMember, partition: int) -> bool:
        return member.rack is None or member.rack in self.racks[partition]

    def room(self, member: GroupMember) -> int:
        limit = self._share + (1 if self._larger_shares > 0 else 0)
        return max(0, limit - len(self.taken[member.member_id]))

    def take(self, member: GroupMember, partitions: Sequence[int]) -> None:
        taken = self.taken[member.member_id]
        taken.extend(partitions)
        if len(taken) > self._share:
            self._larger_shares -= 1
        for number in partitions:
            del self._left[number]

    def hand_out(self, may_take: MayTake) -> None:
        """Members in order take what is left, in order, as far as their shares go."""
        for member in self.members:
            if not self._left:
                return
            fitting = [number for number in self._left if may_take(member, number)][: self.room(member)]
            if fitting:
                self.take(member, fitting)


def _share_by_rack(shares: list[_TopicShares]) -> None:
    alike: dict[tuple[tuple[str, ...], int], list[_TopicShares]] = {}
    for each in shares:
        members = tuple(member.member_id for member in each.members)
        alike.setdefault((members, len(each.racks)), []).append(each)
    for group in alike.values():
        if len(group) > 1:
            _share_together_by_rack(group)
        elif group[0].needs_racks:
            group[0].hand_out(group[0].rack_fits)


def _share_together_by_rack(shares: list[_TopicShares]) -> None:
    """Give each number, of all these topics at once, to the first member whose rack fits all of them."""
    for number in range(len(shares[0].racks)):
        for member in shares[0].members:
            if all(each.room(member) > 0 and each.rack_fits(member, number) for each in shares):
                for each in shares:
                    each.take(member, [number])
                break


def assign_round_robin(members: Collection[GroupMember], topics: Topics) -> Assignment:
    assignment = no_partitions(members)
    subscribed = frozenset().union(*(member.topics for member in members))
    rounds = cycle(in_order(members))
    for topic in sorted(subscribed & topics.keys(), key=java_order):
        for number in range(len(topics[topic])):
            taker = next(member for member in rounds if topic in member.topics)
            assignment[taker.member_id].append(TopicPartition(topic, number))
    return assignment
