"""The sticky assignor: as even as can be, and within that everybody keeps what it has.

What always holds of the result: every partition of a topic that somebody subscribes to has one owner, who
subscribes to it; and no chain of hand-overs from a member to one that has at least two partitions less could
make the shares more even. When all members subscribe to the same topics that means shares that differ by one
at most, with as few partitions moved as possible.

Members need not subscribe to the same topics. Topics with the same subscribers form a class, and partitions
of a class are as good as each other; who could hand something to whom is then a graph over members whose
edges are classes, which stays small however many partitions there are.

The steps: every member keeps the partitions that it held. Then each free partition goes to the member with
the fewest partitions among those that subscribe to its topic; partitions whose topic has the fewest
subscribers go first. Then partitions move along the shortest chains from members with many to members with
few, until no chain makes the shares more even."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from klamm.client.consumer.group.assignors.members import (
    Assignment,
    GroupMember,
    Topics,
    in_order,
    racks_matter,
)
from klamm.model.ids import TopicPartition

_Class: TypeAlias = tuple[int, ...]
"""The subscribers of a topic, by their place among the members."""


def assign_sticky(members: Collection[GroupMember], topics: Topics) -> Assignment:
    shares = _Shares(in_order(members), topics)
    shares.keep_what_was_held()
    shares.give_out_what_is_free()
    shares.even_out()
    return shares.assignment()


def assign_cooperative_sticky(members: Collection[GroupMember], topics: Topics) -> Assignment:
    """As sticky, but what another member still holds is withheld: it is free in the round after this one."""
    assignment = assign_sticky(members, topics)
    holders = _last_holders(members)
    for member_id, partitions in assignment.items():
        partitions[:] = [each for each in partitions if holders.get(each, {member_id}) == {member_id}]
    return assignment


class _Holding:
    """The partitions of one class that a member has: those whose previous owner it is, and the others."""

    __slots__ = ("kept", "received")

    def __init__(self) -> None:
        self.kept: list[TopicPartition] = []
        self.received: list[TopicPartition] = []

    def __bool__(self) -> bool:
        return bool(self.kept or self.received)

    def pick(self, prefer: Iterable[Callable[[TopicPartition], bool]]) -> TopicPartition:
        """Take one out: a received one rather than a kept one, and one that is preferred; else the last."""
        partitions = self.received or self.kept
        for wanted in prefer:
            for index in range(len(partitions) - 1, -1, -1):
                if wanted(partitions[index]):
                    return partitions.pop(index)
        return partitions.pop()


class _Shares:
    """Who has what while it is being shared out. Members are numbers: their places in the order."""

    def __init__(self, members: list[GroupMember], topics: Topics) -> None:
        self._members = members
        self._topics = topics
        self._holdings: list[dict[_Class, _Holding]] = [{} for _ in members]
        self._sizes = [0] * len(members)
        self._previous = _last_owners(members)
        self._class_of_topic: dict[str, _Class] = {}
        self._free: list[TopicPartition] = []
        for topic in sorted(topics):
            subscribers = tuple(place for place, member in enumerate(members) if topic in member.topics)
            if subscribers and topics[topic]:
                self._class_of_topic[topic] = subscribers
        self._racks_matter = racks_matter(
            members, [racks for topic in self._class_of_topic for racks in topics[topic]]
        )

    def assignment(self) -> Assignment:
        return {
            member.member_id: sorted(
                partition for each in holdings.values() for partition in (*each.kept, *each.received)
            )
            for member, holdings in zip(self._members, self._holdings, strict=True)
        }

    # ---- the steps

    def keep_what_was_held(self) -> None:
        for topic, subscribers in self._class_of_topic.items():
            for number in range(len(self._topics[topic])):
                partition = TopicPartition(topic, number)
                owner = self._previous.get(partition)
                if owner is not None and owner in subscribers:
                    self._give(owner, partition)
                else:
                    self._free.append(partition)

    def give_out_what_is_free(self) -> None:
        # What few may have goes first: the others can still make room around it.
        self._free.sort(key=lambda each: (len(self._class_of_topic[each.topic]), each))
        if self._racks_matter:
            total = sum(len(self._topics[topic]) for topic in self._class_of_topic)
            share = -(-total // len(self._members))
            self._free = [each for each in self._free if not self._give_in_its_rack(each, share)]
        sizes = self._sizes
        for partition in self._free:
            self._give(min(self._class_of_topic[partition.topic], key=sizes.__getitem__), partition)
        self._free = []

    def _give_in_its_rack(self, partition: TopicPartition, share: int) -> bool:
        """Give it to someone in a rack of its replicas who has less than the share. Says whether it could."""
        near = [
            place
            for place in self._class_of_topic[partition.topic]
            if self._sizes[place] < share and self._rack_fits(place, partition)
        ]
        if near:
            self._give(min(near, key=self._sizes.__getitem__), partition)
        return bool(near)

    def even_out(self) -> None:
        """Hand partitions on until no chain of hand-overs helps. Each one lowers the sum of squared sizes."""
        sizes = self._sizes
        while True:
            for place in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
                chain = self._chain_from(place)
                if chain:
                    for giver, taker, topics in chain:
                        self._hand_on(giver, taker, topics)
                    break
            else:
                return

    # ---- chains

    def _chain_from(self, start: int) -> list[tuple[int, int, _Class]]:
        """The shortest chain of hand-overs from `start` to a member that has two less, or less still."""
        limit = self._sizes[start] - 2
        came_by: dict[int, tuple[int, _Class]] = {start: (start, ())}
        seen: set[_Class] = set()
        edge = [start]
        while edge and len(came_by) < len(self._members):
            reached = [taker for giver in edge for taker in self._takers_from(giver, came_by, seen)]
            poorest = min(reached, key=self._sizes.__getitem__, default=start)
            if self._sizes[poorest] <= limit:
                return _walk_back(came_by, start, poorest)
            edge = reached
        return []

    def _takers_from(
        self, giver: int, came_by: dict[int, tuple[int, _Class]], seen: set[_Class]
    ) -> Iterator[int]:
        """Members that could take something of the giver's, and that no shorter chain has come to."""
        for topics in self._holdings[giver]:
            if topics not in seen:
                seen.add(topics)
                for taker in topics:
                    if taker not in came_by:
                        came_by[taker] = (giver, topics)
                        yield taker

    def _hand_on(self, giver: int, taker: int, topics: _Class) -> None:
        """Of the partitions that both may have, move the one that costs least: best is one that its previous
        owner gets back."""
        prefer: list[Callable[[TopicPartition], bool]] = [lambda each: self._previous.get(each) == taker]
        if self._racks_matter:
            prefer.append(lambda each: self._rack_fits(taker, each))
        holding = self._holdings[giver][topics]
        partition = holding.pick(prefer if holding.received or self._racks_matter else ())
        if not holding:
            del self._holdings[giver][topics]
        self._sizes[giver] -= 1
        self._give(taker, partition)

    def _give(self, taker: int, partition: TopicPartition) -> None:
        holding = self._holdings[taker].setdefault(self._class_of_topic[partition.topic], _Holding())
        (holding.kept if self._previous.get(partition) == taker else holding.received).append(partition)
        self._sizes[taker] += 1

    def _rack_fits(self, place: int, partition: TopicPartition) -> bool:
        return self._members[place].rack in self._topics[partition.topic][partition.partition]


