"""Who writes what was fetched: the event loop, piece by piece, or a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.replication import fetched_writes
from klamm.replication.fetched_writes import WRITTEN_AT_ONCE_BYTES, FetchedWrite, FetchedWriter
from klamm.replication.follower import Action, Do
from klamm.replication.leader_session import Key
from tests.replication.played_leader import Followed

HALF = bytes(WRITTEN_AT_ONCE_BYTES // 2)


class Written:
    """Which threads wrote, and what was told of it."""

    def __init__(self) -> None:
        self.writer = FetchedWriter(asyncio.to_thread)
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


async def test_a_thread_writes_for_a_while_after_a_slow_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel makes writers wait for a disk that is behind: the event loop waits once."""
    monkeypatch.setattr(fetched_writes, "SLOW_FOR_S", 0.3)
    written = Written()
    slow = written.append_to(b"a", b"1")
    slow.partition.write = lambda: time.sleep(2 * fetched_writes.SLOW_WRITE_S)  # type: ignore[attr-defined]
    await written.write(slow)
    await written.write(written.append_to(b"b", b"1"))
    await asyncio.sleep(0.31)
    await written.write(written.append_to(b"c", b"1"))
    assert written.by_thread == {b"b": True, b"c": False}
