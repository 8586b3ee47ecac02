"""Who is in a group: its members, the static names some of them go by, its leader, and its protocol vote.

Invariants: a static name belongs to one member; the leader, when there is one, is a member;
`_supporters` counts for every protocol the members that support it, and has no protocol that none supports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from klamm.groups.events import Subscription
from klamm.groups.member import Member
from klamm.model.errors import ErrorCode


class Roster:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static_member_ids: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static_member_id(self, instance_id: str | None) -> str | None:
        return None if instance_id is None else self._static_member_ids.get(instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    @property
    def joined_count(self) -> int:
        return sum(member.join_token is not None for member in self)

    def all_joined(self) -> bool:
        return all(member.join_token is not None for member in self)

    def identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode | None:
        """Why a sender is not the member that it says it is, or None.

        A static name must come with the member id that holds it now; an earlier holder is fenced.
        """
        if instance_id is not None:
            holder = self._static_member_ids.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return None if holder == member_id else ErrorCode.FENCED_INSTANCE_ID
        return None if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._static_member_ids
            self._static_member_ids[member.instance_id] = member.member_id
        self._supporters.update(member.protocol_names)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> Member:
        member = self._members.pop(member_id)
        if member.instance_id is not None:
            del self._static_member_ids[member.instance_id]
        self._forget_protocols(member)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)
        return member

    def replace_protocols(self, member: Member, protocols: tuple[Subscription, ...]) -> None:
        self._forget_protocols(member)
        member.protocols = protocols
        self._supporters.update(member.protocol_names)

    def _forget_protocols(self, member: Member) -> None:
        for name in member.protocol_names:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def rename_static(self, instance_id: str, new_member_id: str) -> Member:
        """Give a static member a new member id. It keeps its assignment, and stays the leader if it is."""
        old_member_id = self._static_member_ids[instance_id]
        member = self._members.pop(old_member_id)
        member.member_id = new_member_id
        self._members[new_member_id] = member
        self._static_member_ids[instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        return member

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else choose the first member that has; False if none has."""
        leader = self._members.get(self.leader_id or "")
        if leader is None or leader.join_token is None:
            leader = next((member for member in self if member.join_token is not None), None)
            if leader is None:
                return False
            self.leader_id = leader.member_id
        return True

    def supports_any(self, protocols: tuple[Subscription, ...]) -> bool:
        return any(self._supporters[protocol.name] == len(self) for protocol in protocols)

    def elect_protocol(self) -> str | None:
        """The protocol that most members like best among those that all support."""
        # What all support, the first member supports too; the names that any member has may be very many.
        names: set[str] = next((member.protocol_names for member in self), set())
        candidates = {name for name in names if self._supporters[name] == len(self)}
        if not candidates:
            return None
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]