def _walk_back(came_by: dict[int, tuple[int, _Class]], start: int, end: int) -> list[tuple[int, int, _Class]]:
    """The chain that ends there, its last hand-over first: so that nobody gives on what it has just got."""
    chain = []
    while end != start:
        giver, topics = came_by[end]
        chain.append((giver, end, topics))
        end = giver
    return chain


def _last_holders(members: Collection[GroupMember]) -> dict[TopicPartition, set[str]]:
    """Who says that it holds a partition: the claims of the latest generation count."""
    claims: dict[TopicPartition, tuple[int, set[str]]] = {}
    for member in members:
        generation = -1 if member.generation is None else member.generation
        for partition in member.owned:
            known, holders = claims.get(partition, (generation, set()))
            if generation > known:
                claims[partition] = (generation, {member.member_id})
            elif generation == known:
                claims[partition] = (known, holders | {member.member_id})
    return {partition: holders for partition, (_, holders) in claims.items()}


def _last_owners(members: list[GroupMember]) -> dict[TopicPartition, int]:
    """Who held each partition last. Two cannot both have held it; we cannot tell who did, so nobody did."""
    places = {member.member_id: place for place, member in enumerate(members)}
    return {
        partition: places[next(iter(holders))]
        for partition, holders in _last_holders(members).items()
        if len(holders) == 1
    }
