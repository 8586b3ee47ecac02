"""The leader of one partition in one leader epoch, without IO: events go in, proposals for the ISR come out.

The shell tells the leader of every append, every follower's fetch, every answer to AlterPartition and every
state that the controller sends. It reads `high_watermark` afterwards and completes what waited for it. A new
leader epoch is a new `Leader`; before its first append the shell records (leader epoch, log end offset) in
the log's epochs, or a later truncation finds the wrong offset.

Rules:
* The high watermark is the lowest log end offset in the maximal ISR (`isr.py`), never goes back, and stays
  where it is while fewer replicas than the effective minimum are in the committed ISR. A follower of which
  this leader knows nothing yet holds it. So a leader that was replaced without knowing acknowledges nothing
  that its followers did not fetch.
* The effective minimum is min.insync.replicas, or the number of replicas if that is less.
* A follower joins the ISR when its log end offset has reached the high watermark and the start of the leader
  epoch: below that start it may lack records that are committed but not yet known to be. The controller
  refuses a broker that is down, shuts down or has another broker epoch.
* A follower leaves the ISR when it was not caught up for `lag_time_max_ms`. A log end offset equal to the
  leader's counts as caught up, however long ago the follower fetched. Nobody lags at the start of an epoch.
* A member that comes back with a newer broker epoch has restarted: the controller removes it from the ISR.
  Until this leader hears of that, it takes no note of the member's fetches, as its acknowledgement would be
  worth nothing to the controller's next election.

Cost: an append to a partition that is alone in its ISR is an assignment. A partition whose in-sync followers
are caught up is in no list, and no timer looks at it (`LagWatch` in `progress.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Protocol

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.isr import Isr, IsrChange, IsrMember, Outcome
from klamm.replication.progress import FollowerProgress, LagWatch

REFUSED_JOIN_PAUSE_MS = 1_000
"""How long a leader waits before it proposes again what the controller refused: a broker that shuts down goes
on fetching, and each of its fetches would cost a request."""


class EpochLog(Protocol):
    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(largest epoch not above `epoch`, the offset where it ended); (-1, -1) if not known."""


