"""Which partition a record goes to. A core: chance comes from outside.

- With a key: `murmur2`, exactly as the Java client chooses, or `crc32`, as librdkafka does by default. Both
  count all partitions of the topic, whether they have a leader or not: a key never moves because a broker is
  down.
- Without a key (`StickyPartition`): all records go to one partition until it got `batch.size` bytes and its
  batch is closed, then to the next. The next is the partition with the fewest waiting batches, of those that
  have a leader; among equals they take turns. So a slow broker gets fewer records, and batches are large.
- Or a function of the user chooses. The number that it returns is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import unpack_from
from typing import TypeAlias
from zlib import crc32

from klamm.client.errors import ClientMisused

Partitioner: TypeAlias = Callable[[str, bytes | None, int], int | None]
"""A user's function: takes topic, key and number of partitions, returns the partition, or None for our
choice."""

KeyPartitioner: TypeAlias = Callable[[bytes, int], int | None]
"""Takes a key and the number of partitions, returns the partition; None for a key that counts as none."""

CACHED_KEYS = 16_384
"""How many hashes of keys are kept, since keys come again and hashing in Python is slow."""

CACHED_KEY_BYTES = 128
"""Hashes of longer keys are not kept: the keys would take too much memory."""

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Java's `Utils.murmur2`, as an unsigned number of 32 bits."""
    length = len(key)
    words = length >> 2
    state = _SEED ^ length
    for word in unpack_from(f"<{words}I", key):
        word = word * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ (word ^ word >> 24) * _MULTIPLIER & _MASK
    rest = key[words << 2 :]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


_cached_murmur2 = lru_cache(CACHED_KEYS)(murmur2)


def murmur2_partition(key: bytes, partitions: int) -> int:
    """The partition that the Java client chooses for a key, the empty one included."""
    hashed = _cached_murmur2(key) if len(key) <= CACHED_KEY_BYTES else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


def crc32_partition(key: bytes, partitions: int) -> int | None:
    """The partition of librdkafka's `consistent_random`, for which an empty key is like none."""
    return crc32(key) % partitions if key else None


KEY_PARTITIONERS: dict[str, KeyPartitioner] = {"murmur2": murmur2_partition, "crc32": crc32_partition}
"""By the values of the setting `partitioner`."""


def ask_user(partitioner: Partitioner, topic: str, key: bytes | None, partitions: int) -> int | None:
    """The partition that the user's function chose. Raises ClientMisused if that is not a valid one."""
    try:
        chosen = partitioner(topic, key, partitions)
    except Exception as error:
        raise ClientMisused(
            f"the partitioner failed for a record to {topic}: {type(error).__name__}: {error}",
            advice="It must return a partition for every key",
        ) from error
    if chosen is None:
        return None
    if not isinstance(chosen, int) or isinstance(chosen, bool) or not 0 <= chosen < partitions:
        raise ClientMisused(
            f"the partitioner chose {chosen!r} for a record to {topic}, which has {partitions} partitions",
            advice=f"It must return a number from 0 to {partitions - 1}, or None",
        )
    return chosen


class StickyPartition:
    """The partition that records without a key go to at the moment, for one topic."""

    __slots__ = ("_switch_bytes", "current", "sent_bytes")

    def __init__(self, switch_bytes: int, current: int) -> None:
        self._switch_bytes = max(switch_bytes, 1)
        self.current = current
        self.sent_bytes = 0
        """The bytes that went to `current` since it was chosen; the accumulator counts them."""

    def batch_closed(self) -> bool:
        """A batch of `current` was closed. Returns whether it is time to switch to another partition.

        Not if the batch was closed early because its linger time was over: switching then would spread few
        records over many partitions, and make batches smaller still.
        """
        return self.sent_bytes >= self._switch_bytes

    def switch(self, has_leader: Sequence[bool], waiting_batches: Sequence[int]) -> None:
        """Switch to the next partition. If no partition has a leader, all of them take turns."""
        count = len(has_leader)
        any_leader = True in has_leader
        best, fewest = -1, 0
        for step in range(1, count + 1):
            index = (self.current + step) % count
            if any_leader and not has_leader[index]:
                continue
            if best < 0 or waiting_batches[index] < fewest:
                best, fewest = index, waiting_batches[index]
        self.current = best
        self.sent_bytes = 0
