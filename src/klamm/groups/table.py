"""The durable state of the groups of one __consumer_offsets partition: what its records add up to.

`replay` is the only way to change it, when the log is loaded and when a record has just been committed, so
that a restart cannot come to another state. A compacted log, where only the last record of each key is left,
adds up to the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from klamm.groups.events import GroupSnapshot
from klamm.groups.offsets import NO_TIMESTAMP, OffsetTable
from klamm.groups.records import (
    GroupChange,
    KeyValue,
    OffsetChange,
    group_tombstone,
    offset_tombstone,
    parse_record,
)


class GroupEntry:
    __slots__ = ("offsets", "snapshot")

    def __init__(self) -> None:
        self.snapshot: GroupSnapshot | None = None
        """None for a group that has offsets but never had members."""
        self.offsets = OffsetTable()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GroupEntry)
            and self.snapshot == other.snapshot
            and self.offsets == other.offsets
        )

    @property
    def state_timestamp_ms(self) -> int:
        return NO_TIMESTAMP if self.snapshot is None else self.snapshot.state_timestamp_ms


class GroupTable:
    def __init__(self) -> None:
        self._entries: dict[str, GroupEntry] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupTable) and self._entries == other._entries

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def get(self, group_id: str) -> GroupEntry | None:
        return self._entries.get(group_id)

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        change = parse_record(key, value)
        if change is None:
            return
        entry = self._entries.setdefault(change.group_id, GroupEntry())
        match change:
            case OffsetChange(_, topic, partition, None):
                entry.offsets.remove(topic, partition)
            case OffsetChange(_, topic, partition, committed) if committed is not None:
                entry.offsets.put(topic, partition, committed)
            case GroupChange(_, snapshot):
                entry.snapshot = snapshot
        if entry.snapshot is None and not entry.offsets:
            del self._entries[change.group_id]

    def deletion_of(self, group_id: str, most: int) -> tuple[list[KeyValue], bool]:
        """Up to `most` tombstones of a group's offsets and, last, of the group; True if these are all."""
        entry = self._entries.get(group_id, GroupEntry())
        tombstones = [offset_tombstone(group_id, *place) for place, _ in islice(entry.offsets, most)]
        if len(tombstones) == most:
            return tombstones, False
        return [*tombstones, group_tombstone(group_id)], True
