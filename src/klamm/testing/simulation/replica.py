"""A simulated replica: the real cores of leader, follower and ISR around a log in memory.

It does what the shell of a real partition does with the cores. `leader_class` and `follower_class` may be
replaced by ones that break a rule, to see that the checks notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from klamm.cluster.image import NO_LEADER, PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.follower import Do, FetchPosition, Follower
from klamm.replication.isr import IsrChange, Outcome
from klamm.replication.leader import Leader, diverging_epoch
from klamm.replication.progress import LagWatch
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.disk import SimulatedBatch, SimulatedFile, SimulatedLog
from klamm.testing.simulation.topics import MIN_INSYNC_REPLICAS, PLACES, TOPIC_IDS

LAG_TIME_MAX_MS = 10_000
_MAX_FETCHED = 4
"""Few, so that a follower that was away takes some time to catch up."""


class FetchAnswer(NamedTuple):
    error: ErrorCode
    records: tuple[SimulatedBatch, ...] = ()
    high_watermark: int = -1
    diverging: tuple[int, int] = (-1, -1)


class ParkedProduce(NamedTuple):
    end_offset: int
    answer: Callable[[Any], None]


class Replica:
    leader_class: type[Leader] = Leader
    follower_class: type[Follower] = Follower

    def __init__(
        self,
        index: int,
        broker_id: int,
        file: SimulatedFile,
        ledger: Ledger,
        lag_watch: LagWatch,
        propose: Callable[[Replica, IsrChange], None],
    ) -> None:
        """`index` is the place of the partition in `PLACES`."""
        self.index = index
        self.place: TopicPartition = PLACES[index]
        self.broker_id = broker_id
        self.log = SimulatedLog(file)
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self._partition_epoch = -1
        self._has_resigned = False
        self._ledger = ledger
        self._lag_watch = lag_watch
        self._propose = propose
        self._parked: list[ParkedProduce] = []
        self._watchers: list[asyncio.Future[None]] = []

    @property
    def key(self) -> tuple[bytes, int]:
        return TOPIC_IDS[self.place.topic], self.place.partition

    # ---- what the controller says

    def take_over(self, state: PartitionImage, broker_epoch: int, now_ms: int) -> bool:
        """As `replication/partition.py` does; True if the role has changed."""
        told = (state.leader_epoch, state.partition_epoch)
        known = (self.leader_epoch, self._partition_epoch)
        if told < known or (told == known and not self._has_resigned):
            return False
        has_new_role = state.leader_epoch > self.leader_epoch or self._has_resigned
        self._partition_epoch = state.partition_epoch
        if not has_new_role:
            if self.leader is not None:
                change = self.leader.take_over(state.replicas, state.isr, state.partition_epoch, now_ms)
                self._after(change)
            return False
        self._ledger.on_epoch(self.index, self.broker_id, self.leader_epoch, state.leader_epoch)
        self._end_role()
        self._has_resigned = False
        self.leader_epoch = state.leader_epoch
        self.leader_id = state.leader
        if state.leader == self.broker_id:
            self._lead(state, broker_epoch, now_ms)
        elif state.leader != NO_LEADER:
            self.follower = self.follower_class(
                self.log,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                high_watermark=self.log.high_watermark,
            )
        if self.leader is None:
            self._refuse_parked()
        self._wake_watchers()
        self._on_progress()
        return True

    def _lead(self, state: PartitionImage, broker_epoch: int, now_ms: int) -> None:
        self._ledger.note(
            f"broker {self.broker_id} leads {self.index} in epoch {state.leader_epoch}, ISR {state.isr}"
        )
        self._ledger.on_leader(self.index, state.leader_epoch, self.broker_id, self.log)
        self.log.assign_epoch(state.leader_epoch)
        self.leader = self.leader_class(
            self.place,
            self._lag_watch,
            broker_id=self.broker_id,
            broker_epoch=broker_epoch,
            leader_epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            log_end_offset=self.log.log_end_offset,
            high_watermark=self.log.high_watermark,
            min_insync_replicas=MIN_INSYNC_REPLICAS,
            lag_time_max_ms=LAG_TIME_MAX_MS,
            now_ms=now_ms,
        )

    def resign(self) -> None:
        """Lead and follow no longer, until the controller says what to do."""
        self._end_role()
        self._has_resigned = True
        self._refuse_parked()
        self._wake_watchers()

    def _end_role(self) -> None:
        if self.leader is not None:
            self._lag_watch.discard(self.leader)
        self.leader = None
        self.follower = None

    def _refuse_parked(self) -> None:
        parked, self._parked = self._parked, []
        for produce in parked:
            produce.answer(self.not_leader())

    def on_isr_outcome(
        self, change: IsrChange, outcome: Outcome, isr: tuple[int, ...], partition_epoch: int
    ) -> IsrChange | None:
        """The controller has answered, or has not; returns the change to send next."""
        leader = self.leader
        if leader is None or leader.leader_epoch != change.leader_epoch:
            return None
        self._ledger.note(f"broker {self.broker_id}: ISR {change.isr} of {self.index} is {outcome.name}")
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        following = leader.on_alter_partition(change, outcome, now_ms, isr, partition_epoch)
        self._partition_epoch = max(self._partition_epoch, leader.isr.partition_epoch)
        self._on_progress()
        return following

    def _after(self, change: IsrChange | None) -> None:
        self._on_progress()
        if change is not None:
            self._propose(self, change)

    # ---- for the group coordinator

    def changed(self) -> asyncio.Future[None]:
        """Done when the high watermark or the role changes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(future)
        return future

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    def not_leader(self) -> tuple[ErrorCode, int, int]:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, self.leader_id, self.leader_epoch

    # ---- as leader

    def produce(
        self,
        producer_id: int,
        sequence: int,
        is_idempotent: bool,
        acks_all: bool,
        answer: Callable[[Any], None],
    ) -> bool:
        """Answers (error, offset, leader epoch), now or later; True if the log has grown."""
        leader = self.leader
        if leader is None:
            answer(self.not_leader())
            return False
        if acks_all and not leader.has_enough_replicas:
            answer((ErrorCode.NOT_ENOUGH_REPLICAS, -1, -1))
            return False
        last_sequence, offset = self.log.last_of_producer(producer_id) if is_idempotent else (-1, -1)
        has_grown = not is_idempotent or sequence > last_sequence
        if has_grown:
            if is_idempotent and sequence != last_sequence + 1:
                answer((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1))
                return False
            offset = self.log.append(SimulatedBatch(leader.leader_epoch, producer_id, sequence))
            leader.on_append(offset + 1)
        if acks_all:
            self._parked.append(ParkedProduce(offset + 1, answer))
        else:
            answer((ErrorCode.NONE, offset, leader.leader_epoch))
        self._on_progress()
        return has_grown

    def append_group_records(self, records: tuple[tuple[bytes, bytes | None], ...]) -> int:
        """Returns the end offset of the batch; raises a KafkaError if nothing was appended."""
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.place} is not led here")
        if not leader.has_enough_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.place} has too few replicas in sync")
        sequence = self.log.log_end_offset
        end_offset = (
            self.log.append(SimulatedBatch(leader.leader_epoch, self.broker_id, sequence, records)) + 1
        )
        leader.on_append(end_offset)
        self._on_progress()
        return end_offset

    def check_epoch(self, epoch: int) -> ErrorCode:
        if self.leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > self.leader_epoch else ErrorCode.NONE

    def on_fetch(
        self, replica_id: int, broker_epoch: int, position: FetchPosition, now_ms: int
    ) -> FetchAnswer:
        """A follower's fetch; the answer without an error and without records may wait."""
        error = self.check_epoch(position.current_leader_epoch)
        if error is not ErrorCode.NONE or self.leader is None:
            return FetchAnswer(error)
        try:
            diverging = diverging_epoch(self.log, position.fetch_offset, position.last_fetched_epoch)
            if diverging is not None:
                return FetchAnswer(ErrorCode.NONE, diverging=diverging)
            if position.fetch_offset > self.log.log_end_offset:
                return FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE)
            change = self.leader.on_fetch(replica_id, broker_epoch, position.fetch_offset, 0, now_ms)
        except KafkaError as error_:
            return FetchAnswer(error_.code)
        self._after(change)
        return self.records_for(position)

    def records_for(self, position: FetchPosition) -> FetchAnswer:
        error = self.check_epoch(position.current_leader_epoch)
        if error is not ErrorCode.NONE or self.leader is None:
            return FetchAnswer(error)
        start = position.fetch_offset
        records = tuple(self.log.records[start : start + _MAX_FETCHED])
        return FetchAnswer(ErrorCode.NONE, records, self.leader.high_watermark)

    def read_committed(
        self, offset: int, leader_epoch: int
    ) -> tuple[ErrorCode, list[SimulatedBatch], int, int]:
        """(error, records, latest offset or -1, leader epoch) for a consumer that knows `leader_epoch`."""
        leader = self.leader
        if leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, [], self.leader_id, self.leader_epoch
        if leader_epoch > self.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, [], -1, self.leader_epoch
        end = min(leader.high_watermark, offset + _MAX_FETCHED)
        latest = leader.high_watermark if leader.may_answer_latest else -1
        return ErrorCode.NONE, self.log.records[offset:end], latest, self.leader_epoch

    def _on_progress(self) -> None:
        leader = self.leader
        if leader is None or leader.high_watermark <= self.log.high_watermark:
            if leader is None or not self._parked or self._parked[0].end_offset > leader.high_watermark:
                return
        else:
            self._ledger.on_leader_high_watermark(self.index, leader, self.log)
            self.log.high_watermark = leader.high_watermark
            self._wake_watchers()
        done = [one for one in self._parked if one.end_offset <= leader.high_watermark]
        if not done:
            return
        self._parked = [one for one in self._parked if one.end_offset > leader.high_watermark]
        error = ErrorCode.NONE
        if not leader.has_enough_replicas:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        for produce in done:
            produce.answer((error, produce.end_offset - 1, leader.leader_epoch))

    # ---- as follower

    def on_fetch_answer(self, position: FetchPosition, answer: FetchAnswer) -> bool:
        """False if the partition is better left out of fetches for a pause."""
        follower = self.follower
        if follower is None or follower.leader_epoch != position.current_leader_epoch:
            return True
        epoch, end_offset = answer.diverging
        action = follower.on_answer(
            position.fetch_offset,
            answer.error,
            diverging_epoch=epoch,
            diverging_end_offset=end_offset,
            leader_log_start_offset=0,
        )
        if action.do is Do.APPEND:
            for record in answer.records:
                self.log.append(record)
            follower.on_appended(answer.high_watermark, 0)
            self._ledger.on_replica(
                self.index, self.broker_id, self.log, self.log.high_watermark, follower.high_watermark
            )
        elif action.do in (Do.TRUNCATE, Do.START_AT):
            self._ledger.note(
                f"broker {self.broker_id} truncates {self.index} from {self.log.log_end_offset} "
                f"to {action.offset}"
            )
            self.log.truncate_to(action.offset)
            follower.on_truncated()
        self.log.high_watermark = follower.high_watermark
        return action.do not in (Do.RETRY_LATER, Do.WAIT_FOR_EPOCH)
