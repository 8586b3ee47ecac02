"""A batch of records for one partition, from its first record to the answer. A core.

While it is open its records lie in columns, one list per field, so that encoding them is one pass. Once it is
encoded the columns are dropped, and the batch is the bytes that go over the wire; a batch that must be split
is read from them again.

Every record's delivery is (batch, index). The outcome lies in the batch: nothing is done per record when it
is acknowledged. Records may move: unplaced records into the batches of their partitions, and the records of a
batch that was too large into its parts. Then `moved` says where each record is now.

One thread may add waiters while another takes them, without a lock: each list operation used here is atomic,
the outcome is set before the waiters are taken, and the thread that adds a waiter checks the outcome
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from klamm.client.errors import BrokerError, ClientError
from klamm.records.batch import HEADER_SIZE, NO_PRODUCER_ID
from klamm.records.builder import seal_batch, stamp_producer, with_room_for_header
from klamm.records.compression import Codec
from klamm.records.decoding import NAME_ERRORS, Headers
from klamm.records.encoding import encode_records
from klamm.records.reader import StoredRecord, iter_records

if TYPE_CHECKING:
    from klamm.client.producer.queues import PartitionQueue

RECORD_OVERHEAD_BYTES = 21
"""The most bytes that a record needs on the wire besides key, value and headers: lengths, times, offset."""

RECORD_MEMORY_BYTES = 96
"""The memory that Python needs for a record besides its bytes: the objects, and their places in lists."""

_HEADER_OVERHEAD_BYTES = 10
"""The lengths of a header's name and value, at most."""

NO_SEQUENCE = -1


