"""One assigned partition as a consumer sees it: its places in the log, and what is buffered of it. A core.

Guarded by the lock of the `Positions` it belongs to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from klamm.client.consumer.lease import Place
from klamm.client.consumer.start import StartPolicy
from klamm.client.errors import ClientError, CorruptRecords
from klamm.client.network.metadata import TopicMetadata
from klamm.client.results import Record, TopicPartition
from klamm.model.errors import KafkaError
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.records.batch import parse_header
from klamm.records.fetched import FetchedRecords, data_batches

UNKNOWN = -1
"""An offset or an epoch that is not known."""


class Need(Enum):
    """What a partition waits for before it can be fetched."""

    NOTHING = "nothing"
    COMMITTED = "the group's committed offset"
    RESET = "an offset to start at"
    VALIDATION = "whether a new leader still has what was read"


class BufferedFetch:
    """The records that one fetch brought of one partition, and how far they have been decoded.

    It stays in its partition's queue until the lease of its last record has ended, because what is not
    finished may be put back.
    """

    __slots__ = (
        "_batches",
        "_begin",
        "at",
        "batch",
        "decoded",
        "end_epoch",
        "end_offset",
        "failure",
        "fetched",
        "is_done",
    )

    def __init__(self, fetched: FetchedRecords, end_offset: int, end_epoch: int) -> None:
        self.fetched = fetched
        self._begin = fetched.from_offset
        self.end_offset = end_offset
        self.end_epoch = end_epoch
        self.decoded: list[Record] = []
        """Records of a decoded batch; those before index `at` have been handed out."""
        self.at = 0
        self.is_done = False
        self.failure: KafkaError | None = None
        self._batches: Iterator[memoryview] | None = None
        self.batch: memoryview | None = None
        """The next batch to decode."""

    @property
    def size(self) -> int:
        return len(self.fetched.data)

    def look_ahead(self) -> None:
        """Find the next batch. At the end, sets `is_done`; if the bytes are not a valid batch, `failure`."""
        if self._batches is None:
            self._batches = data_batches(self.fetched._replace(from_offset=self._begin))
        try:
            self.batch = next(self._batches, None)
        except KafkaError as error:
            self.batch = None
            self.failure = error
        else:
            self.is_done = self.batch is None

    def is_started(self) -> bool:
        return self._batches is not None

    def skip(self) -> None:
        """All records of this fetch are handed out, as columns."""
        self.decoded = []
        self.at = 0
        self.is_done = True

    def put_back(self, records: Sequence[Record]) -> None:
        """Hand these records out again, before records that were decoded after them."""
        self.decoded = [*records, *self.decoded[self.at :]]
        self.at = 0
        self.is_done = False

    def rewind(self, offset: int) -> None:
        """Begin again at `offset`: decoded records are dropped."""
        self._begin = max(offset, self.fetched.from_offset)
        self.decoded = []
        self.at = 0
        self.is_done = False
        self.failure = None
        self._batches = None
        self.batch = None


class PartitionState:
    """The state of one assigned partition."""

    __slots__ = (
        "buffered_bytes",
        "committed",
        "epoch",
        "error",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "fetching",
        "high_watermark",
        "hurried_beside",
        "is_drained_first",
        "is_paused",
        "last_stable_offset",
        "leader_epoch",
        "led_by",
        "log_start_offset",
        "need",
        "out_of_range_offset",
        "partition",
        "position",
        "preferred_replica",
        "preferred_until",
        "queue",
        "reset_to",
        "retry_at",
        "served_at",
        "topic_id",
        "version",
    )

    def __init__(self, partition: TopicPartition, version: int) -> None:
        self.partition = partition
        self.version = version
        self.need = Need.COMMITTED
        self.reset_to: StartPolicy | None = None
        """Where to start with Need.RESET; None is the consumer's own policy."""
        self.out_of_range_offset = UNKNOWN
        """The offset that the broker did not have, if that is why the partition needs a reset."""
        self.position = UNKNOWN
        """The next offset to lease. Without a lease, everything before it is finished."""
        self.epoch = UNKNOWN
        """The leader epoch of what lies before `position`."""
        self.committed = UNKNOWN
        """The committed offset, as far as this consumer knows it."""
        self.queue: deque[BufferedFetch] = deque()
        self.buffered_bytes = 0
        self.is_paused = False
        self.error: ClientError | None = None
        """To be raised by poll when all that is buffered is handed out."""
        # What the fetch planner keeps here.
        self.fetch_offset = UNKNOWN
        self.fetch_epoch = UNKNOWN
        self.leader_epoch = UNKNOWN
        self.led_by: tuple[TopicMetadata | None, int] = (None, UNKNOWN)
        """The leader's node id, and the topic's metadata that name it; newer metadata make it invalid."""
        self.topic_id: bytes = ZERO_TOPIC_ID
        self.fetching: Any = None
        """The plan of the fetch that is under way for this partition."""
        self.hurried_beside: Any = None
        """The fetch that waited at the broker when an express fetch found nothing of this partition."""
        self.high_watermark = UNKNOWN
        self.last_stable_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.preferred_replica = UNKNOWN
        self.preferred_until = 0.0
        self.failures = 0
        self.retry_at = 0.0
        self.is_drained_first = False
        """True if nothing is fetched until the buffer is empty and the lease has ended, because the next
        fetch offset may be reset."""
        self.served_at = 0
        """When records last came, as a count of answers: a fetch names the partitions first that wait
        longest."""

    def __repr__(self) -> str:
        return f"<{self.partition} at {self.position}, fetches {self.fetch_offset}, needs {self.need.value}>"

    @property
    def place(self) -> Place:
        return Place(self.position, self.epoch)

    def head(self) -> BufferedFetch | None:
        """The fetch to hand out from."""
        for fetch in self.queue:
            if not fetch.is_done:
                return fetch
        return None

    def sweep(self) -> None:
        """Drop fetches that are done; nothing of them can be put back, since there is no lease."""
        while self.queue and self.queue[0].is_done:
            self.queue.popleft()

    def drop_buffer(self) -> int:
        """Forget what is buffered; returns how many bytes it was."""
        dropped = self.buffered_bytes
        self.queue.clear()
        self.buffered_bytes = 0
        return dropped

    def failure(self) -> ClientError | None:
        """The error that a poll must raise, if all records before it are handed out."""
        head = self.head()
        if head is None:
            return self.error
        if head.failure is not None and head.at == len(head.decoded):
            return self._unreadable(head)
        return None

    def _unreadable(self, head: BufferedFetch) -> ClientError:
        failure = head.failure
        assert failure is not None
        what = f"{self.partition} cannot be read at offset {self.position}: {failure}"
        after = _offset_behind(head, self.position)
        advice = f"Skip it with seek({self.partition!r}, {after})"
        return CorruptRecords(what, code=failure.code, advice=advice)


def _offset_behind(head: BufferedFetch, position: int) -> int:
    """The offset after the unreadable batch at `position`, if its header is plausible."""
    try:
        batches = data_batches(head.fetched._replace(from_offset=position, check_crcs=False))
        batch = head.batch if head.batch is not None else next(batches, None)
        if batch is not None:
            return max(position, parse_header(batch).last_offset) + 1
    except KafkaError:
        pass
    return position + 1
