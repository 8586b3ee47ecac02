"""What goes into a group's state machine and what comes out of it.

The state machine knows a parked request only by its token, a number that the caller chose. The machine
answers every token exactly once, by an `Answered` effect.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, NewType

from klamm.model.errors import ErrorCode

Token = NewType("Token", int)
NO_GENERATION = -1


class GroupState(StrEnum):
    """The names are those that clients see in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupSettings(NamedTuple):
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    commit_timeout_ms: int = 5_000
    """How long a request waits until its record is committed."""
    new_member_join_timeout_ms: int = 300_000
    """A new member knows no member id yet, so it cannot heartbeat; one whose first join has been parked for
    this long is removed. Otherwise each retry of a client that timed out would leave a dead member behind."""


class Subscription(NamedTuple):
    """One of the assignment protocols a member supports, with its opaque metadata."""

    name: str
    metadata: bytes


class Join(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Subscription, ...]
    new_member_id: str
    """The id the member gets if it turns out to be new."""
    requires_known_member_id: bool
    """JoinGroup v4+: a new member is first told its id and joins again with it."""
    can_skip_assignment: bool
    """JoinGroup v9+: a static leader that comes back may be told that it need not assign again."""


class Sync(NamedTuple):
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class Leaver(NamedTuple):
    member_id: str
    instance_id: str | None


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    error: ErrorCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class MemberSnapshot(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupSnapshot(NamedTuple):
    """The part of a group that survives a restart: the content of its GroupMetadata record."""

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: tuple[MemberSnapshot, ...]


class Answered(NamedTuple):
    token: Token
    result: JoinResult | SyncResult


class Persist(NamedTuple):
    """Write the snapshot; then call `Group.persisted` or `Group.persist_failed` with the ticket."""

    ticket: int
    snapshot: GroupSnapshot


Effect = Answered | Persist
