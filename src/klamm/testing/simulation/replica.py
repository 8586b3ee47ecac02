"""A simulated replica: the real cores of leader, follower and ISR around a log in memory.

It does what the shell of a real partition does with the cores. `leader_class` and `follower_class` may be
replaced by ones that break a rule, to see that the checks notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.follower import Do, FetchPosition, Follower
from klamm.replication.isr import IsrChange
from klamm.replication.leader import Leader, diverging_epoch
from klamm.replication.progress import LagWatch
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.controller import PartitionState
from klamm.testing.simulation.disk import Record, SimulatedFile, SimulatedLog

LAG_TIME_MAX_MS = 10_000
MIN_INSYNC_REPLICAS = 2
_MAX_FETCHED = 4
"""Few, so that a follower that was away takes some time to catch up."""


class FetchAnswer(NamedTuple):
    error: ErrorCode
    records: tuple[Record, ...] = ()
    high_watermark: int = -1
    diverging: tuple[int, int] = (-1, -1)


class ParkedProduce(NamedTuple):
    end_offset: int
    answer: Callable[[Any], None]


class Replica:
    leader_class: type[Leader] = Leader
    follower_class: type[Follower] = Follower

    def __init__(
        self, index: int, broker_id: int, file: SimulatedFile, ledger: Ledger, lag_watch: LagWatch
    ) -> None:
        self.index = index
        self.broker_id = broker_id
        self.log = SimulatedLog(file)
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leader_id = -1
        self.leader_epoch = -1
        self._ledger = ledger
        self._lag_watch = lag_watch
        self._parked: list[ParkedProduce] = []

    # ---- what the controller says

    def take_over(self, state: PartitionState, broker_epoch: int, now_ms: int) -> IsrChange | None:
        isr = tuple(state.isr)
        if state.leader_epoch < self.leader_epoch:
            return None
        if state.leader_epoch == self.leader_epoch:
            if self.leader is not None:
                change = self.leader.take_over(state.replicas, isr, state.partition_epoch, now_ms)
                self._on_progress()
                return change
            return None
        self._ledger.on_epoch(self.index, self.broker_id, self.leader_epoch, state.leader_epoch)
        self.resign()
        self.leader_epoch = state.leader_epoch
        self.leader_id = state.leader
        if state.leader == self.broker_id:
            self._lead(state, isr, broker_epoch, now_ms)
        elif self.broker_id in state.replicas and state.leader >= 0:
            self.follower = self.follower_class(
                self.log,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                high_watermark=self.log.high_watermark,
            )
        return None

    def _lead(self, state: PartitionState, isr: tuple[int, ...], broker_epoch: int, now_ms: int) -> None:
        self._ledger.note(
            f"broker {self.broker_id} leads {self.index} in epoch {state.leader_epoch}, ISR {isr}"
        )
        self._ledger.on_leader(self.index, state.leader_epoch, self.broker_id, self.log)
        self.log.assign_epoch(state.leader_epoch)
        self.leader = self.leader_class(
            TopicPartition("simulated", self.index),
            self._lag_watch,
            broker_id=self.broker_id,
            broker_epoch=broker_epoch,
            leader_epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=isr,
            partition_epoch=state.partition_epoch,
            log_end_offset=self.log.log_end_offset,
            high_watermark=self.log.high_watermark,
            min_insync_replicas=MIN_INSYNC_REPLICAS,
            lag_time_max_ms=LAG_TIME_MAX_MS,
            now_ms=now_ms,
        )
        self._on_progress()

    def resign(self) -> None:
        if self.leader is not None:
            self._lag_watch.discard(self.leader)
        self.leader = None
        self.follower = None
        parked, self._parked = self._parked, []
        for produce in parked:
            produce.answer(self.not_leader())

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
            offset = self.log.append(Record(leader.leader_epoch, producer_id, sequence))
            leader.on_append(offset + 1)
        if acks_all:
            self._parked.append(ParkedProduce(offset + 1, answer))
        else:
            answer((ErrorCode.NONE, offset, leader.leader_epoch))
        self._on_progress()
        return has_grown

    def check_epoch(self, epoch: int) -> ErrorCode:
        if self.leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > self.leader_epoch else ErrorCode.NONE

    def on_fetch(
        self, replica_id: int, broker_epoch: int, position: FetchPosition, now_ms: int
    ) -> tuple[FetchAnswer, IsrChange | None]:
        """A follower's fetch; the answer without an error and without records may wait."""
        error = self.check_epoch(position.current_leader_epoch)
        if error is not ErrorCode.NONE or self.leader is None:
            return FetchAnswer(error), None
        try:
            diverging = diverging_epoch(self.log, position.fetch_offset, position.last_fetched_epoch)
            if diverging is not None:
                return FetchAnswer(ErrorCode.NONE, diverging=diverging), None
            if position.fetch_offset > self.log.log_end_offset:
                return FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE), None
            change = self.leader.on_fetch(replica_id, broker_epoch, position.fetch_offset, 0, now_ms)
        except KafkaError as error_:
            return FetchAnswer(error_.code), None
        self._on_progress()
        return self.records_for(position), change

    def records_for(self, position: FetchPosition) -> FetchAnswer:
        error = self.check_epoch(position.current_leader_epoch)
        if error is not ErrorCode.NONE or self.leader is None:
            return FetchAnswer(error)
        start = position.fetch_offset
        records = tuple(self.log.records[start : start + _MAX_FETCHED])
        return FetchAnswer(ErrorCode.NONE, records, self.leader.high_watermark)

    def read_committed(self, offset: int, leader_epoch: int) -> tuple[ErrorCode, list[Record], int, int]:
        """(error, records, latest offset or -1, leader epoch) for a consumer that knows `leader_epoch`."""
        leader = self.leader
        if leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, [], self.leader_id, self.leader_epoch
        if leader_epoch > self.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, [], -1, self.leader_epoch
        end = min(leader.high_watermark, offset + _MAX_FETCHED)
        latest = leader.high_watermark if leader.may_answer_latest else -1
        return ErrorCode.NONE, self.log.records[offset:end], latest, self.leader_epoch

    def after_isr_change(self) -> None:
        self._on_progress()

    def _on_progress(self) -> None:
        leader = self.leader
        if leader is None or leader.high_watermark <= self.log.high_watermark:
            if leader is None or not self._parked or self._parked[0].end_offset > leader.high_watermark:
                return
        else:
            self._ledger.on_leader_high_watermark(self.index, leader, self.log)
            self.log.high_watermark = leader.high_watermark
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