class Outcome(NamedTuple):
    """The result of a batch. `record_errors` are the broker's messages about single records, by index."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    error: ClientError | None = None
    record_errors: Mapping[int, str] | None = None

    def error_of(self, index: int) -> ClientError | None:
        """The error of one record: its own, or that another record of the batch was refused."""
        error = self.error
        if error is None or not self.record_errors or error.code is None:
            return error
        own = self.record_errors.get(index)
        said = own if own is not None else "it was in one batch with a record that the broker refused"
        return BrokerError.of(error.code, f"record {index} of its batch", said)


Waiter = Callable[[], object]


class FailureNotice:
    """Reports a failed batch when all its deliveries are gone and nobody has asked for its outcome."""

    __slots__ = ("_tell", "count", "error", "is_seen", "place")

    def __init__(
        self, place: str, count: int, error: ClientError, tell: Callable[[FailureNotice], None]
    ) -> None:
        self.place = place
        self.count = count
        self.error = error
        self.is_seen = False
        self._tell = tell

    def __del__(self) -> None:
        if not self.is_seen:
            self._tell(self)


class Batch:
    """Records for one partition. `order` is its place among the batches of the partition."""

    __slots__ = (
        "attempts",
        "count",
        "created",
        "data",
        "deadline",
        "encoded",
        "headers",
        "is_open",
        "keys",
        "last_error",
        "max_timestamp",
        "may_be_written",
        "memory",
        "moved",
        "notice",
        "number",
        "on_wire",
        "order",
        "outcome",
        "partition",
        "producer_epoch",
        "producer_id",
        "queue",
        "retry_at",
        "sequence",
        "size",
        "stamp",
        "timestamps",
        "topic",
        "values",
        "waiters",
    )

    def __init__(
        self, topic: str, partition: int, order: tuple[int, ...], number: int, created: float, deadline: float
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.order = order
        self.number = number
        """The batch's place among all batches of the producer; the parts of a split batch keep its number."""
        self.created = created
        self.deadline = deadline
        self.is_open = True
        self.keys: list[bytes | None] | None = None
        """None while no record has a key."""
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        """Kept for the deliveries. Of records that came encoded, only the first."""
        self.headers: list[Headers] | None = None
        self.encoded: memoryview | None = None
        """Records that came encoded already, behind room for a header."""
        self.max_timestamp = -1
        self.count = 0
        """Set when the batch is closed."""
        self.size = HEADER_SIZE
        self.memory = 0
        """The bytes of buffer.memory that the batch uses: set when it is closed, 0 again once given back."""
        self.data: bytearray | memoryview | None = None
        self.attempts = 0
        self.retry_at = 0.0
        self.on_wire = False
        self.may_be_written = False
        """True if an earlier attempt may have written the batch: it was sent, and no answer said that it was
        not written."""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = -1
        self.sequence = NO_SEQUENCE
        self.stamp: tuple[int, int, int] | None = None
        self.last_error: ClientError | None = None
        self.outcome: Outcome | None = None
        self.notice: FailureNotice | None = None
        """Set before an outcome that is an error."""
        self.queue: PartitionQueue | None = None
        """The queue that the batch is in or was taken from; None once it will not be sent again."""
        self.moved: Sequence[tuple[Batch, int]] | None = None
        self.waiters: list[tuple[int, Waiter]] = []

    def __repr__(self) -> str:
        return f"<Batch {self.order} of {self.topic}-{self.partition}, sequence {self.sequence}>"

    @property
    def in_queue(self) -> PartitionQueue:
        assert self.queue is not None, "a batch that may still be sent has a queue"
        return self.queue

    # ---- filling

    def add(
        self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, size: int
    ) -> int:
        """Add a record of `size` bytes on the wire; returns its index. The accumulator does the same
        inline."""
        values = self.values
        index = len(values)
        if self.keys is not None:
            self.keys.append(key)
        elif key is not None:
            self.keys = [None] * index
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers or ())
        elif headers:
            self.headers = [()] * index
            self.headers.append(headers)
        values.append(value)
        self.timestamps.append(timestamp)
        self.size += size
        return index

    def close(self) -> None:
        """Take no more records."""
        if self.is_open:
            self.is_open = False
            self.count = len(self.values)
            self.memory = self.size - HEADER_SIZE + self.count * RECORD_MEMORY_BYTES

    # ---- bytes

    def encode(self, codec: int = Codec.NONE, level: int | None = None) -> bytearray | memoryview:
        """The bytes for the wire, with the current sequence. Called on a closed batch by one at a time."""
        stamp = (self.producer_id, self.producer_epoch, self.sequence)
        data = self.data
        if data is None:
            data = self.data = self._assemble(codec, level)
        elif stamp != self.stamp:
            stamp_producer(data, *stamp)
        self.stamp = stamp
        return data

    def _assemble(self, codec: int, level: int | None) -> bytearray | memoryview:
        encoded = self.encoded
        data: bytearray | memoryview
        if encoded is None:
            payload = encode_records(self.keys, self.values, self.timestamps, self.headers)
            self.max_timestamp = max(self.timestamps)
            data = with_room_for_header(payload, codec, level)
        elif codec:
            data = with_room_for_header(encoded[HEADER_SIZE:], codec, level)
        else:
            data = encoded
        seal_batch(
            data,
            records_count=self.count,
            base_offset=0,
            last_offset_delta=self.count - 1,
            leader_epoch=-1,
            attributes=codec,
            base_timestamp=self.timestamps[0],
            max_timestamp=self.max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
        )
        self._drop_columns()  # they are in the bytes now
        return data

    def drop_records(self) -> None:
        """Free the records: the batch will not be sent again."""
        self.data = None
        self.queue = None
        self._drop_columns()

    def _drop_columns(self) -> None:
        self.encoded = None
        self.keys = self.headers = None
        self.values = []

    def split(self) -> list[Batch]:
        """Two batches with the halves of the records of this encoded batch, which take its place in the
        queue."""
        assert self.data is not None and self.count > 1, "only a sent batch of several records is split"
        records = list(iter_records(self.data))
        halves = (records[: self.count // 2], records[self.count // 2 :])
        parts = []
        for place, half in enumerate(halves):
            part = Batch(
                self.topic, self.partition, (*self.order, place), self.number, self.created, self.deadline
            )
            for record in half:
                part.add(record.key, record.value, record.timestamp, record.headers, wire_size_of(record))
            part.close()
            part.queue = self.queue
            part.last_error = self.last_error
            parts.append(part)
        return parts

    # ---- waiting

    def add_waiter(self, index: int, waiter: Waiter) -> None:
        """Call `waiter` once, when the record is done; at once if it is done already."""
        batch = self
        while True:
            moved = batch.moved
            if moved is not None:
                batch, index = moved[index]
                continue
            entry = (index, waiter)
            batch.waiters.append(entry)
            if batch.outcome is None and batch.moved is None:
                return
            # The batch was settled or moved meanwhile. The thread that takes the entry out of the list calls
            # the waiter.
            try:
                batch.waiters.remove(entry)
            except ValueError:
                return
            if batch.outcome is not None:
                batch.was_looked_at()
                waiter()
                return

    def drop_waiter(self, index: int, waiter: Waiter) -> bool:
        """Take a waiter back; returns whether it was there. A waiter that is being called, or moved, is
        called all the same."""
        batch = self
        while True:
            try:
                batch.waiters.remove((index, waiter))
                return True
            except ValueError:
                if batch.moved is None:
                    return False
            batch, index = batch.moved[index]

    def was_looked_at(self) -> None:
        """Note that somebody has asked for the outcome, or will be told it."""
        if self.notice is not None:
            self.notice.is_seen = True

    def take_waiters(self) -> list[tuple[int, Waiter]]:
        """Take all waiters out, in the order they were added; no other thread gets them."""
        waiters = self.waiters
        taken = []
        waiters.reverse()
        while waiters:
            try:
                taken.append(waiters.pop())
            except IndexError:  # the thread that had added the last waiter took it back
                break
        return taken

    def move(self, places: Sequence[tuple[Batch, int]]) -> None:
        """The records moved to `places`: move their waiters, too."""
        self.moved = places
        for index, waiter in self.take_waiters():
            self.add_waiter(index, waiter)


def wire_size_of(record: StoredRecord) -> int:
    """The most bytes that a record needs on the wire."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    return size + headers_size(record.headers) if record.headers else size


def headers_size(headers: Headers) -> int:
    """The most bytes that headers need on the wire; names are counted in UTF-8."""
    return sum(
        _HEADER_OVERHEAD_BYTES + len(name.encode("utf-8", NAME_ERRORS)) + (len(value) if value else 0)
        for name, value in headers
    )
