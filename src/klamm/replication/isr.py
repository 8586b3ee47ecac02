"""The in-sync replicas (ISR) of one partition, as its leader knows them in one leader epoch; without IO.

The controller owns the ISR. The leader proposes a change by AlterPartition, which the controller applies only
if leader epoch, partition epoch and broker epochs are the current ones. Between the proposal and its outcome
the leader does not know which of two ISRs holds, so it reckons with both.

    Committed ──propose──► Pending ──applied, or told a newer state──► Committed (the new ISR)
                           Pending ──not applied, and all attempts answered──► Committed (the old ISR)
                           Pending ──unknown──► Pending: the same change is sent again, after a pause
                           Pending ──superseded──► Pending: the controller is ahead and will tell

Invariants:
* At most one change is pending.
* `maximal` holds every replica that may be in the ISR now: the committed ISR and the pending additions; while
  a removal is pending, the old ISR.
* The partition epoch never goes back.
* An attempt with an unknown outcome may still be applied at any time. A later "not applied" says nothing
  about it, so the leader then proposes the committed ISR itself: that raises the partition epoch, after which
  the lost attempt can be applied no more.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from klamm.model.errors import ErrorCode


class IsrMember(NamedTuple):
    broker_id: int
    broker_epoch: int
    """As the replica's fetches name it; -1 if it has not fetched from this leader."""


class IsrChange(NamedTuple):
    """What AlterPartition asks for."""

    leader_epoch: int
    partition_epoch: int
    members: tuple[IsrMember, ...]

    @property
    def isr(self) -> tuple[int, ...]:
        return tuple(member.broker_id for member in self.members)


class Outcome(Enum):
    """What the answer to AlterPartition says of the proposed change."""

    APPLIED = auto()
    NOT_APPLIED = auto()
    """Explicitly. The controller is where the leader is, and has refused this attempt."""
    UNKNOWN = auto()
    """No answer, or one that does not tell: ask again."""
    SUPERSEDED = auto()
    """The controller has a newer leader epoch or partition epoch and will tell the leader of it."""


_OUTCOMES: dict[int, Outcome] = {
    ErrorCode.NONE: Outcome.APPLIED,
    ErrorCode.OPERATION_NOT_ATTEMPTED: Outcome.NOT_APPLIED,
    ErrorCode.INELIGIBLE_REPLICA: Outcome.NOT_APPLIED,
    ErrorCode.INVALID_REQUEST: Outcome.NOT_APPLIED,
    ErrorCode.INVALID_UPDATE_VERSION: Outcome.SUPERSEDED,
    ErrorCode.FENCED_LEADER_EPOCH: Outcome.SUPERSEDED,
    ErrorCode.NEW_LEADER_ELECTED: Outcome.SUPERSEDED,
    ErrorCode.STALE_BROKER_EPOCH: Outcome.SUPERSEDED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Outcome.SUPERSEDED,
    ErrorCode.UNKNOWN_TOPIC_ID: Outcome.SUPERSEDED,
}


def outcome_of(error: int) -> Outcome:
    """Every error that is not listed (no controller, no connection, no time) leaves the outcome open."""
    return _OUTCOMES.get(error, Outcome.UNKNOWN)


class Isr:
    __slots__ = ("_has_open_attempt", "committed", "leader_epoch", "maximal", "partition_epoch", "pending")

    def __init__(self, leader_epoch: int, committed: tuple[int, ...], partition_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.committed = committed
        self.maximal = committed
        self.partition_epoch = partition_epoch
        self.pending: IsrChange | None = None
        self._has_open_attempt = False
        """An attempt of the pending change was not answered and may still be applied."""

    def propose(self, members: tuple[IsrMember, ...]) -> IsrChange:
        """Make the change pending and return it, to be sent to the controller."""
        assert self.pending is None, f"{self.pending} is pending already"
        change = IsrChange(self.leader_epoch, self.partition_epoch, members)
        self.pending = change
        self.maximal = (*self.committed, *(id_ for id_ in change.isr if id_ not in self.committed))
        return change

    def settle(
        self, change: IsrChange, outcome: Outcome, isr: tuple[int, ...] = (), partition_epoch: int = -1
    ) -> IsrChange | None:
        """Take the outcome of one attempt; returns a change to be sent after a pause, if there is one.

        `isr` and `partition_epoch` are what the controller has committed, if the outcome is APPLIED.
        """
        if change != self.pending:
            # A late answer to an attempt that we no longer wait for. What it says was committed still holds.
            if outcome is Outcome.APPLIED:
                self.take_over(isr, partition_epoch)
            return None
        if outcome is Outcome.APPLIED:
            self._commit(isr, partition_epoch)
        elif outcome is Outcome.UNKNOWN:
            self._has_open_attempt = True
            return change
        elif outcome is Outcome.NOT_APPLIED:
            if not self._has_open_attempt:
                self._commit(self.committed, self.partition_epoch)
            elif change.isr == self.committed:
                return change
            else:
                return self._withdraw(change)
        return None

    def take_over(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """Take what the controller says of the same leader epoch; False if it is not newer than what we have.

        A pending change was either applied before that state, or can be applied no more.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self._commit(isr, partition_epoch)
        return True

    def _withdraw(self, change: IsrChange) -> IsrChange:
        """Propose the committed ISR, so that the open attempt becomes stale; `maximal` stays as it is."""
        known = {member.broker_id: member for member in change.members}
        members = tuple(known.get(broker_id, IsrMember(broker_id, -1)) for broker_id in self.committed)
        self.pending = change._replace(members=members)
        return self.pending

    def _commit(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.committed = self.maximal = isr
        self.partition_epoch = max(partition_epoch, self.partition_epoch)
        self.pending = None
        self._has_open_attempt = False
