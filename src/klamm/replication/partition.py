"""A partition as the API handlers see it: its log, its leader epoch and its high watermark.

Every produce and fetch passes through here. What differs between one replica and many (who may raise the
high watermark, who must have a record before it is acknowledged) is decided here and nowhere else. In a
partition with one replica the high watermark follows the log end at once; else `raise_high_watermark` raises
it, and acknowledges the produces that wait for it.

Those who watch a partition are told of the next progress once, and watch again when they have looked at it:
so many appends in one iteration of the loop wake them once.

Invariants: `high_watermark <= log.log_end_offset`; neither it nor `leader_epoch` ever goes back; consumers
are given nothing at or above the high watermark.
"""

from __future__ import annotations

from typing import Protocol

from klamm.cluster.image import PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.records.batch import BatchHeader
from klamm.replication.closest_replica import NO_PREFERENCE
from klamm.replication.waiting_produces import ProduceQueue
from klamm.storage.log import AppendResult, FileSlice, Log


class Watcher(Protocol):
    """Is told once when a partition has more to read, or is gone. To be told again it watches again."""

    def on_progress(self, byte_count: int) -> None:
        """What may be read grew by batches of `byte_count` bytes; 0 when the partition itself changed."""


class Partition:
    __slots__ = (
        "__weakref__",
        "_log_end_watchers",
        "_uncommitted_bytes",
        "_watchers",
        "high_watermark",
        "index",
        "is_offline",
        "is_only_replica",
        "isr",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "replicas",
        "topic",
        "topic_id",
        "waiting_produces",
    )

    def __init__(self, topic: str, index: int, topic_id: TopicId, log: Log) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = 0
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.min_insync_replicas = 1
        self.high_watermark = log.log_end_offset
        self.is_offline = False
        self.is_only_replica = True
        """What is in the log is committed."""
        self.waiting_produces: ProduceQueue | None = None
        """None until a produce waits for other replicas: most partitions never need it."""
        self._uncommitted_bytes = 0
        """Bytes appended since the high watermark was last at the log end."""
        # Dicts and not sets: wake-ups happen in the order of registration.
        self._watchers: dict[Watcher, None] = {}
        self._log_end_watchers: dict[Watcher, None] = {}

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.index)

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed consumers stop: the high watermark, as there are no open transactions."""
        return self.high_watermark

    def take_over(self, state: PartitionImage) -> None:
        """Follow what the cluster's image says of this partition."""
        self.replicas = state.replicas
        self.isr = state.isr
        self.is_only_replica = len(state.replicas) <= 1
        if self.is_only_replica:
            self.raise_high_watermark(self.log.log_end_offset)
        if state.leader_epoch > self.leader_epoch:
            self.leader_epoch = state.leader_epoch
            self.notify_changed()

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
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic}-{self.index} is at leader epoch {self.leader_epoch} and does not know {epoch} yet",
        )

    def check_enough_replicas(self, code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        """Raise `code` unless enough replicas are in sync for an append with acks=all."""
        needed = min(self.min_insync_replicas, len(self.replicas))
        if len(self.isr) < needed:
            raise KafkaError(
                code,
                f"{self.topic}-{self.index} has {len(self.isr)} replicas in sync; "
                f"acks=all needs {needed} (min.insync.replicas)",
            )

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        """Append one validated batch as leader; it is on its way to disk when this returns."""
        if self.is_offline:
            self.check_online()
        result = self.log.append(batch, header, self.leader_epoch, now_ms)
        if not result.is_duplicate:
            if self._log_end_watchers:
                self._tell_of_log_end(len(batch))
            if self.is_only_replica:
                self.high_watermark = result.last_offset + 1
                if self._watchers:
                    self._tell_of_high_watermark(len(batch))
            else:
                self._uncommitted_bytes += len(batch)
        return result

    def raise_high_watermark(self, offset: int) -> None:
        """The records before `offset` are committed: acknowledge their produces, wake those who fetch."""
        if offset <= self.high_watermark:
            return
        assert offset <= self.log.log_end_offset
        self.high_watermark = offset
        if self._watchers:
            # Too many bytes rather than too few: a fetch that is woken for nothing waits on.
            self._tell_of_high_watermark(self._uncommitted_bytes)
        if offset == self.log.log_end_offset:
            self._uncommitted_bytes = 0
        if self.waiting_produces:
            error = None
            try:
                self.check_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            except KafkaError as too_few:
                error = too_few.as_result()
            self.waiting_produces.drain(offset, error)

    def refuse_waiting_produces(self, error: KafkaError) -> None:
        """The produces that wait will not be acknowledged here: leadership is lost, or the partition."""
        if self.waiting_produces:
            self.waiting_produces.refuse_all(error)

    def closest_replica(self, rack: str, fetch_offset: int) -> int:
        """The replica that a consumer in `rack` should read from (KIP-392): this one, the only one."""
        return NO_PREFERENCE

    def on_follower_fetch(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int
    ) -> None:
        """A follower of this leader epoch has everything before `fetch_offset`.

        Raises NOT_LEADER_OR_FOLLOWER for a broker that has no replica.
        """
        if replica_id not in self.replicas:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica_id} has no replica of {self.topic}-{self.index}",
            )

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
        return log.read(
            offset,
            max_bytes,
            end_offset,
            must_return_one=must_return_one,
            may_block=may_block,
        )

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start to `offset` (-1: the high watermark); returns the new low watermark."""
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
        return self.log.log_start_offset

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
        self.notify_changed()
        self.refuse_waiting_produces(
            KafkaError(code, f"{self.topic}-{self.index} is not available on this broker any longer")
        )
