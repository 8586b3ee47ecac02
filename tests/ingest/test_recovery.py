"""How many records of noted blocks are in the topic, given what its partitions remember."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.ingest.recovery import Block, Remembered, Unwritten, compare, next_sequence
from klamm.records.batch import MAX_SEQUENCE

OURS = 1000


def block(number: int, sequence: int, records: int, partition: int = 0, producer: int = OURS) -> Block:
    return Block(number, 1, "a.log", 0, 10, records, producer, partition, sequence)


def left(blocks: list[Block], remembered: dict[tuple[int, int], Remembered]) -> list[tuple[int, int]]:
    found = compare(blocks, remembered)
    assert found.doubtful == []
    return [(one.block.block_id, one.written) for one in found.unwritten]


@given(
    st.integers(0, MAX_SEQUENCE),
    st.lists(st.integers(1, 50), min_size=1, max_size=8),
    st.data(),
)
def test_a_partition_has_the_first_records_and_the_rest_is_left(
    first: int, sizes: list[int], data: st.DataObject
) -> None:
    """Numbers are those of a producer that sent `sizes`, of which the partition took the first `taken`."""
    taken = data.draw(st.integers(0, sum(sizes)))
    blocks, sequence = [], first
    for number, size in enumerate(sizes):
        blocks.append(block(number, sequence, size))
        sequence = next_sequence(sequence, size)
    last = (first + taken - 1) & MAX_SEQUENCE
    missing, before = [], 0
    for number, size in enumerate(sizes):
        written = min(max(taken - before, 0), size)
        before += size
        if written < size:
            missing.append((number, written))
    assert left(blocks, {(0, OURS): Remembered(0, last)}) == missing


def test_partitions_and_producers_are_told_apart() -> None:
    blocks = [block(1, 5, 10), block(2, 5, 10, partition=1), block(3, 5, 10, producer=7)]
    remembered = {(0, OURS): Remembered(0, 14), (1, OURS): Remembered(0, 8), (0, 7): Remembered(0, 4)}
    assert left(blocks, remembered) == [(2, 4), (3, 0)]


def test_a_partition_that_never_got_anything_does_not_know_the_producer() -> None:
    assert left([block(1, 0, 10), block(2, 10, 10)], {}) == [(1, 0), (2, 0)]


def test_a_partition_that_has_forgotten_the_producer_cannot_tell() -> None:
    blocks = [block(1, 30, 10), block(2, 40, 10)]
    found = compare(blocks, {})
    assert found.doubtful == blocks
    assert found.unwritten == [Unwritten(one, 0) for one in blocks]


def test_a_producer_that_numbered_anew_cannot_be_followed() -> None:
    blocks = [block(1, 30, 10)]
    found = compare(blocks, {(0, OURS): Remembered(1, 99)})
    assert found.doubtful == blocks
    assert found.unwritten == [Unwritten(blocks[0], 0)]
