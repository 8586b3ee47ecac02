"""A fetch session from the consumer's side (KIP-227): a request names only what changed since the last one.

A core. A session belongs to one broker. The first request is a full one and asks for a session; later ones
are incremental: new and changed partitions, and those to forget. Whenever anything goes wrong (the broker
lost the session, an answer did not come, topics are named by id and no longer by name) the next request is
a full one again, so both sides never disagree for longer than one request. A broker may decline: session id
0 means that every request is a full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from klamm.model.errors import ErrorCode

PartitionKey: TypeAlias = tuple[str | bytes, int]
"""(topic name or topic id, whichever the session uses; partition)."""

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1


class Asked(NamedTuple):
    """What a request asks of one partition."""

    fetch_offset: int
    leader_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """What goes into the next request."""

    session_id: int
    epoch: int
    changed: Mapping[PartitionKey, Asked]
    forgotten: list[PartitionKey]


class FetchSession:
    """Our half of a session with one broker. One request is under way at a time."""

    __slots__ = ("_asked", "_epoch", "_uses_topic_ids", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._asked: dict[PartitionKey, Asked] = {}
        """What the broker remembers, if it has a session with us."""
        self._uses_topic_ids = False

    @property
    def is_incremental(self) -> bool:
        """Whether the next request may name changes only."""
        return self._epoch != INITIAL_EPOCH

    def request(self, wanted: Mapping[PartitionKey, Asked], uses_topic_ids: bool) -> SessionRequest:
        """The next request, when exactly `wanted` is to be fetched."""
        if uses_topic_ids != self._uses_topic_ids:
            self._begin_again(self.session_id)
            self._uses_topic_ids = uses_topic_ids
        before = self._asked
        self._asked = dict(wanted)
        if not self.is_incremental:
            return SessionRequest(self.session_id, INITIAL_EPOCH, wanted, [])
        changed = {key: asked for key, asked in wanted.items() if before.get(key) != asked}
        forgotten = [key for key in before if key not in wanted]
        return SessionRequest(self.session_id, self._epoch, changed, forgotten)

    def answered(self, error_code: int, session_id: int) -> bool:
        """An answer came: whether its partitions count."""
        if error_code != ErrorCode.NONE:
            # A broker that does not know the session has nothing to close.
            is_gone = error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_again(NO_SESSION if is_gone else self.session_id)
            return False
        if session_id == NO_SESSION or (self.is_incremental and session_id != self.session_id):
            self._begin_again(NO_SESSION)
            return True
        self.session_id = session_id
        self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True

    def failed(self) -> None:
        """No answer came, or none that can be read."""
        self._begin_again(self.session_id)

    def _begin_again(self, session_id: int) -> None:
        """The next request is a full one, in place of the session `session_id`."""
        self.session_id = session_id
        self._epoch = INITIAL_EPOCH
        self._asked = {}
