"""The newest batches of partitions, kept in memory: read once, then sent to everyone who reads them live.

When a batch is appended, all consumers that wait at the end of the partition ask for the same range in the
same turn of the event loop. The first of them reads the range, the others share its bytes. Only short
ranges that end at the end of what may be read are kept: other ranges are hardly ever asked for twice.

Invariant: what is kept is what a read would give now. An entry counts only while the partition has the same
end and the same leader epoch, and its log was not cut, as a follower's may be within an epoch: nothing else
changes what lies below the end.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from klamm.replication.partition import Partition
from klamm.storage.log import FileSlice
from klamm.storage.segments.segment import INLINE_BYTES

MAX_ENTRIES = 64
"""Ranges that are kept, of at most 64 KB each: 4 MB. Consumers that read live ask for a range within
milliseconds, so a few suffice."""


class _Entry(NamedTuple):
    partition: ref[Partition]
    """Weak: a deleted partition must not be kept, with the files of its log."""
    end_offset: int
    leader_epoch: int
    cut_count: int
    records: bytes | bytearray


class NewestBatches:
    def __init__(self) -> None:
        # In the order in which they were read; the oldest is forgotten first.
        self._entries: dict[tuple[int, int, int, bool], _Entry] = {}

    def read(
        self, partition: Partition, offset: int, max_bytes: int, *, to_log_end: bool, must_return_one: bool
    ) -> FileSlice | bytes | bytearray | None:
        """As `Partition.read`, which must not block."""
        end_offset = partition.log.log_end_offset if to_log_end else partition.high_watermark
        if offset == end_offset and not partition.is_offline:
            return None
        key = (id(partition), offset, max_bytes, must_return_one)
        entry = self._entries.get(key)
        if (
            entry is not None
            and entry.end_offset == end_offset
            and entry.leader_epoch == partition.leader_epoch
            and entry.cut_count == partition.cut_count
            and entry.partition() is partition
            and offset >= partition.log.log_start_offset
            and not partition.is_offline
        ):
            return entry.records
        records = partition.read(
            offset, max_bytes, to_log_end=to_log_end, must_return_one=must_return_one, may_block=False
        )
        if records is None or len(records) >= min(max_bytes, INLINE_BYTES):
            return records
        # It was not cut: it ends where the log, or a segment of it, ends.
        self._entries.pop(key, None)
        if len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        # The bytes only: a kept range must not keep the file of a deleted segment open.
        entry = self._entries[key] = _Entry(
            ref(partition), end_offset, partition.leader_epoch, partition.cut_count, records.read()
        )
        return entry.records