def diverging_epoch(log: EpochLog, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
    """Where a follower's log parts from the leader's, as (epoch, end offset); None if it does not.

    A fetch with a diverging log must not reach `Leader.on_fetch`: its fetch offset acknowledges nothing.
    Raises OFFSET_OUT_OF_RANGE if the leader's log has no epochs to compare with.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.epoch_end_offset(last_fetched_epoch)
    if end_offset < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader's log does not reach epoch {last_fetched_epoch}"
        )
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    return None


class Leader:
    __slots__ = (
        "_counted",
        "_followers",
        "_is_alone",
        "_join_refused_ms",
        "_lag_watch",
        "_must_stamp",
        "_replica_count",
        "broker_epoch",
        "broker_id",
        "epoch_start_offset",
        "has_enough_replicas",
        "high_watermark",
        "is_watched",
        "isr",
        "lag_time_max_ms",
        "leader_epoch",
        "log_end_offset",
        "min_insync_replicas",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        lag_watch: LagWatch,
        *,
        broker_id: int,
        broker_epoch: int,
        leader_epoch: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        partition_epoch: int,
        log_end_offset: int,
        high_watermark: int,
        min_insync_replicas: int,
        lag_time_max_ms: int,
        now_ms: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = log_end_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = min(high_watermark, log_end_offset)
        self.min_insync_replicas = min_insync_replicas
        self.lag_time_max_ms = lag_time_max_ms
        self.isr = Isr(leader_epoch, isr, partition_epoch)
        self.has_enough_replicas = False
        """For acks=all: asked before the append. Without it the high watermark stays where it is, so that it
        need not be asked again when the high watermark has reached the end of the batch."""
        self.is_watched = False
        self._lag_watch = lag_watch
        self._must_stamp = False
        self._join_refused_ms: int | None = None
        self._followers: dict[int, FollowerProgress] = {}
        self._set_replicas(replicas, now_ms)
        self._on_isr()

    # ---- what handlers ask

    @property
    def may_answer_latest(self) -> bool:
        """False: ListOffsets latest answers OFFSET_NOT_AVAILABLE.

        A high watermark below the start of the epoch may be lower than what the leader before has told.
        """
        return self.high_watermark >= self.epoch_start_offset

    @property
    def followers(self) -> Collection[FollowerProgress]:
        """What is known of each follower, for reading only."""
        return self._followers.values()

    def low_watermark(self, log_start_offset: int, living: Container[int]) -> int:
        """The lowest log start offset of the replicas on `living` brokers, the leader's being
        `log_start_offset`."""
        alive = (each for each in self._followers.values() if each.broker_id in living)
        return min([log_start_offset, *(each.log_start_offset for each in alive)])

    # ---- events

    def on_append(self, log_end_offset: int) -> None:
        self.log_end_offset = log_end_offset
        if self._is_alone:
            self.high_watermark = log_end_offset
        elif not self.is_watched:
            # Followers that were caught up fall behind now. The next check gives them its time, as an
            # append does not know one.
            self._must_stamp = True
            self._watch()

    def on_fetch(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int, now_ms: int
    ) -> IsrChange | None:
        """A follower has everything before `fetch_offset`; returns a change for the controller, if any.

        Call it only for a fetch of this leader epoch that does not diverge. Raises NOT_LEADER_OR_FOLLOWER for
        a broker that has no replica, or an older broker epoch than before.
        """
        follower = self._followers.get(replica_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica_id} has no replica of {self.topic_partition}",
            )
        if broker_epoch != follower.broker_epoch:
            self._on_broker_epoch(follower, broker_epoch)
        if follower.has_restarted:
            return None
        follower.on_fetch(fetch_offset, log_start_offset, self.log_end_offset, now_ms)
        if follower.is_counted:
            if fetch_offset > self.high_watermark:
                self._raise_high_watermark()
            return None
        return self._propose_joins(now_ms) if self._may_join(follower) else None

    def check_lag(self, now_ms: int) -> IsrChange | None:
        """Called by `LagWatch`: propose an ISR without the followers that lag."""
        if self._must_stamp:
            self._must_stamp = False
            for follower in self._counted:
                if not follower.has_restarted:
                    follower.caught_up_ms = now_ms
            return None
        behind = [f for f in self._counted if f.has_restarted or f.log_end_offset < self.log_end_offset]
        if not behind and self._join_refused_ms is None:
            self.is_watched = False
            return None
        if self.isr.pending is not None:
            return None
        lagging = {f.broker_id for f in behind if now_ms - f.caught_up_ms > self.lag_time_max_ms}
        if lagging:
            return self._propose(tuple(id_ for id_ in self.isr.committed if id_ not in lagging))
        return self._propose_joins(now_ms)

    def on_alter_partition(
        self,
        change: IsrChange,
        outcome: Outcome,
        now_ms: int,
        isr: tuple[int, ...] = (),
        partition_epoch: int = -1,
    ) -> IsrChange | None:
        """Take the outcome of `change`; returns the change to be sent next.

        Send it at once if the outcome was APPLIED, else after a pause.
        """
        again = self.isr.settle(change, outcome, isr, partition_epoch)
        self._on_isr()
        if again is not None:
            return again
        if outcome is Outcome.NOT_APPLIED:
            self._join_refused_ms = now_ms
            self._watch()
            return None
        # A follower may have asked to join while the change was pending.
        return self._propose_joins(now_ms)

    def take_over(
        self, replicas: tuple[int, ...], isr: tuple[int, ...], partition_epoch: int, now_ms: int
    ) -> IsrChange | None:
        """Take a newer state of the same leader epoch from the controller; an older one changes nothing.

        The answer to AlterPartition, which has raised our partition epoch, may have ended a reassignment, and
        does not tell the replicas. So they are taken from a state of the same partition epoch too.
        """
        before = self.isr.committed
        if not self.isr.take_over(isr, partition_epoch) and partition_epoch < self.isr.partition_epoch:
            return None
        self._set_replicas(replicas, now_ms)
        for broker_id in before:
            if broker_id not in isr and broker_id in self._followers:
                # The controller removes brokers that have failed.
                self._followers[broker_id].forget()
        self._on_isr()
        return self._propose_joins(now_ms)

    def set_min_insync_replicas(self, count: int) -> None:
        self.min_insync_replicas = count
        self._on_isr()

    # ---- how

    def _set_replicas(self, replicas: tuple[int, ...], now_ms: int) -> None:
        self._replica_count = len(replicas)
        before = self._followers
        others = [id_ for id_ in dict.fromkeys((*replicas, *self.isr.committed)) if id_ != self.broker_id]
        self._followers = {id_: before.get(id_) or FollowerProgress(id_, now_ms) for id_ in others}

    def _on_isr(self) -> None:
        """Bring all that is derived from the ISR up to date."""
        isr = self.isr
        for follower in self._followers.values():
            follower.is_counted = follower.broker_id in isr.maximal
            if follower.has_restarted and not follower.is_counted:
                follower.forget()
        self._counted = tuple(f for f in self._followers.values() if f.is_counted)
        self.has_enough_replicas = len(isr.committed) >= min(self.min_insync_replicas, self._replica_count)
        self._is_alone = not self._counted and self.has_enough_replicas
        if self._counted:
            # Who joins may fall behind without a word, and so may who is in the ISR when the epoch starts.
            self._watch()
        self._raise_high_watermark()

    def _raise_high_watermark(self) -> None:
        if not self.has_enough_replicas:
            return
        lowest = self.log_end_offset
        for follower in self._counted:
            if follower.log_end_offset < lowest:
                lowest = follower.log_end_offset
        if lowest > self.high_watermark:
            self.high_watermark = lowest

    def _watch(self) -> None:
        if not self.is_watched:
            self.is_watched = True
            self._lag_watch.add(self)

    def _on_broker_epoch(self, follower: FollowerProgress, broker_epoch: int) -> None:
        if broker_epoch < follower.broker_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {follower.broker_id} fetched {self.topic_partition} with the broker epoch "
                f"{broker_epoch}; its broker epoch is {follower.broker_epoch}",
            )
        if follower.broker_epoch >= 0 and follower.is_counted:
            follower.has_restarted = True
            self._watch()
        follower.broker_epoch = broker_epoch

    def _may_join(self, follower: FollowerProgress) -> bool:
        end_offset = follower.log_end_offset
        return end_offset >= self.high_watermark and end_offset >= self.epoch_start_offset

    def _propose_joins(self, now_ms: int) -> IsrChange | None:
        if self.isr.pending is not None:
            return None
        if self._join_refused_ms is not None:
            if now_ms - self._join_refused_ms < REFUSED_JOIN_PAUSE_MS:
                return None
            self._join_refused_ms = None
        joining = [f for f in self._followers.values() if not f.is_counted and self._may_join(f)]
        if not joining:
            return None
        for follower in joining:
            # The high watermark is reached, if not the log end: the time to lag starts now.
            follower.caught_up_ms = now_ms
        return self._propose((*self.isr.committed, *(follower.broker_id for follower in joining)))

    def _propose(self, isr: tuple[int, ...]) -> IsrChange:
        change = self.isr.propose(tuple(IsrMember(id_, self._broker_epoch_of(id_)) for id_ in isr))
        self._on_isr()
        return change

    def _broker_epoch_of(self, broker_id: int) -> int:
        return self.broker_epoch if broker_id == self.broker_id else self._followers[broker_id].broker_epoch
