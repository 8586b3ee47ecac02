from __future__ import annotations

import pytest

from klamm.server.receiving import KEPT_BYTES, LargeBuffers, ReceiveMemoryExceeded


def test_a_buffer_is_large_enough_and_is_used_again() -> None:
    buffers = LargeBuffers()
    buffer = buffers.take(100_000)
    assert len(buffer) >= 100_000
    buffers.give_back(buffer, 0)
    assert buffers.take(90_000) is buffer
    assert buffers.take(90_000) is not buffer


def test_the_limit_counts_what_arrived() -> None:
    buffers = LargeBuffers(limit_bytes=1000)
    taken = [buffers.take(100_000_000) for _ in range(20)]
    buffers.count_received(600)
    with pytest.raises(ReceiveMemoryExceeded, match="600 of 1000"):
        buffers.count_received(401)
    buffers.count_received(400)
    buffers.give_back(taken.pop(), 600)
    buffers.count_received(600)


def test_no_more_is_kept_than_the_limit() -> None:
    buffers = LargeBuffers()
    size = KEPT_BYTES // 2
    three = [buffers.take(size) for _ in range(3)]
    for buffer in three:
        buffers.give_back(buffer, 0)
    again = [buffers.take(size) for _ in range(3)]
    assert sum(any(buffer is old for old in three) for buffer in again) == 2


def test_memory_that_cannot_be_had_is_said_so() -> None:
    with pytest.raises(ReceiveMemoryExceeded):
        LargeBuffers().take(1 << 60)
