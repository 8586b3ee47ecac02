"""The follower of one partition in one leader epoch, without IO: what to fetch, what to do with the answer.

    Fetching ──records──────────► append them, go on
    Fetching ──diverging epoch──► truncate, ask again
    Fetching ──out of range─────► start at the leader's log start, go on
    Fetching ──not leader───────► retry later
    Fetching ──fenced───────────► Waiting: only a newer leader epoch, which is a new `Follower`, ends it

Rules:
* A fetch carries the follower's log end offset, log start offset, the leader epoch it was told, and the last
  epoch in its log. The leader compares log end and last epoch with its own log before it sends records.
* The follower truncates where the epochs of both logs part, never to its high watermark: a record above the
  high watermark may be committed already. The leader answers (epoch, end offset): its largest epoch that is
  not above ours. Ours up to that epoch may have ended earlier, or in a smaller epoch, and the smaller end
  counts. The next fetch asks again with what is left, until both agree.
* Truncating to the log end offset is not nothing: it removes an epoch that has no records, as a leader leaves
  that was elected and replaced before it appended.
* The high watermark is the leader's, or the own log end offset if that is less. The log start follows the
  leader's.

The shell does what an action says to the log, tells the follower (`on_appended`, `on_truncated`), and asks
`next_fetch` again. An answer to an older fetch, sent before the log was changed, is dropped by its fetch
offset.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol

from klamm.model.errors import ErrorCode


class FollowedLog(Protocol):
    """What a follower sees of its log."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch in the log, -1 if there is none."""

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(largest epoch not above `epoch`, the offset where it ended); (-1, -1) if not known."""


class FetchPosition(NamedTuple):
    """The fields of a partition in a follower's Fetch request."""

    fetch_offset: int
    last_fetched_epoch: int
    current_leader_epoch: int
    log_start_offset: int


class Do(Enum):
    APPEND = auto()
    """Append the records as they are, if there are any, and call `on_appended`."""
    TRUNCATE = auto()
    """Cut the log back to `offset`, forget epochs that start there or later, and call `on_truncated`."""
    START_AT = auto()
    """Drop the whole log and begin at `offset`; then call `on_truncated`."""
    RETRY_LATER = auto()
    """Leave the partition out of fetches for a pause."""
    WAIT_FOR_EPOCH = auto()
    """Leave the partition out of fetches until the controller tells of a newer leader epoch."""
    DROP = auto()
    """The answer is to an older fetch: do nothing with it."""


class Action(NamedTuple):
    do: Do
    offset: int = -1


_APPEND = Action(Do.APPEND)
_RETRY_LATER = Action(Do.RETRY_LATER)
_WAIT_FOR_EPOCH = Action(Do.WAIT_FOR_EPOCH)
_DROP = Action(Do.DROP)


class Follower:
    __slots__ = ("high_watermark", "is_waiting", "leader_epoch", "leader_id", "log")

    def __init__(self, log: FollowedLog, *, leader_id: int, leader_epoch: int, high_watermark: int) -> None:
        self.log = log
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, log.log_end_offset)
        self.is_waiting = False
        """The leader has a newer epoch than the one we were told."""

    def next_fetch(self) -> FetchPosition | None:
        """None if nothing is to be fetched in this leader epoch any more."""
        if self.is_waiting:
            return None
        log = self.log
        return FetchPosition(log.log_end_offset, log.latest_epoch, self.leader_epoch, log.log_start_offset)

    def on_answer(
        self,
        fetch_offset: int,
        error: int,
        *,
        diverging_epoch: int = -1,
        diverging_end_offset: int = -1,
        leader_log_start_offset: int = -1,
    ) -> Action:
        """What to do with the answer to the fetch at `fetch_offset`.

        With OFFSET_OUT_OF_RANGE, `leader_log_start_offset` is needed: from the answer, or asked for after it.
        """
        if fetch_offset != self.log.log_end_offset or self.is_waiting:
            return _DROP
        if error == ErrorCode.NONE:
            if diverging_end_offset >= 0:
                return Action(Do.TRUNCATE, self._common_end(diverging_epoch, diverging_end_offset))
            return _APPEND
        if error == ErrorCode.OFFSET_OUT_OF_RANGE and leader_log_start_offset >= 0:
            is_empty = self.log.log_start_offset == fetch_offset
            # Never dropped: a log with records that ends where the leader's log still has some.
            if leader_log_start_offset > fetch_offset or is_empty:
                return Action(Do.START_AT, leader_log_start_offset)
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self.is_waiting = True
            return _WAIT_FOR_EPOCH
        # NOT_LEADER_OR_FOLLOWER and UNKNOWN_LEADER_EPOCH: the leader has not heard of its epoch yet. A
        # storage error or any other: the leader has no better answer now.
        return _RETRY_LATER

    def on_appended(self, leader_high_watermark: int, leader_log_start_offset: int) -> int | None:
        """The records of an answer are in the log; returns the new log start offset, if that rises."""
        log = self.log
        log_end_offset = log.log_end_offset
        high_watermark = min(leader_high_watermark, log_end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
        if leader_log_start_offset > log.log_start_offset:
            return min(leader_log_start_offset, log_end_offset)
        return None

    def on_truncated(self) -> None:
        log = self.log
        self.high_watermark = max(min(self.high_watermark, log.log_end_offset), log.log_start_offset)

    def _common_end(self, leader_epoch: int, leader_end_offset: int) -> int:
        own_end_offset = self.log.epoch_end_offset(leader_epoch)[1]
        log_end_offset = self.log.log_end_offset
        ends = [leader_end_offset, log_end_offset]
        if own_end_offset >= 0:
            ends.append(own_end_offset)
        return max(min(ends), self.log.log_start_offset)
