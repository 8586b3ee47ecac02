"""What fetchers know of a partition that is followed here."""

from __future__ import annotations

from typing import Protocol

from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.replication.follower import Action, FetchPosition
from klamm.replication.leader_session import Key


class FollowedPartition(Protocol):
    """What a fetcher does to a partition."""

    @property
    def key(self) -> Key: ...

    @property
    def writes_slowly(self) -> bool:
        """True if a thread is to write what is fetched, however little it is."""

    @property
    def is_throttled_follower(self) -> bool:
        """True if `pause_s` is to be asked after each answer."""

    def pause_s(self, data: PartitionData) -> float:
        """How long nothing is fetched after this answer, because replication is throttled."""

    def next_fetch(self) -> FetchPosition | None: ...

    def on_fetched(self, asked: FetchPosition, data: PartitionData) -> Action:
        """Decide what to do with an answer."""

    def write_fetched(self, action: Action, data: PartitionData) -> None:
        """Do it to the log; may run in a thread."""

    def settle_fetched(self, action: Action, data: PartitionData) -> None:
        """Take over the leader's high watermark and log start, once the log is written."""
