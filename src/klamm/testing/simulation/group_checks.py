"""What must hold for groups: what the log of `__consumer_offsets` says, and what members are told.

The log is judged in the order in which its records are committed. A commit of offsets carries a token, which
names the member and the generation that it was made in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from klamm.groups.offsets import CommittedOffset
from klamm.groups.records import GroupChange, OffsetChange, parse_record
from klamm.model.ids import TopicPartition
from klamm.testing.simulation.disk import SimulatedBatch

_SEPARATOR = "|"


class Token(NamedTuple):
    member_id: str
    generation: int
    number: int

    def text(self) -> str:
        return _SEPARATOR.join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Token:
        member_id, generation, number = text.split(_SEPARATOR)
        return cls(member_id, int(generation), int(number))


class _Version(NamedTuple):
    offset: int
    token: Token


class GroupLedger:
    def __init__(self, fail: Callable[[str], NoReturn]) -> None:
        self._fail = fail
        self._generations: dict[str, int] = {}
        """Of the last record of each group."""
        self._versions: dict[tuple[str, TopicPartition], list[_Version]] = {}
        """All offsets that were committed, in the order of the log."""
        self._committed: set[tuple[str, TopicPartition, Token]] = set()
        self._owners: dict[tuple[str, int, TopicPartition], str] = {}
        self._synced: dict[str, int] = {}
        """Member → the last generation that it got an assignment in."""
        self.check_count = 0
        self.commit_count = 0
        self.rebalance_count = 0
        self.fenced_count = 0

    # ---- the log

    def on_committed(self, record: SimulatedBatch) -> None:
        for key, value in record.group_records:
            match parse_record(key, value):
                case GroupChange(group_id, snapshot) if snapshot is not None:
                    self._on_generation(group_id, snapshot.generation)
                case OffsetChange(group_id, topic, partition, committed) if committed is not None:
                    self._on_offset(group_id, TopicPartition(topic, partition), committed)
                case _:
                    self._fail(f"a record of a group that nobody should have written: {key!r}, {value!r}")

    def _on_generation(self, group_id: str, generation: int) -> None:
        self.check_count += 1
        before = self._generations.get(group_id, 0)
        if generation < before:
            self._fail(f"group {group_id} goes back from generation {before} to {generation}")
        self._generations[group_id] = generation
        self.rebalance_count += generation > before

    def _on_offset(self, group_id: str, place: TopicPartition, committed: CommittedOffset) -> None:
        self.check_count += 1
        token = Token.parse(committed.metadata)
        current = self._generations.get(group_id, 0)
        if token.generation != current:
            self._fail(
                f"group {group_id} is in generation {current}; {token} has committed an offset of {place}"
            )
        versions = self._versions.setdefault((group_id, place), [])
        if versions and committed.offset < versions[-1].offset and versions[-1].token[:2] != token[:2]:
            # A member may overtake a commit of its own that it has given up.
            self._fail(
                f"group {group_id}: the offset of {place} goes back from {versions[-1]} to "
                f"{committed.offset} by {token}"
            )
        versions.append(_Version(committed.offset, token))
        self._committed.add((group_id, place, token))

    # ---- members

    def on_assignment(
        self, group_id: str, member_id: str, generation: int, places: list[TopicPartition]
    ) -> None:
        """A member was told what it owns."""
        self.check_count += 1
        for place in places:
            owner = self._owners.setdefault((group_id, generation, place), member_id)
            if owner != member_id:
                self._fail(
                    f"group {group_id}: {owner} and {member_id} own {place} in generation {generation}"
                )
        before = self._synced.get(member_id, 0)
        if generation < before:
            self._fail(f"group {group_id}: {member_id} goes back from generation {before} to {generation}")
        self._synced[member_id] = generation

    def on_commit_acknowledged(self, group_id: str, place: TopicPartition, token: Token) -> None:
        self.check_count += 1
        self.commit_count += 1
        if (group_id, place, token) not in self._committed:
            self._fail(
                f"group {group_id}: the commit {token} of {place} was acknowledged and is not committed"
            )

    def version_count(self, group_id: str, place: TopicPartition) -> int:
        return len(self._versions.get((group_id, place), ()))

    def on_offset_told(
        self, group_id: str, place: TopicPartition, asked_at: int, committed: CommittedOffset | None
    ) -> None:
        """A member was told the committed offset; when it asked, `version_count` was `asked_at`."""
        self.check_count += 1
        versions = self._versions.get((group_id, place), [])
        if committed is None:
            if asked_at:
                self._fail(f"group {group_id}: {versions[asked_at - 1]} of {place} is lost")
            return
        token = Token.parse(committed.metadata)
        if all(version.token != token for version in versions[max(0, asked_at - 1) :]):
            self._fail(
                f"group {group_id}: a member was told {committed.offset} of {place}, by {token}; "
                f"committed was {versions[asked_at - 1] if asked_at else 'nothing'} when it asked"
            )

    def committed_offset(self, group_id: str, place: TopicPartition) -> int:
        versions = self._versions.get((group_id, place))
        return versions[-1].offset if versions else 0
