"""A partition as the API handlers see it: its log, and this broker's role in it.

The role is decided by cores without IO: `leader.py` with `isr.py`, or `follower.py`. A partition without a
role has no leader now, or has not been told yet. What handlers and fetchers do goes through here: this class
tells the core, and does what the core decides: it raises the high watermark, acknowledges the produces that
wait for it, wakes those who fetch, and has changes of the ISR sent to the controller.

Those who watch a partition are told of the next progress once, and watch again when they have looked at it:
so many appends in one iteration of the loop wake them once.

Invariants: `high_watermark <= log.log_end_offset`; the high watermark goes back only when a follower's log is
cut below it; `leader_epoch` never goes back; consumers are given nothing at or above the high watermark.
"""

from __future__ import annotations

from typing import Protocol

from klamm.cluster.image import NO_LEADER, PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.records.batch import BatchHeader, CorruptBatch
from klamm.replication.closest_replica import NO_PREFERENCE, ReplicaProgress, closest_replica
from klamm.replication.context import ReplicationContext
from klamm.replication.follower import Action, Do, FetchPosition, Follower
from klamm.replication.isr import IsrChange, Outcome
from klamm.replication.leader import Leader
from klamm.replication.refused_batches import RefusedBatches
from klamm.replication.waiting_produces import ProduceQueue
from klamm.storage.log import AppendResult, FileSlice, Log

NO_EPOCH = -1
"""The leader epoch of a partition that has not been told its state yet."""


class Watcher(Protocol):
    """Is told once when a partition has more to read, or is gone. To be told again it watches again."""

    def on_progress(self, byte_count: int) -> None:
        """What may be read grew by batches of `byte_count` bytes; 0 when the partition itself changed."""

    def on_high_watermark(self) -> None:
        """The high watermark rose; told to those who watch the log end, each time."""


