"""Writes what a follower has fetched: in pieces on the event loop, or in a thread.

The event loop writes as it does for produces. To hand megabytes to a thread takes longer: the loop goes on
receiving meanwhile, and both want the interpreter after each call of the kernel. A thread writes what the
loop must not wait for: truncations, logs that are flushed by themselves, what is large or has very many
batches, and everything while writes are slow: the kernel makes writers wait for a disk that is behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from klamm.model.errors import KafkaError
from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.records.batch import HEADER_SIZE, parse_header
from klamm.replication.followed import FollowedPartition
from klamm.replication.follower import Action, Do
from klamm.replication.leader_session import Key

logger = logging.getLogger("klamm.replication")

WRITTEN_AT_ONCE_BYTES = 4 * 1024 * 1024
"""The event loop writes no more without a pause: two milliseconds, if memory is there."""

MOST_BATCHES_AT_ONCE = 1_000
"""Nor more batches, by the size of the first one: each takes five microseconds to check and to index."""

SLOW_WRITE_S = 0.03
SLOW_WRITE_CPU_S = 0.02
"""A piece that took longer, or more CPU time, was slow."""

SLOW_FOR_S = 1.0
"""How long a thread writes after a slow piece, whoever wrote that."""


class Slowness:
    """Whether writes are slow at the moment; all fetchers of a broker share it."""

    __slots__ = ("_until_s", "now_s", "used_cpu_s")

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        used_cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self.now_s = now_s
        self.used_cpu_s = used_cpu_s
        self._until_s = 0.0

    def __bool__(self) -> bool:
        return self.now_s() < self._until_s

    def note_write(self, began_s: float, began_cpu_s: float) -> None:
        """A piece was written that was begun when the two clocks showed that."""
        now_s = self.now_s()
        if now_s - began_s > SLOW_WRITE_S or self.used_cpu_s() - began_cpu_s > SLOW_WRITE_CPU_S:
            self._until_s = now_s + SLOW_FOR_S


class FetchedWrite(NamedTuple):
    """What is to be done to one partition after an answer."""

    partition: FollowedPartition
    action: Action
    data: PartitionData

    @property
    def size(self) -> int:
        return len(self.data.records) if self.data.records else 0

    @property
    def is_plain(self) -> bool:
        """False if it takes long by its nature."""
        return self.action.do is Do.APPEND and not self.partition.writes_slowly

    @property
    def needs_thread(self) -> bool:
        return not self.is_plain or self.size > WRITTEN_AT_ONCE_BYTES or self._has_many_batches

    @property
    def _has_many_batches(self) -> bool:
        """By the size of the first one."""
        records = self.data.records
        if not records or len(records) < HEADER_SIZE:
            return False
        return len(records) > MOST_BATCHES_AT_ONCE * max(parse_header(records).batch_length, 1)


RunInThread = Callable[[Callable[[], None]], Awaitable[None]]
OnWritten = Callable[[Sequence[FetchedWrite], set[Key]], None]
"""Is told what was written, and of which partitions that failed."""


class FetchedWriter:
    """Writes one answer at a time."""

    def __init__(self, run_in_thread: RunInThread, slowness: Slowness) -> None:
        self._run_in_thread = run_in_thread
        self._slowness = slowness
        self._writing: asyncio.Future[None] | None = None
        """Pending while an answer is written that takes more than one piece, or a thread."""

    async def write(self, writes: Sequence[FetchedWrite], on_written: OnWritten) -> None:
        """`on_written` is called as soon as each piece is written, also if the caller is cancelled."""
        pieces = list(_pieces(writes))
        if len(pieces) == 1 and not self._needs_thread(pieces[0]):
            on_written(pieces[0], self._write_at_once(pieces[0]))
        elif pieces:
            self._writing = asyncio.ensure_future(self._write_pieces(pieces, on_written))
            await asyncio.shield(self._writing)

    async def until_written(self) -> None:
        """Returns when nothing is being written."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))  # whoever writes hears of its errors

    async def _write_pieces(self, pieces: list[list[FetchedWrite]], on_written: OnWritten) -> None:
        try:
            for piece in pieces:
                if self._needs_thread(piece):
                    on_written(piece, await self._write_in_thread(piece))
                else:
                    on_written(piece, self._write_at_once(piece))
                    await asyncio.sleep(0)
        finally:
            self._writing = None

    def _needs_thread(self, piece: list[FetchedWrite]) -> bool:
        return bool(self._slowness) or any(write.needs_thread for write in piece)

    def _write_at_once(self, piece: list[FetchedWrite]) -> set[Key]:
        slowness = self._slowness
        began_s, began_cpu_s = slowness.now_s(), slowness.used_cpu_s()
        failed = _write(piece)
        if all(write.is_plain for write in piece):
            slowness.note_write(began_s, began_cpu_s)
        return failed

    async def _write_in_thread(self, piece: list[FetchedWrite]) -> set[Key]:
        failed = {write.partition.key for write in piece}
        try:
            await self._run_in_thread(lambda: failed.intersection_update(self._write_at_once(piece)))
        except Exception:
            logger.exception("records fetched from the leader cannot be written")
        return failed


def _pieces(writes: Sequence[FetchedWrite]) -> Iterator[list[FetchedWrite]]:
    """In order, each of at most WRITTEN_AT_ONCE_BYTES, or of one write that is larger."""
    piece: list[FetchedWrite] = []
    byte_count = 0
    for write in writes:
        if piece and byte_count + write.size > WRITTEN_AT_ONCE_BYTES:
            yield piece
            piece, byte_count = [], 0
        piece.append(write)
        byte_count += write.size
    if piece:
        yield piece


def _write(piece: list[FetchedWrite]) -> set[Key]:
    """Change the logs; returns the partitions whose log could not be changed."""
    return {
        write.partition.key
        for write in piece
        if not succeeds(write.partition.write_fetched, write, "written")
    }


def succeeds(do: Callable[[Action, PartitionData], None], write: FetchedWrite, done: str) -> bool:
    """Do one step of what is to be done to a partition. An error is logged, with `done` as the name of it."""
    try:
        do(write.action, write.data)
    except (KafkaError, OSError) as error:
        logger.error("records fetched from the leader cannot be %s: %s", done, error)
        return False
    except Exception:
        logger.exception("records fetched of partition %s cannot be %s", write.partition.key, done)
        return False
    return True
