"""What a log remembers of idempotent producers: for each, its epoch and its last five batches.

With this a batch sent twice is recognised and a gap is refused. An entry is immutable and replaced as a
whole after its batch is written: a write that fails leaves no trace, and a snapshot is a shallow copy.

A snapshot file holds the last batch of each producer, in Kafka's format; recovery loads the newest and
replays the headers that follow it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import CONTROL_FLAG, MAX_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader
from klamm.records.crc import crc32c
from klamm.storage.files import read_small_file, write_atomically

WINDOW_BATCHES = 5
"""How many batches a producer may have on the way, by protocol."""
NO_SEQUENCE = -1
NO_OFFSET = -1
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class ProducedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


_NO_BATCH = ProducedBatch(NO_SEQUENCE, NO_SEQUENCE, NO_OFFSET, 0, 0)


class ProducerEntry(NamedTuple):
    producer_epoch: int
    batches: tuple[ProducedBatch, ...]
    """The newest last; empty after a marker that opened a new epoch."""
    timestamp: int
    """When the producer last wrote, for its expiry."""
    coordinator_epoch: int = -1
    first_open_offset: int = NO_OFFSET
    """Where its open transaction starts."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class CorruptSnapshot(ValueError):
    """A snapshot file that is not whole."""


class ProducerStates:
    __slots__ = ("entries",)

    def __init__(self, entries: dict[int, ProducerEntry] | None = None) -> None:
        self.entries: dict[int, ProducerEntry] = {} if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries)

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Check a batch's sequence: returns the earlier batch if this one repeats it, raises on a gap."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None  # unknown, or expired: any sequence may come first
        sequence = header.base_sequence
        if header.producer_epoch != entry.producer_epoch:
            _check_epoch_start(header, entry)
            return None
        batches = entry.batches
        expected = (batches[-1].last_sequence + 1) & MAX_SEQUENCE if batches else 0
        last_sequence = (sequence + header.last_offset_delta) & MAX_SEQUENCE
        for batch in batches:
            if batch[0] == sequence and batch[1] == last_sequence:
                return batch
        if sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {sequence} in its epoch "
                f"{entry.producer_epoch}, expected {expected}; its last batches have the sequences "
                f"{_window(entry)}",
            )
        return None

    def record(self, header: BatchHeader, last_offset: int, timestamp: int) -> None:
        """The batch is in the log, ending at `last_offset`."""
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is not None and header.producer_epoch < entry.producer_epoch:
            return  # only in a replay: the state is newer already
        if header.attributes & CONTROL_FLAG:
            self._record_marker(header, entry, timestamp)
            return
        delta = header.last_offset_delta
        sequence = header.base_sequence
        # tuple.__new__ builds a NamedTuple in a third of the time: this runs for every batch.
        batch: ProducedBatch = tuple.__new__(
            ProducedBatch, (sequence, (sequence + delta) & MAX_SEQUENCE, last_offset, delta, timestamp)
        )
        coordinator_epoch, first_open_offset = -1, NO_OFFSET
        batches: tuple[ProducedBatch, ...] = (batch,)
        if entry is not None:
            epoch, earlier, _, coordinator_epoch, first_open_offset = entry
            if epoch == header.producer_epoch:
                batches = (*earlier[1 - WINDOW_BATCHES :], batch)
        if first_open_offset == NO_OFFSET and header.attributes & TRANSACTIONAL_FLAG:
            first_open_offset = last_offset - delta
        self.entries[producer_id] = tuple.__new__(
            ProducerEntry, (header.producer_epoch, batches, timestamp, coordinator_epoch, first_open_offset)
        )

    def _record_marker(self, header: BatchHeader, entry: ProducerEntry | None, timestamp: int) -> None:
        """A commit or abort marker ends the transaction; in a new epoch it also ends the old sequences."""
        batches: tuple[ProducedBatch, ...] = ()
        coordinator_epoch = -1
        if entry is not None:
            coordinator_epoch = entry.coordinator_epoch
            if entry.producer_epoch == header.producer_epoch:
                batches = entry.batches
        self.entries[header.producer_id] = ProducerEntry(
            header.producer_epoch, batches, timestamp, coordinator_epoch
        )

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have not written for `expiration_ms` and have no transaction open."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.timestamp >= expiration_ms and entry.first_open_offset == NO_OFFSET
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def copy(self) -> ProducerStates:
        return ProducerStates(dict(self.entries))

    def write_snapshot(self, path: str) -> None:
        body = bytearray(_SNAPSHOT_COUNT.pack(len(self.entries)))
        for producer_id, entry in self.entries.items():
            last = entry.batches[-1] if entry.batches else _NO_BATCH
            body += _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.first_open_offset,
            )
        write_atomically(path, _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(body)) + body, sync=False)

    @classmethod
    def read_snapshot(cls, path: str) -> ProducerStates:
        data = read_small_file(path) or b""
        header_size = _SNAPSHOT_HEADER.size + _SNAPSHOT_COUNT.size
        if len(data) < header_size:
            raise CorruptSnapshot(f"{path} is too short for a producer snapshot")
        version, crc = _SNAPSHOT_HEADER.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptSnapshot(f"{path} has version {version}, not {_SNAPSHOT_VERSION}")
        if crc32c(data[_SNAPSHOT_HEADER.size :]) != crc:
            raise CorruptSnapshot(f"{path} does not match its CRC")
        (count,) = _SNAPSHOT_COUNT.unpack_from(data, _SNAPSHOT_HEADER.size)
        if len(data) != header_size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptSnapshot(f"{path} states {count} producers, but its size does not match")
        entries = {}
        for fields in _SNAPSHOT_ENTRY.iter_unpack(data[header_size:]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_open = fields
            batches: tuple[ProducedBatch, ...] = ()
            if sequence != NO_SEQUENCE:
                base_sequence = (sequence - delta) & MAX_SEQUENCE
                batches = (ProducedBatch(base_sequence, sequence, offset, delta, timestamp),)
            entries[producer_id] = ProducerEntry(epoch, batches, timestamp, coordinator_epoch, first_open)
        return cls(entries)


def _check_epoch_start(header: BatchHeader, entry: ProducerEntry) -> None:
    """The first batch of another epoch: of a later one, and it starts at sequence 0."""
    if header.producer_epoch < entry.producer_epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} sent epoch {header.producer_epoch}, "
            f"but epoch {entry.producer_epoch} has written here since",
        )
    if header.base_sequence != 0:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} starts its epoch {header.producer_epoch} with sequence "
            f"{header.base_sequence}, not 0; its last batches, of epoch {entry.producer_epoch}, have the "
            f"sequences {_window(entry)}",
        )


def _window(entry: ProducerEntry) -> str:
    return ", ".join(f"{batch.base_sequence}..{batch.last_sequence}" for batch in entry.batches) or "none"