class Partition:
    __slots__ = (
        "__weakref__",
        "_context",
        "_has_resigned",
        "_log_end_watchers",
        "_min_insync_replicas",
        "_refused_batches",
        "_uncommitted_bytes",
        "_watchers",
        "counters",
        "cut_count",
        "follower",
        "high_watermark",
        "index",
        "is_offline",
        "is_throttled_follower",
        "is_throttled_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leader_id",
        "log",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
        "waiting_deletions",
        "waiting_produces",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: TopicId,
        log: Log,
        context: ReplicationContext,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark` is what is known of it from before the broker's start."""
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self._context = context
        self.counters = context.counters.of(topic_id)
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leader_epoch = NO_EPOCH
        self.leader_id = NO_LEADER
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self._min_insync_replicas = 1
        self._has_resigned = False
        """Without a role until the controller speaks again, be it in the same leader epoch."""
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self.is_offline = False
        self.is_throttled_leader = False
        """True if followers that are not in sync are sent no more than the leader's throttle allows."""
        self.is_throttled_follower = False
        """True if no more than the follower's throttle allows is fetched until this replica is in sync."""
        self.cut_count = 0
        """How often the log was cut: other records may then come to lie below the same end."""
        self.waiting_produces: ProduceQueue | None = None
        """None until a produce waits for other replicas: most partitions never need it."""
        self.waiting_deletions: ProduceQueue | None = None
        """None until a deletion of records waits for other replicas."""
        self._refused_batches: RefusedBatches | None = None
        """None unless an idempotent producer had a batch refused lately."""
        self._uncommitted_bytes = 0
        """Bytes appended since the high watermark was last at the log end."""
        # Dicts and not sets: wake-ups happen in the order of registration.
        self._watchers: dict[Watcher, None] = {}
        self._log_end_watchers: dict[Watcher, None] = {}

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def key(self) -> tuple[bytes, int]:
        """What names the partition in requests between brokers."""
        return self.topic_id, self.index

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed consumers stop: the high watermark, as there are no open transactions."""
        return self.high_watermark

    # ---- roles

    def is_news(self, state: PartitionImage) -> bool:
        """True if the controller's `state` is newer than what this partition was told last.

        After a resignation the same state is news too: a follower's leader epoch is not raised because its
        broker was away. And so are other replicas: the answer to AlterPartition does not tell them.
        """
        told = (state.leader_epoch, state.partition_epoch)
        known = (self.leader_epoch, self.partition_epoch)
        return told > known or (told == known and (self._has_resigned or state.replicas != self.replicas))

    def needs_other_role(self, state: PartitionImage) -> bool:
        """True if `state` ends the present leadership or following. Then nobody may fetch meanwhile."""
        return self.is_news(state) and (state.leader_epoch > self.leader_epoch or self._has_resigned)

    def take_over(self, state: PartitionImage) -> None:
        """Follow what the controller says of this partition; an older state changes nothing."""
        if not self.is_news(state):
            return
        if self.needs_other_role(state):
            self._end_role()
            self.leader_epoch = state.leader_epoch
            self.leader_id = state.leader
            self._has_resigned = False
            if not self.is_offline:
                self._take_role(state)
            self._note(state)
            if self.leader is None:
                self.refuse_waiting_produces(self._not_led())
            self.notify_changed()
            if self.leader is not None:
                self._after(None)
            return
        self._note(state)
        if self.leader is not None:
            self._after(
                self.leader.take_over(
                    state.replicas, state.isr, state.partition_epoch, self._context.monotonic_ms()
                )
            )

    def _note(self, state: PartitionImage) -> None:
        self.replicas = state.replicas
        self.isr = state.isr
        self.partition_epoch = state.partition_epoch

    def _take_role(self, state: PartitionImage) -> None:
        context = self._context
        if state.leader == context.node_id:
            # Before the first append: else a later truncation would find the wrong offset.
            self.log.begin_epoch(state.leader_epoch)
            self.counters.messages_before -= self.log.log_end_offset
            self.leader = Leader(
                self.topic_partition,
                context.lag_watch,
                broker_id=context.node_id,
                broker_epoch=context.broker_epoch,
                leader_epoch=state.leader_epoch,
                replicas=state.replicas,
                isr=state.isr,
                partition_epoch=state.partition_epoch,
                log_end_offset=self.log.log_end_offset,
                high_watermark=self.high_watermark,
                min_insync_replicas=self._min_insync_replicas,
                lag_time_max_ms=context.lag_time_max_ms(),
                now_ms=context.monotonic_ms(),
            )
        elif state.leader != NO_LEADER:
            self.follower = Follower(
                self.log,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                high_watermark=self.high_watermark,
            )

    def resign(self) -> None:
        """Lead and follow no longer, until the controller says what to do."""
        self._end_role()
        self._has_resigned = True
        self.refuse_waiting_produces(self._not_led())
        self.notify_changed()

    def _end_role(self) -> None:
        """Produces that wait stay: if this broker leads on in a newer epoch, its log has them still."""
        if self.leader is not None:
            self._context.lag_watch.discard(self.leader)
            self.counters.messages_before += self.log.log_end_offset
            self.leader = None
        self.follower = None
        self._uncommitted_bytes = 0

    def check_led(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""
        if self.leader is None:
            raise self._not_led()

    def check_led_or_offline(self) -> None:
        """As `check_led`, but a partition that is offline is told as such when it is read or written."""
        if not self.is_offline:
            self.check_led()

    def check_high_watermark_known(self) -> None:
        """Raise OFFSET_NOT_AVAILABLE while a new leader may know a lower high watermark than the one before
        has told: else offsets would go backwards for clients (KIP-207)."""
        if self.leader is not None and not self.leader.may_answer_latest:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"the new leader of {self.topic}-{self.index} does not know its high watermark yet",
            )

    def _not_led(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is not led by this broker"
        )

    def set_min_insync_replicas(self, count: int) -> None:
        self._min_insync_replicas = count
        if self.leader is not None and self.leader.min_insync_replicas != count:
            self.leader.set_min_insync_replicas(count)
            self._after(None)

    def on_isr_outcome(
        self, change: IsrChange, outcome: Outcome, isr: tuple[int, ...], partition_epoch: int
    ) -> IsrChange | None:
        """The controller has answered, or has not; returns the change to send next, if there is one."""
        leader = self.leader
        if leader is None or leader.leader_epoch != change.leader_epoch:
            return None
        following = leader.on_alter_partition(
            change, outcome, self._context.monotonic_ms(), isr, partition_epoch
        )
        self._context.isr_counters.note(len(self.isr), len(leader.isr.committed))
        self.isr = leader.isr.committed
        self.partition_epoch = max(self.partition_epoch, leader.isr.partition_epoch)
        self._raise_high_watermark(leader.high_watermark)
        return following

    def propose(self, change: IsrChange) -> None:
        self._context.propose(self, change)

    def _after(self, change: IsrChange | None) -> None:
        """The leader was told something: do what follows from it."""
        assert self.leader is not None
        self._raise_high_watermark(self.leader.high_watermark)
        if change is not None:
            self._context.propose(self, change)

    # ---- checks

    def check_online(self) -> None:
        if self.is_offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic}-{self.index} is offline: its log directory failed; see the broker's log",
            )

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a request whose leader epoch is older or newer than ours; -1 means that it names none."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.topic}-{self.index} is at leader epoch {self.leader_epoch}, the request at {epoch}",
            )
        known = f"{self.topic}-{self.index} is at leader epoch {self.leader_epoch}"
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{known} and does not know {epoch} yet")

    def check_enough_replicas(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS unless enough are in sync for an append with acks=all."""
        leader = self.leader
        if leader is not None and not leader.has_enough_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index} has {len(self.isr)} replicas in sync; acks=all needs "
                f"{min(self._min_insync_replicas, len(self.replicas))} (min.insync.replicas)",
            )

    # ---- as leader

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        """Append one validated batch as leader; it is on its way to disk when this returns."""
        if self.is_offline:
            self.check_online()
        leader = self.leader
        if leader is None:
            raise self._not_led()
        if self._refused_batches is not None:
            self._check_refused(self._refused_batches, header)
        result = self.log.append(batch, header, self.leader_epoch, now_ms)
        self.counters.produces += 1
        if not result.is_duplicate:
            leader.on_append(result.last_offset + 1)
            byte_count = len(batch)
            self.counters.bytes_in += byte_count
            self._uncommitted_bytes += byte_count
            if self._log_end_watchers:
                self._tell_of_log_end(byte_count)
            if leader.high_watermark > self.high_watermark:
                self._raise_high_watermark(leader.high_watermark)
        return result

    def note_refused(self, header: BatchHeader, error: KafkaError) -> None:
        """A batch of an idempotent producer was refused for now: those behind it must be refused, too."""
        if self._refused_batches is None:
            self._refused_batches = RefusedBatches()
        self._refused_batches.note(header, error, self._context.monotonic_ms())

    def _check_refused(self, refused: RefusedBatches, header: BatchHeader) -> None:
        refused.check(header, self._context.monotonic_ms())
        if not refused:
            self._refused_batches = None

    def on_follower_fetch(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int
    ) -> None:
        """A follower of this leader epoch has everything before `fetch_offset`.

        Raises NOT_LEADER_OR_FOLLOWER for a broker that has no replica, or if this broker does not lead.
        """
        leader = self.leader
        if leader is None:
            raise self._not_led()
        change = leader.on_fetch(
            replica_id, broker_epoch, fetch_offset, log_start_offset, self._context.monotonic_ms()
        )
        if change is not None or leader.high_watermark > self.high_watermark:
            self._after(change)
        if self.waiting_deletions:
            self._drain_deletions()

    def holds_back(self, replica_id: int) -> bool:
        """True if a follower is sent no records now, because replication is throttled."""
        quota = self._context.leader_throttle.quota
        if quota is None or replica_id in self.isr:
            return False
        return quota.pause_ms(self._context.monotonic_ms()) > 0

    def note_sent(self, byte_count: int) -> None:
        """Followers are sent so many bytes."""
        quota = self._context.leader_throttle.quota
        if quota is not None:
            quota.record(byte_count, self._context.monotonic_ms())

    def closest_replica(self, rack: str, fetch_offset: int) -> int:
        """The replica that a consumer in `rack` should read from (KIP-392), or NO_PREFERENCE."""
        racks = self._context.racks()
        leader = self.leader
        if not racks or leader is None:
            return NO_PREFERENCE
        replicas = [ReplicaProgress(leader.broker_id, racks.get(leader.broker_id), True, 0, 0)]
        replicas += [
            ReplicaProgress(
                each.broker_id,
                racks.get(each.broker_id),
                each.broker_id in self.isr and each.broker_id in racks,
                each.log_start_offset,
                each.log_end_offset,
            )
            for each in leader.followers
        ]
        return closest_replica(rack, fetch_offset, leader.broker_id, replicas)

    def _raise_high_watermark(self, offset: int) -> None:
        """The records before `offset` are committed: acknowledge their produces, wake those who fetch."""
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self._watchers:
            # Too many bytes rather than too few: a fetch that is woken for nothing waits on.
            self._tell_of_high_watermark(self._uncommitted_bytes)
        for follower in self._log_end_watchers:
            follower.on_high_watermark()
        if offset == self.log.log_end_offset:
            self._uncommitted_bytes = 0
        if self.waiting_produces:  # enough replicas are in sync, else it would not have risen
            self.waiting_produces.drain(offset)

    def refuse_waiting_produces(self, error: KafkaError) -> None:
        """What waits, produces and deletions, will not be acknowledged here: leadership or the partition is
        lost."""
        for queue in (self.waiting_produces, self.waiting_deletions):
            if queue:
                queue.refuse_all(error)

    # ---- as follower

    def next_fetch(self) -> FetchPosition | None:
        """What to fetch from the leader next; None if nothing is to be fetched in this leader epoch."""
        return None if self.follower is None else self.follower.next_fetch()

    def on_fetched(self, asked: FetchPosition, data: PartitionData) -> Action:
        """What to do with the leader's answer."""
        follower = self.follower
        if follower is None or asked.current_leader_epoch != follower.leader_epoch:
            return Action(Do.DROP)
        diverging = data.diverging_epoch
        action = follower.on_answer(
            asked.fetch_offset,
            data.error_code,
            diverging_epoch=-1 if diverging is None else diverging.epoch,
            diverging_end_offset=-1 if diverging is None else diverging.end_offset,
            leader_log_start_offset=data.log_start_offset,
        )
        if action.do in (Do.TRUNCATE, Do.START_AT):
            self.cut_count += 1
        if action.do is Do.TRUNCATE and action.offset < self.high_watermark:
            # Before the log is cut, which a thread does: nobody may see it above the log end.
            self.high_watermark = action.offset
        return action

    @property
    def writes_slowly(self) -> bool:
        """True if what is fetched may have to reach the disk before the next fetch tells that it is here."""
        return self.log.config.flushes_by_itself

    def write_fetched(self, action: Action, data: PartitionData) -> None:
        """Do it to the log. Runs on the event loop, or in a thread if it may take long."""
        if action.do is Do.APPEND:
            if data.records:
                now_ms = self._context.now_ms()
                try:
                    self.log.append_replicated(data.records, now_ms)
                except CorruptBatch as error:
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"what the leader of {self.topic}-{self.index} sent is damaged: {error}",
                    ) from error
                if self.log.needs_flush(now_ms):
                    self._context.flush(self.log)
        elif action.do is Do.TRUNCATE:
            self._context.truncate({self.topic_partition: action.offset})
        else:
            self._context.start_at({self.topic_partition: action.offset})

    def settle_fetched(self, action: Action, data: PartitionData) -> None:
        """The log is written: take over the leader's high watermark and log start."""
        follower = self.follower
        if follower is None:  # it has resigned meanwhile
            log = self.log
            self.high_watermark = max(min(self.high_watermark, log.log_end_offset), log.log_start_offset)
            return
        if action.do is Do.APPEND:
            byte_count = len(data.records) if data.records else 0
            self.counters.replication_bytes_in += byte_count
            log_start_offset = follower.on_appended(data.high_watermark, data.log_start_offset)
            if log_start_offset is not None:
                self.log.delete_records_before(log_start_offset)
            if follower.high_watermark > self.high_watermark:
                self.high_watermark = follower.high_watermark
                self._tell_of_high_watermark(byte_count)
        else:
            follower.on_truncated()
            self.high_watermark = follower.high_watermark

    def pause_s(self, data: PartitionData) -> float:
        """How long nothing is fetched after this answer, because replication is throttled."""
        quota = self._context.follower_throttle.quota
        if quota is None:
            return 0.0
        now_ms = self._context.monotonic_ms()
        quota.record(len(data.records) if data.records else 0, now_ms)
        return 0.0 if self.log.log_end_offset >= data.high_watermark else quota.pause_ms(now_ms) / 1000

    # ---- for those who read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        to_log_end: bool = False,
        must_return_one: bool,
        may_block: bool,
    ) -> FileSlice | None:
        """Whole batches from the one that holds `offset` up to the high watermark; None when at the end.

        Followers read on to the log end. Raises OFFSET_OUT_OF_RANGE, or `WouldBlock` (see `Log.read`).
        """
        if self.is_offline:
            self.check_online()
        log = self.log
        end_offset = log.log_end_offset if to_log_end else self.high_watermark
        if offset == end_offset:
            return None
        if offset < log.log_start_offset or offset > log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.index} is outside "
                f"{log.log_start_offset}..{log.log_end_offset}",
            )
        if offset > end_offset:
            return None
        return log.read(offset, max_bytes, end_offset, must_return_one=must_return_one, may_block=may_block)

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start to `offset` (-1: the high watermark); returns the offset."""
        self.check_online()
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete records of {self.topic}-{self.index} before {offset}: "
                f"the high watermark is {self.high_watermark}",
            )
        self.log.delete_records_before(offset)
        self._tell_of_log_end(0)  # followers, who are to follow that too
        return offset

    @property
    def low_watermark(self) -> int:
        """The lowest log start of the living replicas, as far as their fetches have told."""
        offset, leader = self.log.log_start_offset, self.leader
        return offset if leader is None else leader.low_watermark(offset, self._context.living_brokers())

    def deletions(self) -> ProduceQueue:
        """The deletions that wait until the low watermark has reached their offset."""
        if self.waiting_deletions is None:
            self.waiting_deletions = ProduceQueue(
                "the records are deleted on the leader, but not on all living replicas in time",
                self._drain_deletions,
            )
        return self.waiting_deletions

    def _drain_deletions(self) -> None:
        if self.waiting_deletions:
            self.waiting_deletions.drain(self.low_watermark)

    # ---- those who wait to read more

    def watch(self, watcher: Watcher, *, to_log_end: bool = False) -> None:
        """Have `watcher` told of the next progress: of the high watermark, or of the log end."""
        (self._log_end_watchers if to_log_end else self._watchers)[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._log_end_watchers.pop(watcher, None)

    def _tell_of_high_watermark(self, byte_count: int) -> None:
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            watcher.on_progress(byte_count)

    def _tell_of_log_end(self, byte_count: int) -> None:
        watchers, self._log_end_watchers = self._log_end_watchers, {}
        for watcher in watchers:
            watcher.on_progress(byte_count)

    def notify_changed(self) -> None:
        """Tell everybody who waits that the partition itself changed: deleted, offline, a new leader."""
        self._tell_of_log_end(0)
        self._tell_of_high_watermark(0)

    def take_offline(self, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """Nothing more is read or written here; produces that wait are refused with `code`."""
        self.is_offline = True
        gone = f"{self.topic}-{self.index} is not available on this broker any longer"
        self.refuse_waiting_produces(KafkaError(code, gone))
        self.resign()
