"""A simulated disk file, and a partition's log on it: what was written, and what of that was fsynced.

The death of a process loses nothing that was written. A loss of power keeps what was fsynced; of what was
written since then it keeps a part, with a torn end that recovery cuts off. A truncation that was not fsynced
may be undone.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class SimulatedBatch(NamedTuple):
    """A batch of one record, or of what a group coordinator writes at once."""

    leader_epoch: int
    producer_id: int
    sequence: int
    group_records: tuple[tuple[bytes, bytes | None], ...] = ()
    """What a group coordinator wrote: keys and values."""


TORN = SimulatedBatch(-1, -1, -1)


class SimulatedFile:
    def __init__(self) -> None:
        self.records: list[SimulatedBatch] = []
        self.synced_count = 0
        self._cut_since_sync: tuple[int, list[SimulatedBatch]] | None = None

    def truncate(self, count: int) -> None:
        if count < self.synced_count:
            if self._cut_since_sync is None or count < self._cut_since_sync[0]:
                above = self._cut_since_sync[1] if self._cut_since_sync else []
                top = self._cut_since_sync[0] if self._cut_since_sync else self.synced_count
                self._cut_since_sync = (count, [*self.records[count:top], *above])
            self.synced_count = count
        del self.records[count:]

    def sync(self) -> None:
        self.synced_count = len(self.records)
        self._cut_since_sync = None

    def lose_power(self, chance: random.Random) -> None:
        if self._cut_since_sync is not None and chance.random() < 0.5:
            count, above = self._cut_since_sync
            self.records[count:] = above
        elif len(self.records) > self.synced_count:
            # Mostly nothing that was not fsynced survives: the kernel writes back every half minute or so.
            kept = (
                self.synced_count
                if chance.random() < 0.7
                else chance.randint(self.synced_count, len(self.records))
            )
            del self.records[kept:]
            if chance.random() < 0.5:
                self.records.append(TORN)
        self._cut_since_sync = None

    def recover(self) -> None:
        """Cut the torn end; what is left has been read, and is synced by that."""
        while self.records and self.records[-1] is TORN:
            self.records.pop()
        self.sync()


class SimulatedLog:
    """The port of `Follower` and `Leader` to a log, in memory. Offsets start at 0 and nothing is deleted."""

    log_start_offset = 0

    def __init__(self, file: SimulatedFile) -> None:
        file.recover()
        self.file = file
        self.records = file.records
        self.high_watermark = 0
        self._epochs: list[tuple[int, int]] = []
        self._last_by_producer: dict[int, tuple[int, int]] = {}
        """Producer id → (last sequence, its offset)."""
        self._read_records()

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self._epochs[-1][0] if self._epochs else -1

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        epochs = self._epochs
        if not epochs or epoch < 0 or epoch > epochs[-1][0]:
            return -1, -1
        end_offset = len(self.records)
        for known, start_offset in reversed(epochs):
            if known <= epoch:
                return known, end_offset
            end_offset = start_offset
        return epoch, end_offset

    def assign_epoch(self, epoch: int) -> None:
        """A leader of `epoch` writes from here on."""
        end_offset = len(self.records)
        while self._epochs and self._epochs[-1][1] >= end_offset:
            self._epochs.pop()
        self._epochs.append((epoch, end_offset))

    def append(self, record: SimulatedBatch) -> int:
        offset = len(self.records)
        if record.leader_epoch > self.latest_epoch:
            self.assign_epoch(record.leader_epoch)
        self.records.append(record)
        self._last_by_producer[record.producer_id] = (record.sequence, offset)
        return offset

    def last_of_producer(self, producer_id: int) -> tuple[int, int]:
        """(sequence, offset) of the producer's last record; (-1, -1) if there is none."""
        return self._last_by_producer.get(producer_id, (-1, -1))

    def truncate_to(self, offset: int) -> None:
        self.file.truncate(offset)
        self._epochs = [entry for entry in self._epochs if entry[1] < offset]
        self._read_producers()

    def _read_records(self) -> None:
        for offset, record in enumerate(self.records):
            if record.leader_epoch > self.latest_epoch:
                self._epochs.append((record.leader_epoch, offset))
        self._read_producers()

    def _read_producers(self) -> None:
        self._last_by_producer = {
            record.producer_id: (record.sequence, offset) for offset, record in enumerate(self.records)
        }
