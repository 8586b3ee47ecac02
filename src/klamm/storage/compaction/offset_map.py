"""Pass one of a compaction: for each key of the dirty section, the offset of its last record.

The dirty section is what was written since the last compaction. A map that is full ends before the section
does; the next compaction goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from klamm.records.reader import RecordSpan
from klamm.storage.compaction.record_scan import BatchOnDisk, open_batch

SHORT_KEY_BYTES = 47
"""Keys up to this length stand for themselves in the map; the bytes object of one takes at most 80 bytes."""
DIGEST_BYTES = 16
MAP_ENTRY_BYTES = 192
"""What one key may cost the map: 80 for the key, 32 for the offset, up to 80 for its place in the dict,
which doubles when it is full."""

KeyIdentity: TypeAlias = bytes | int


class OffsetMap(NamedTuple):
    offsets: dict[KeyIdentity, int]
    end_offset: int
    """Records from here on are not in the map, because the section ended or the map was full."""


def key_identity(key: bytes) -> KeyIdentity:
    """What stands for a key in the map: bounded in size. The digest is a number, so it equals no key."""
    if len(key) <= SHORT_KEY_BYTES:
        return key
    return int.from_bytes(blake2b(key, digest_size=DIGEST_BYTES).digest(), "big")


def build_offset_map(batches: Iterable[BatchOnDisk], first_dirty_offset: int, limit_bytes: int) -> OffsetMap:
    """Pass one, over the batches that hold offsets from `first_dirty_offset` on."""
    capacity = max(1, limit_bytes // MAP_ENTRY_BYTES)
    offsets: dict[KeyIdentity, int] = {}
    end_offset = first_dirty_offset
    for header, data in batches:
        opened = open_batch(header, data)
        if opened is not None:
            full_at = _map_records(offsets, header.base_offset, opened.records, first_dirty_offset, capacity)
            if full_at is not None:
                return OffsetMap(offsets, full_at)
        end_offset = max(end_offset, header.last_offset + 1)
    return OffsetMap(offsets, end_offset)


def _map_records(
    offsets: dict[KeyIdentity, int],
    base_offset: int,
    records: list[RecordSpan],
    first_dirty_offset: int,
    capacity: int,
) -> int | None:
    """Returns the first offset for which the map had no room; None if all found room."""
    may_fill_up = len(offsets) + len(records) > capacity
    for _, _, offset_delta, _, key, _ in records:
        offset = base_offset + offset_delta
        if key is None or offset < first_dirty_offset:
            continue
        identity = key if len(key) <= SHORT_KEY_BYTES else key_identity(key)
        if may_fill_up and len(offsets) >= capacity and identity not in offsets:
            return offset
        offsets[identity] = offset
    return None
