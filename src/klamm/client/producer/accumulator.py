"""The records that wait to be sent: chooses a partition for each, and fills batches. A core.

What always holds:
- Records use at most buffer.memory bytes, counted as ledger.py says. One exception: a single batch of encoded
  columns may exceed it while no other record waits.
- The records of one partition are queued in the order in which they were appended.

A record is unplaced while its partition cannot be chosen: its topic is not known yet (until `topic_known` or
`topic_failed`), or the topic does not have the partition that the user named (until metadata is fetched
again).

Nothing here waits or does IO. The caller gives the clocks: `clock` for spans of time, `now_ms` for the
timestamps of records. settling.py decides what happens to batches after they were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from math import inf
from typing import Generic, TypeVar

from klamm.client.arguments import TimeLike, as_name
from klamm.client.counters import ClientCounters
from klamm.client.errors import BrokerError, BufferFull, ClientError, LocalRecordTooLarge
from klamm.client.producer.arguments import (
    BytesLike,
    HeadersGiven,
    as_bytes,
    as_headers,
    as_partition,
    as_timestamp_ms,
)
from klamm.client.producer.batches import (
    RECORD_MEMORY_BYTES,
    RECORD_OVERHEAD_BYTES,
    Batch,
    Outcome,
    headers_size,
)
from klamm.client.producer.delivery import BatchDelivery
from klamm.client.producer.ledger import Ledger
from klamm.client.producer.partitioners import KEY_PARTITIONERS, Partitioner, ask_user
from klamm.client.producer.queues import PartitionQueue, TopicBuffer, UnplacedBatch, UnplacedRecord
from klamm.client.producer.schedule import Schedule
from klamm.client.producer.sequences import PartitionSequences, ProducerIdentity
from klamm.client.producer.settings import ProducerSettings
from klamm.model.errors import ErrorCode
from klamm.records.batch import HEADER_SIZE
from klamm.records.decoding import Headers

UNPLACED_SPAN_S = 1.0
"""Unplaced records that came within this time share a deadline, that of the first."""

DeliveryT = TypeVar("DeliveryT", bound=BatchDelivery)


class Accumulator(Generic[DeliveryT]):
    """See the module. Used by one thread at a time."""

    def __init__(
        self,
        settings: ProducerSettings,
        delivery_class: type[DeliveryT],
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        first_partition: Callable[[int], int],
        partitioner: Partitioner | None = None,
        counters: ClientCounters | None = None,
    ) -> None:
        """`first_partition(count)` chooses at random the partition that gets the first records without a
        key."""
        self.settings = settings
        self.counters = counters if counters is not None else ClientCounters()
        self.ledger = Ledger(self.counters)
        self.schedule = Schedule(settings.linger, settings.max_in_flight)
        self.identity = ProducerIdentity()
        self.wake_wanted = False
        """True if the sender should make a pass, because a batch was begun or closed. The sender clears
        it."""
        self.lookups: set[str] = set()
        """Topics to be looked up. The sender clears it."""
        self.topics: dict[str, TopicBuffer] = {}
        """Topics whose partitions are known."""
        self.unplaced_topics: dict[str, TopicBuffer] = {}
        """Topics, known or not, with unplaced records."""
        self._retired: dict[str, TopicBuffer] = {}
        """Topics that nobody has sent to for long. They are kept because sequence numbers must go on from
        where they were."""
        self._delivery = delivery_class
        self._clock = clock
        self._now_ms = now_ms
        self._first_partition = first_partition
        self._user_partitioner = partitioner
        self._key_partitioner = KEY_PARTITIONERS[settings.partitioner]
        self.largest_refused = 0
        """The size of the largest record that found no room: the next wait for room waits for as many
        bytes."""
        self._closed: ClientError | None = None
        self._batch_bytes = settings.batch_bytes
        self._memory = settings.buffer_bytes
        self._max_record_bytes = min(
            settings.max_request_bytes - HEADER_SIZE, settings.buffer_bytes - RECORD_MEMORY_BYTES
        )

    # ---- taking records

    def append(
        self,
        topic: str,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: HeadersGiven | None = None,
        partition: int | None = None,
        timestamp: TimeLike | None = None,
    ) -> DeliveryT:
        """Take a record as the user gives it. Every record goes through here, so the code is laid out for
        speed.

        Raises NotSerializable, LocalRecordTooLarge or BufferFull, and then changes nothing.
        """
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            if value.__class__ is not bytes:
                value = as_bytes(value, "value", topic)
            size += len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key", topic)
            size += len(key)
        pairs: Headers | None = None
        if headers:
            pairs = as_headers(headers, topic)
            size += headers_size(pairs)
        time_ms = self._now_ms() if timestamp is None else as_timestamp_ms(timestamp)
        ledger = self.ledger
        if size > self._max_record_bytes or ledger.memory_used + size + RECORD_MEMORY_BYTES > self._memory:
            raise self._no_room(topic, size)
        buffer = self.topics.get(topic)
        if partition is not None:
            as_partition(partition, topic)
        if buffer is None or (partition is not None and partition >= len(buffer.queues)):
            unplaced = self._unplaced_batch(topic)
            unplaced.wanted.append(partition)
            index = unplaced.add(key, value, time_ms, pairs, size)
            ledger.memory_used += size + RECORD_MEMORY_BYTES
            return self._delivery(unplaced, index)
        if partition is None and (key is not None or self._user_partitioner is not None):
            partition = self._choose(topic, key, len(buffer.queues))
        if partition is None:
            sticky = buffer.sticky
            batch = buffer.queues[sticky.current].open_batch
            if batch is None or batch.size + size > self._batch_bytes:
                batch = self._sticky_batch(buffer, size)
            sticky.sent_bytes += size
        else:
            queue = buffer.queues[partition]
            batch = queue.open_batch
            if batch is None or batch.size + size > self._batch_bytes:
                batch = self._batch_with_room(queue, size)
        if key is None and pairs is None and batch.keys is None and batch.headers is None:
            # As `batch.add` does, for most records.
            values = batch.values
            index = len(values)
            values.append(value)
            batch.timestamps.append(time_ms)
            batch.size += size
        else:
            index = batch.add(key, value, time_ms, pairs, size)
        ledger.memory_used += size + RECORD_MEMORY_BYTES
        return self._delivery(batch, index)

    def append_encoded(
        self,
        topic: str,
        partition: int,
        encoded: memoryview,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
    ) -> Batch:
        """Take encoded records as a batch of their own. `encoded` begins with room for the batch's header.
        The topic must be known.

        Raises BufferFull when there is no room, unless no other record waits.
        """
        memory = len(encoded)
        if not self.has_room(memory):
            raise self._closed or self._buffer_full(topic)
        queues = self.topics[topic].queues
        if partition >= len(queues):
            raise _no_partition(topic, partition, len(queues))
        queue = queues[partition]
        self._close_open(queue)
        batch = self._new_batch(queue, self._clock(), self.ledger.new_number())
        batch.is_open = False
        batch.encoded, batch.count, batch.size, batch.memory = encoded, count, memory, memory
        batch.timestamps.append(base_timestamp)
        batch.max_timestamp = max_timestamp
        self.ledger.memory_used += memory
        queue.add(batch)
        self.reconsider(queue)
        return batch

    def has_room(self, size: int) -> bool:
        """True if encoded records of `size` bytes would be taken now."""
        used = self.ledger.memory_used
        return used + size <= self._memory or (not used and self._closed is None)

    def flush(self) -> int:
        """End the linger time of all batches. Returns a ticket for the ledger's `is_flushed`."""
        ticket = self.ledger.begin_flush()
        for batch in self.ledger.unsettled():
            if batch.is_open and not isinstance(batch, UnplacedBatch):
                self._close_open(batch.in_queue)
        return ticket

    def reconsider(self, queue: PartitionQueue) -> None:
        self.schedule.consider(queue, self._clock())
        self.wake_wanted = True

    def close(self, error: ClientError) -> None:
        """Take nothing more: every append raises `error`."""
        self._closed = error
        self._memory = -1  # so that `append` finds no room, and need not check `_closed` for each record

    def _no_room(self, topic: str, size: int) -> ClientError:
        if self._closed is not None:
            return self._closed
        if size <= self._max_record_bytes:
            self.largest_refused = max(self.largest_refused, size + RECORD_MEMORY_BYTES)
            return self._buffer_full(topic)
        is_request = size > self.settings.max_request_bytes - HEADER_SIZE
        limit = "max_request_size" if is_request else "buffer_memory"
        return LocalRecordTooLarge(
            f"a record to {topic} needs {size + HEADER_SIZE} bytes, more than {limit} allows",
            advice=f"Send less at once, or raise {limit}",
        )

    def _buffer_full(self, topic: str) -> BufferFull:
        self.counters.buffer_full += 1
        return BufferFull(
            f"there is no room for records to {topic}: {self.ledger.memory_used} of {self._memory} bytes "
            "wait to be sent and acknowledged",
            advice="Wait with `await producer.drain()`, or raise buffer_memory",
        )

    # ---- partitions and batches

    def _choose(self, topic: str, key: bytes | None, partitions: int) -> int | None:
        """The partition for a record whose sender named none; None for the sticky one."""
        if self._user_partitioner is not None:
            return ask_user(self._user_partitioner, topic, key, partitions)
        return self._key_partitioner(key, partitions) if key is not None else None

    def _sticky_batch(self, buffer: TopicBuffer, size: int, origin: Batch | None = None) -> Batch:
        """A batch with room for a record without a key; switches to another partition if it is time to."""
        queue = buffer.queues[buffer.sticky.current]
        batch = queue.open_batch
        if batch is None or batch.size + size > self._batch_bytes:
            if batch is not None:
                self._close_open(queue)
            if buffer.sticky.batch_closed():
                buffer.switch_sticky()
                queue = buffer.queues[buffer.sticky.current]
        return self._batch_with_room(queue, size, origin)

    def _batch_with_room(self, queue: PartitionQueue, size: int, origin: Batch | None = None) -> Batch:
        """The open batch if the record fits, or a new one. `origin` is the batch of a record that was
        unplaced: a new batch takes over its age and number."""
        batch = queue.open_batch
        if batch is not None:
            if batch.size + size <= self._batch_bytes:
                return batch
            self._close_open(queue)
        if origin is None:
            batch = self._new_batch(queue, self._clock(), self.ledger.new_number())
        else:
            batch = self._new_batch(queue, origin.created, origin.number)
        queue.add(batch)
        if len(queue.waiting) == 1:
            self.reconsider(queue)
        return batch

    def _new_batch(self, queue: PartitionQueue, created: float, number: int) -> Batch:
        deadline = created + self.settings.delivery_timeout
        batch = Batch(queue.topic, queue.index, (queue.next_order,), number, created, deadline)
        batch.queue = queue
        self.ledger.enter(batch)
        return batch

    def _close_open(self, queue: PartitionQueue) -> None:
        batch = queue.close_open()
        if batch is not None and batch is queue.waiting[0]:
            self.reconsider(queue)

    # ---- topics

    def topic_known(
        self, topic: str, has_leader: Sequence[bool], *, looked_up: bool = False, is_wanted: bool = False
    ) -> None:
        """Take over from metadata which partitions a topic has, and which of them have a leader.

        `looked_up`: the metadata were fetched for the unplaced records, so records for a partition that still
        does not exist fail now. A topic that nobody has sent to is ignored unless `is_wanted`.
        """
        buffer = self.topics.get(topic) or self.unplaced_topics.get(topic)
        if buffer is None and is_wanted:
            buffer = self._retired.pop(topic, None) or TopicBuffer(topic, self._batch_bytes)
        if buffer is None or not has_leader:
            return
        is_new = not buffer.queues
        self._fit_queues(buffer, len(has_leader))
        buffer.has_leader = list(has_leader)
        if is_new or buffer.sticky.current >= len(has_leader):
            buffer.sticky.current = self._first_partition(len(has_leader))
            if not has_leader[buffer.sticky.current]:
                buffer.switch_sticky()
        self.topics[topic] = buffer
        if buffer.unplaced:
            self._place_all(buffer, looked_up)
        self.wake_wanted = True

    def retire_unused_topics(self, deleted: Set[str]) -> list[str]:
        """Take topics out of use that were deleted while nothing waits for them, or that nobody has sent to
        for metadata.max.idle.ms; returns their names. The next record to one of them makes it be looked up
        again.
        """
        now = self._clock()
        unused = [
            name
            for name, buffer in self.topics.items()
            if buffer.is_unused(now, 0.0 if name in deleted else self.settings.topic_idle)
        ]
        for name in unused:
            self._retired[name] = self.topics.pop(name)
        return unused

    def topic_failed(self, topic: str, error: ClientError, until: float = inf) -> None:
        """The topic could not be looked up: fail its records that have been unplaced since `until` or
        longer."""
        buffer = self.unplaced_topics.get(topic)
        while buffer is not None and buffer.unplaced and buffer.unplaced[0].created <= until:
            self.ledger.settle(buffer.unplaced.popleft(), Outcome(error=error))
        if buffer is not None and not buffer.unplaced:
            self.all_placed(buffer)

    def all_placed(self, buffer: TopicBuffer) -> None:
        """A topic has no unplaced records any more."""
        del self.unplaced_topics[buffer.name]
        if buffer.queues and buffer.name not in self.topics:
            self._retired[buffer.name] = buffer

    def _fit_queues(self, buffer: TopicBuffer, count: int) -> None:
        queues = buffer.queues
        while len(queues) < count:
            sequences = PartitionSequences(self.identity) if self.settings.idempotent else None
            queues.append(PartitionQueue(buffer.name, len(queues), sequences))
        while len(queues) > count:  # the topic was deleted, and created again with fewer partitions
            queue = queues.pop()
            error = _no_partition(buffer.name, queue.index, count)
            for batch in list(queue.waiting):
                queue.remove(batch)
                self.ledger.settle(batch, Outcome(error=error))
            self.schedule.forget(queue)

    def _unplaced_batch(self, topic: str) -> UnplacedBatch:
        """The batch that keeps a record until its partition is chosen."""
        buffer = self.unplaced_topics.get(topic) or self.topics.get(topic)
        if buffer is None:
            name = as_name(topic, "topic")
            buffer = self._retired.pop(name, None) or TopicBuffer(name, self._batch_bytes)
        self.unplaced_topics[topic] = buffer
        now = self._clock()
        last = buffer.unplaced[-1] if buffer.unplaced else None
        span = min(UNPLACED_SPAN_S, self.settings.max_block / 10)
        if last is not None and now - last.created <= span and last.number >= self.ledger.flushed_before:
            return last
        patience = min(self.settings.max_block, self.settings.delivery_timeout)
        unplaced = UnplacedBatch(topic, self.ledger.new_number(), now, now + patience)
        self.ledger.enter(unplaced)
        buffer.unplaced.append(unplaced)
        self.lookups.add(topic)
        self.wake_wanted = True
        return unplaced

    def _place_all(self, buffer: TopicBuffer, looked_up: bool) -> None:
        """Move the unplaced records of a topic into the batches of their partitions."""
        waiting, buffer.unplaced = buffer.unplaced, deque()
        for unplaced in waiting:
            # Records for a partition that does not exist wait for the look-up. The other records must not
            # wait with them: records sent from now on would come before them.
            rest = None if looked_up else self._beyond(buffer, unplaced)
            if rest is unplaced:
                buffer.unplaced.append(unplaced)
                continue
            places = [self._place(buffer, unplaced, record, rest) for record in unplaced.records()]
            if rest is not None:
                self.ledger.enter(rest)
                buffer.unplaced.append(rest)
            self.ledger.moved(unplaced, places)
            for batch in dict.fromkeys(batch for batch, _ in places):
                if batch.is_open and batch.number < self.ledger.flushed_before:
                    self._close_open(batch.in_queue)
        if not buffer.unplaced:
            self.unplaced_topics.pop(buffer.name, None)

    def _beyond(self, buffer: TopicBuffer, unplaced: UnplacedBatch) -> UnplacedBatch | None:
        """The batch for the records whose partition is still unknown: `unplaced` itself if that is all of
        them, None if that is none of them."""
        count = len(buffer.queues)
        beyond = [one is not None and one >= count for one in unplaced.wanted]
        if all(beyond):
            return unplaced
        if not any(beyond):
            return None
        return UnplacedBatch(unplaced.topic, unplaced.number, unplaced.created, unplaced.deadline)

    def _place(
        self, buffer: TopicBuffer, unplaced: UnplacedBatch, record: UnplacedRecord, rest: UnplacedBatch | None
    ) -> tuple[Batch, int]:
        """Move a record of `unplaced` into a batch of its partition, or into `rest` if the partition is still
        unknown. Returns the batch and the record's index in it."""
        key, value, timestamp, headers, partition = record
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size += headers_size(headers) if headers else 0
        count = len(buffer.queues)
        if rest is not None and partition is not None and partition >= count:
            rest.wanted.append(partition)
            self.ledger.memory_used += size + RECORD_MEMORY_BYTES
            return rest, rest.add(key, value, timestamp, headers, size)
        try:
            if partition is None:
                partition = self._choose(buffer.name, key, count)
            elif partition >= count:
                raise _no_partition(buffer.name, partition, count)
        except ClientError as error:
            refused = Batch(buffer.name, -1, (), -1, 0.0, 0.0)
            self.ledger.refuse(refused, Outcome(error=error))
            return refused, 0
        if partition is None:
            batch = self._sticky_batch(buffer, size, unplaced)
            buffer.sticky.sent_bytes += size
        else:
            batch = self._batch_with_room(buffer.queues[partition], size, unplaced)
        self.ledger.memory_used += size + RECORD_MEMORY_BYTES
        return batch, batch.add(key, value, timestamp, headers, size)


def _no_partition(topic: str, partition: int, count: int) -> ClientError:
    return BrokerError.of(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"a record to {topic}-{partition}",
        f"the topic has {count} partitions",
    )
