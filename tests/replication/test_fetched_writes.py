"""Who writes what was fetched: the event loop, piece by piece, or a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import cast

import pytest

from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.replication.fetched_writes import (
    MOST_BATCHES_AT_ONCE,
    SLOW_FOR_S,
    SLOW_WRITE_S,
    WRITTEN_AT_ONCE_BYTES,
    FetchedWrite,
    FetchedWriter,
    Slowness,
)
from klamm.replication.follower import Action, Do
from klamm.replication.leader_session import Key
from tests.replication.played_leader import Followed, one_batch

HALF = one_batch(WRITTEN_AT_ONCE_BYTES // 2)


class Written:
    """Which threads wrote, and what was told of it. Its clock stands still but for slow writes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slowness = Slowness(lambda: self.now_s, lambda: 0.0)
        self.writer = FetchedWriter(asyncio.to_thread, self.slowness)
        self.by_thread: dict[bytes, bool] = {}
        self.pieces: list[str] = []

    def append_to(self, name: bytes, records: bytes, do: Do = Do.APPEND) -> FetchedWrite:
        partition = Followed(name)

        def write() -> None:
            self.by_thread[name] = threading.current_thread() is not threading.main_thread()

        partition.write = write
        return FetchedWrite(partition, Action(do), PartitionData(records=records))

    def on_written(self, piece: Sequence[FetchedWrite], failed: set[Key]) -> None:
        assert not failed
        self.pieces.append("".join(chr(write.partition.key[0][0]) for write in piece))

    async def write(self, *writes: FetchedWrite) -> None:
        await self.writer.write(writes, self.on_written)


async def test_much_is_written_by_the_loop_in_pieces_with_pauses() -> None:
    written = Written()
    seen: list[list[str]] = []

    async def look() -> None:
        while len(written.pieces) < 3:
            seen.append(list(written.pieces))
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await written.write(*(written.append_to(name, HALF) for name in (b"a", b"b", b"c", b"d", b"e")))
    await looking
    assert written.pieces == ["ab", "cd", "e"]
    assert not any(written.by_thread.values())
    assert ["ab"] in seen and ["ab", "cd"] in seen, "something else goes on between the pieces"


async def test_a_thread_writes_what_is_large_by_itself_and_truncates() -> None:
    written = Written()
    await written.write(
        written.append_to(b"a", HALF + HALF + b"1"),
        written.append_to(b"b", HALF + HALF),
        written.append_to(b"c", HALF, Do.TRUNCATE),
    )
    assert written.pieces == ["a", "b", "c"]
    assert written.by_thread == {b"a": True, b"b": False, b"c": True}


async def test_a_thread_writes_very_many_batches() -> None:
    """Each is checked and indexed: 20,000 of 170 bytes took 95 ms."""
    written = Written()
    few = one_batch(170).ljust(158 * MOST_BATCHES_AT_ONCE)
    await written.write(written.append_to(b"a", few), written.append_to(b"b", few + b"1"))
    await written.write(written.append_to(b"c", few))
    assert written.by_thread == {b"a": True, b"b": True, b"c": False}, "a and b are one piece"


def slow_write(written: Written, name: bytes) -> FetchedWrite:
    slow = written.append_to(name, b"1")
    note = slow.partition.write  # type: ignore[attr-defined]

    def write() -> None:
        note()
        written.now_s += 2 * SLOW_WRITE_S

    slow.partition.write = write  # type: ignore[attr-defined]
    return slow


async def test_a_thread_writes_while_writes_are_slow_for_all_fetchers() -> None:
    """The kernel makes writers wait for a disk that is behind: the event loop waits once."""
    written, other = Written(), Written()
    other.writer = FetchedWriter(asyncio.to_thread, written.slowness)
    await written.write(slow_write(written, b"a"))
    written.now_s += 0.9 * SLOW_FOR_S
    await other.write(slow_write(written, b"b"))
    written.now_s += 0.9 * SLOW_FOR_S
    await written.write(written.append_to(b"c", b"1"))
    written.now_s += SLOW_FOR_S
    await written.write(written.append_to(b"d", b"1"))
    assert written.by_thread == {b"a": False, b"b": True, b"c": True, b"d": False}


async def test_what_takes_long_by_its_nature_does_not_make_all_others_wait_for_threads() -> None:
    written = Written()
    flushed = slow_write(written, b"a")
    flushed.partition.writes_slowly = True  # type: ignore[misc]
    await written.write(flushed)
    await written.write(written.append_to(b"b", b"1"))
    assert written.by_thread == {b"a": True, b"b": False}


async def test_an_error_of_what_is_written_is_not_that_of_who_waits_for_it() -> None:
    written = Written()
    may_go_on = threading.Event()
    write = written.append_to(b"a", HALF + HALF + b"1")
    write.partition.write = lambda: cast(None, may_go_on.wait(30))  # type: ignore[attr-defined]

    def fail(piece: Sequence[FetchedWrite], failed: set[Key]) -> None:
        raise RuntimeError("settling")

    writing = asyncio.ensure_future(written.writer.write([write], fail))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(written.writer.until_written())
    await asyncio.sleep(0)
    may_go_on.set()
    await waiting
    with pytest.raises(RuntimeError):
        await writing
    await written.writer.until_written()
