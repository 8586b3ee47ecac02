"""Finds out after a crash which noted blocks are in the topic, from the producer state of partitions. A core.

An idempotent producer numbers its records per partition, and a partition remembers the last sequence number
of each producer. A block is noted with the sequence number of its first record before it is sent, and a
partition accepts a producer's records only in order. One DescribeProducers request per partition therefore
tells how many records of each block are written, without any mark in the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from klamm.records.batch import MAX_SEQUENCE


class Block(NamedTuple):
    """Consecutive records of one file that are sent to one partition."""

    block_id: int
    file_id: int
    path: str
    first_byte: int
    end_byte: int
    records: int
    producer_id: int
    partition: int
    sequence: int
    """The sequence number of the first record in that partition."""


class Remembered(NamedTuple):
    """A partition's state of a producer."""

    epoch: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A block of which the first `written` records are in the topic."""

    block: Block
    written: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The blocks to send again, in order. It is not known whether `doubtful` ones are in the topic."""

    unwritten: Sequence[Unwritten]
    doubtful: Sequence[Block]


def compare(blocks: Iterable[Block], remembered: Mapping[tuple[int, int], Remembered]) -> Recovered:
    """Compare noted blocks, in the order they were sent, with the state of partitions.

    `remembered` is by partition and producer id.
    """
    unwritten: list[Unwritten] = []
    doubtful: list[Block] = []
    began_at_zero: set[tuple[int, int]] = set()
    for block in blocks:
        place = (block.partition, block.producer_id)
        if block.sequence == 0:
            began_at_zero.add(place)
        state = remembered.get(place)
        if state is None:
            # A partition does not know a producer that has never written to it, or that it has forgotten
            # after a day without records. In the second case earlier records were written.
            if place not in began_at_zero:
                doubtful.append(block)
            unwritten.append(Unwritten(block, 0))
        elif state.epoch != 0:
            # The producer has begun its sequence numbers again.
            doubtful.append(block)
            unwritten.append(Unwritten(block, 0))
        else:
            written = min(max(_distance(block.sequence, state.last_sequence) + 1, 0), block.records)
            if written < block.records:
                unwritten.append(Unwritten(block, written))
    return Recovered(unwritten, doubtful)


def next_sequence(sequence: int, records: int) -> int:
    """The sequence number after `records` records: MAX_SEQUENCE is followed by 0."""
    return (sequence + records) & MAX_SEQUENCE


def _distance(first: int, last: int) -> int:
    """`last - first` with wrap-around, assuming that they are less than half of all numbers apart."""
    distance = (last - first) & MAX_SEQUENCE
    return distance - (MAX_SEQUENCE + 1) if distance > MAX_SEQUENCE >> 1 else distance
