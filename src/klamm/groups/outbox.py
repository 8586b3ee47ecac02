"""What a group wants done outside: answers to parked requests, and snapshots to persist.

For every snapshot that is being written, the outbox remembers what to do when it is in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.groups.events import Answered, Effect, GroupSnapshot, JoinResult, Persist, SyncResult, Token
from klamm.groups.member import Member
from klamm.model.errors import ErrorCode


class AssignmentWrite(NamedTuple):
    """The leader's assignment, to be handed out when it is persisted."""

    generation: int
    assignments: dict[str, bytes]


class StaticReturnWrite(NamedTuple):
    """A static member's new id, to be told to it when it is persisted."""

    token: Token
    member_id: str
    result: JoinResult


Write = AssignmentWrite | StaticReturnWrite | None
"""None: nobody waits for the record."""


class Outbox:
    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._next_ticket = 0
        self._writes: dict[int, Write] = {}

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def answer(self, token: Token, result: JoinResult | SyncResult) -> None:
        self._effects.append(Answered(token, result))

    def release(self, member: Member, error: ErrorCode) -> None:
        """Answer the parked requests of this member with `error`."""
        token, member.join_token = member.join_token, None
        if token is not None:
            self.answer(token, JoinResult(error, member.member_id))
        self.release_sync(member, error)

    def release_sync(self, member: Member, error: ErrorCode) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self.answer(token, SyncResult(error))

    def persist(self, snapshot: GroupSnapshot, write: Write) -> None:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._writes[ticket] = write
        self._effects.append(Persist(ticket, snapshot))

    def finish(self, ticket: int) -> Write:
        return self._writes.pop(ticket)

    def is_persisting_assignment(self, generation: int) -> bool:
        return any(
            isinstance(write, AssignmentWrite) and write.generation == generation
            for write in self._writes.values()
        )
