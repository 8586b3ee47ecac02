"""The follower's side of a fetch session (KIP-227) with one leader: what the next request must name.

The leader remembers the session's partitions and their positions, so a request names only those that changed
since the last one: partitions that are new, that made progress, or that are forgotten. Nothing here goes over
all partitions, except for the first request of a session. A core.

Several requests may be under way, whose answers come in order. What the answer to a request says of a
partition is ignored if a later request has named that partition: its position is another by now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from klamm.model.errors import ErrorCode
from klamm.replication.follower import FetchPosition

NO_SESSION = 0
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1

Key = tuple[bytes, int]
"""(topic id, partition)"""


class Followed(Protocol):
    """A partition that is fetched."""

    def next_fetch(self) -> FetchPosition | None:
        """None if nothing is to be fetched in this leader epoch any more."""


class NextRequest(NamedTuple):
    number: int
    """Rises from request to request."""
    session_id: int
    epoch: int
    positions: dict[Key, FetchPosition]
    forgotten: list[Key]


class LeaderSession:
    __slots__ = ("_changed", "_epoch", "_forgotten", "_number", "_partitions", "_session_id", "_told")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        """Of the next request."""
        self._number = 0
        self._partitions: dict[Key, Followed] = {}
        # Dicts and not sets: requests name partitions in the order in which they changed.
        self._changed: dict[Key, None] = {}
        self._forgotten: dict[Key, None] = {}
        self._told: dict[Key, tuple[int, FetchPosition]] = {}
        """The positions that the leader remembers, each with the number of the request that named it."""

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def may_ask_ahead(self) -> bool:
        """True if a request may follow another one that is not answered: the leader knows the session."""
        return self._session_id != NO_SESSION

    def position(self, key: Key, asked: NextRequest) -> FetchPosition | None:
        """The position of a partition in the answer to `asked`; None if the answer does not count for it."""
        number, position = self._told.get(key, (0, None))
        return position if number <= asked.number else None

    def add(self, key: Key, partition: Followed) -> None:
        self._partitions[key] = partition
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def remove(self, key: Key) -> None:
        if self._partitions.pop(key, None) is not None:
            self._changed.pop(key, None)
            if self._told.pop(key, None) is not None:
                self._forgotten[key] = None

    def touch(self, keys: Iterable[Key]) -> None:
        """The positions of these partitions have changed."""
        for key in keys:
            if key in self._partitions:
                self._changed[key] = None

    def next_request(self) -> NextRequest:
        """What to ask for now. While a request is under way, only if one `may_ask_ahead`."""
        names = self._partitions if self._epoch == INITIAL_EPOCH else self._changed
        positions: dict[Key, FetchPosition] = {}
        for key in tuple(names):
            position = self._partitions[key].next_fetch()
            if position is None:
                self.remove(key)
            else:
                positions[key] = position
        forgotten = [] if self._epoch == INITIAL_EPOCH else list(self._forgotten)
        self._changed.clear()
        self._forgotten.clear()
        self._number += 1
        for key, position in positions.items():
            self._told[key] = (self._number, position)
        epoch = self._epoch
        if epoch != INITIAL_EPOCH:
            self._epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        return NextRequest(self._number, self._session_id, epoch, positions, forgotten)

    def on_answer(self, asked: NextRequest, error_code: int, session_id: int) -> bool:
        """True if the partitions of the answer count. If not, the next request begins a new session."""
        if asked.session_id != self._session_id:
            return False  # of a session that was given up before this answer came
        if error_code != ErrorCode.NONE:
            self.on_failure()
            return False
        if session_id == NO_SESSION:
            self.on_failure()
            return True
        if asked.epoch == INITIAL_EPOCH:
            self._session_id = session_id
            self._epoch = INITIAL_EPOCH + 1
        return True

    def on_failure(self) -> None:
        """The request or its answer was lost, so nobody knows what the leader remembers: begin anew."""
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._forgotten.clear()
