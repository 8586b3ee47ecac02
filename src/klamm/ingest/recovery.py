"""What of the noted blocks is in the topic: a broker remembers the producer that sent them. A core.

An idempotent producer numbers its records per partition, and a partition remembers the last number that it
has of each producer. Blocks are noted with the number of their first record before they are sent; a partition
takes a producer's records only in order. So one question per partition tells exactly how many records of
which block are written, without a trace of it in the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from klamm.records.batch import MAX_SEQUENCE


class Block(NamedTuple):
    """A run of records of one file on its way to one partition."""

    block_id: int
    file_id: int
    path: str
    first_byte: int
    end_byte: int
    records: int
    producer_id: int
    partition: int
    sequence: int
    """The producer's number of the first record, in that partition."""


class Remembered(NamedTuple):
    """What a partition remembers of a producer."""

    epoch: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A block of which the first `written` records are in the topic."""

    block: Block
    written: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be sent again, in order. `doubtful` blocks may be in the topic; nobody can tell."""

    unwritten: Sequence[Unwritten]
    doubtful: Sequence[Block]


def judge(blocks: Iterable[Block], remembered: Mapping[tuple[int, int], Remembered]) -> Verdict:
    """`remembered` is by partition and producer id. Blocks come in the order they were sent."""
    unwritten: list[Unwritten] = []
    doubtful: list[Block] = []
    began_at_zero: set[tuple[int, int]] = set()
    for block in blocks:
        place = (block.partition, block.producer_id)
        if block.sequence == 0:
            began_at_zero.add(place)
        state = remembered.get(place)
        if state is None:
            # A partition that got nothing of the producer does not know it. One that has forgotten it
            # (it does after a day without records) does not either: then earlier records were there.
            if place not in began_at_zero:
                doubtful.append(block)
            unwritten.append(Unwritten(block, 0))
        elif state.epoch != 0:
            # The producer had to number anew.
            doubtful.append(block)
            unwritten.append(Unwritten(block, 0))
        else:
            written = min(max(_distance(block.sequence, state.last_sequence) + 1, 0), block.records)
            if written < block.records:
                unwritten.append(Unwritten(block, written))
    return Verdict(unwritten, doubtful)


def next_sequence(sequence: int, records: int) -> int:
    """The number after so many records: MAX_SEQUENCE is followed by 0."""
    return (sequence + records) & MAX_SEQUENCE


def _distance(first: int, last: int) -> int:
    """How far `last` is behind `first`, which is less than half of all numbers; negative when before."""
    distance = (last - first) & MAX_SEQUENCE
    return distance - (MAX_SEQUENCE + 1) if distance > MAX_SEQUENCE >> 1 else distance
