"""How a claim hands out the records of its partition, and what of them is finished. A core.

A record is finished when the next is asked for, or when the worker says so (`done`); of a batch, all of it.
When a claim is over, what is finished stays so, and everything else, the record in work included, is put
back: the next owner of the partition, or the next session, gets it again.

A reader has one worker. Ending it (`end`) may come from anywhere, and holds from the next record on.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import length_hint

from klamm.client.consumer.hand_out import HandOut
from klamm.client.consumer.partition_state import Reading
from klamm.client.consumer.positions import Positions
from klamm.client.results import CommittedOffset, Record, TopicPartition


class ClaimReader:
    """Reads one partition in runs of at most `limit` records."""

    __slots__ = (
        "_done_offset",
        "_is_batch",
        "_limit",
        "_positions",
        "_reading",
        "_records",
        "is_ended",
        "partition",
    )

    def __init__(self, positions: Positions, records: HandOut, partition: TopicPartition, limit: int) -> None:
        self.partition = partition
        self.is_ended = False
        """Nothing more is handed out; the record in work may be finished."""
        self._positions = positions
        self._records = records
        self._limit = limit
        self._reading: Reading | None = None
        self._is_batch = False
        self._done_offset = -1

    @property
    def is_busy(self) -> bool:
        """Whether something that was handed out is not finished."""
        return self._reading is not None

    @property
    def in_work(self) -> object:
        """What is being worked on; it is another object as soon as the worker comes back for more."""
        reading = self._reading
        return None if reading is None else reading.cursor or reading

    def next_at_hand(self) -> Record | None:
        """The next record of the run at hand; None when there is none, or the claim is over."""
        reading = self._reading
        if reading is None or reading.is_interrupted:
            return None
        record = next(reading.iterator, None)
        if record is not None:
            reading.cursor = record
        return record

    def read(self) -> int:
        """Finish what was handed out, and have another run at hand: its length, 0 when nothing is there.

        Raises the error of the partition, if it has one.
        """
        self.finish()
        if self.is_ended:
            return 0
        self._reading = self._records.read_from(self.partition, self._limit)
        self._is_batch = False
        return 0 if self._reading is None else len(self._reading.records)

    def take(self, limit: int | None) -> list[Record]:
        """Finish what was handed out, and hand out several at once."""
        self.finish()
        if self.is_ended:
            return []
        self._reading = self._records.read_from(self.partition, limit or self._limit)
        if self._reading is None:
            return []
        self._is_batch = True
        self._reading.iterator = iter(())
        return self._reading.records

    def has_news(self) -> bool:
        """Whether asking would bring something: records, an error, or the end."""
        return self.is_ended or self._records.has_news_of(self.partition)

    def done(self, record: Record) -> None:
        """This record, and all before it, are finished although the next was not asked for."""
        self._done_offset = max(self._done_offset, record.offset)

    def finished(self) -> CommittedOffset | None:
        """Where the finished part ends, if anything was finished since the last commit."""
        reading = self._reading
        kept = self._finished_count()
        if reading is not None and kept:
            last = reading.records[kept - 1]
            return CommittedOffset(last.offset + 1, leader_epoch=last.leader_epoch)
        return self._positions.committable().get(self.partition)

    def end(self) -> None:
        self.is_ended = True
        reading = self._reading
        if reading is not None:
            reading.is_interrupted = True

    def finish(self) -> None:
        """The worker came back: what it was handed is finished, what it has not seen is put back."""
        reading, self._reading = self._reading, None
        if reading is not None:
            self._records.release(reading, self._handed_count(reading))

    def settle(self) -> None:
        """The worker will not come back: what it has not finished is put back."""
        kept = self._finished_count()
        reading, self._reading = self._reading, None
        if reading is not None:
            self._records.release(reading, kept)

    def _handed_count(self, reading: Reading) -> int:
        return len(reading.records) - length_hint(reading.iterator)

    def _finished_count(self) -> int:
        """How many records of the run at hand are finished while the worker has not come back."""
        reading = self._reading
        if reading is None:
            return 0
        handed = self._handed_count(reading)
        finished = 0 if self._is_batch else max(handed - 1, 0)
        if self._done_offset >= reading.records[0].offset:
            said = bisect_right(reading.records, self._done_offset, key=lambda record: record.offset)
            finished = max(finished, min(said, handed))
        return finished
