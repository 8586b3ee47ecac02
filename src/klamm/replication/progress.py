"""What a leader knows of its followers, and which leaders of a broker must look after them; without IO.

An idle partition is in no list: of 4,000 partitions whose followers are caught up, the timer sees none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.replication.isr import IsrChange

if TYPE_CHECKING:
    from klamm.replication.leader import Leader


class FollowerProgress:
    """What the leader knows of one follower."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "fetched_ms",
        "has_restarted",
        "is_counted",
        "leader_end_offset",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, now_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.log_end_offset = -1
        """The offset of its latest fetch; -1 before the first."""
        self.log_start_offset = -1
        self.caught_up_ms = now_ms
        self.fetched_ms = now_ms
        self.leader_end_offset = -1
        """The leader's log end offset at the latest fetch."""
        self.is_counted = False
        """Is in the maximal ISR."""
        self.has_restarted = False
        """Restarted while it was in the ISR."""

    def on_fetch(self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif fetch_offset >= self.leader_end_offset >= 0 and self.fetched_ms > self.caught_up_ms:
            # On a busy partition the leader's log end moves on during each fetch. Who reaches where it was at
            # the fetch before was caught up then.
            self.caught_up_ms = self.fetched_ms
        self.fetched_ms = now_ms
        self.leader_end_offset = leader_end_offset
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset

    def forget(self) -> None:
        """What it had may be gone: only another fetch tells what it has."""
        self.log_end_offset = -1
        self.has_restarted = False


class LagWatch:
    """The leaders on one broker whose followers must be looked at; one timer of the broker calls `check`.

    A good period is half of replica.lag.time.max.ms. A leader adds itself when a follower in its ISR falls
    behind.
    """

    def __init__(self) -> None:
        # A dict and not a set: the order of the proposals must not depend on addresses in memory.
        self._leaders: dict[Leader, None] = {}

    def __len__(self) -> int:
        return len(self._leaders)

    def add(self, leader: Leader) -> None:
        self._leaders[leader] = None

    def discard(self, leader: Leader) -> None:
        """Call it when the leader's epoch has ended."""
        self._leaders.pop(leader, None)

    def check(self, now_ms: int) -> list[tuple[Leader, IsrChange]]:
        """The changes that are to be sent to the controller now."""
        changes = []
        for leader in tuple(self._leaders):
            change = leader.check_lag(now_ms)
            if change is not None:
                changes.append((leader, change))
            if not leader.is_watched:
                del self._leaders[leader]
        return changes
