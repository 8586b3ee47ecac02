"""Writes to one __consumer_offsets partition, one batch at a time, in the order they were asked for.

What is asked for while a batch is on its way to the replicas travels together in the next one, so that a
busy partition writes few large batches and an idle one adds no delay. A batch is replayed once it is
committed, and only then are its writers told.

Some records depend on all that was written before: tombstones for the offsets a group has. They are given as
a function, which is called when everything before it has been replayed, and are written alone.

A batch is made, written and replayed in one go, so it has few records, and other work of the event loop gets
a turn before the next batch. Callers with very many records ask for `MOST_AT_ONCE` of them at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from klamm.groups.records import KeyValue
from klamm.model.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

MAX_QUEUED_WRITES = 20_000
"""If more writes wait, the log does not accept any: further ones are refused."""
MAX_BATCH_BYTES = 512 * 1024
"""Well below the usual max.message.bytes. A single write may be larger and then travels alone."""
MOST_AT_ONCE = 500
"""Records of one batch, unless a single write has more, and offsets that a request commits or deletes in one
go: some ten milliseconds of work."""

_CODE_FOR_CLIENTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""What a failed append means to a group's client: codes that make it look for its coordinator again."""

BuildRecords = Callable[[], list[KeyValue]]


class _Write(NamedTuple):
    records: list[KeyValue]
    build: BuildRecords | None
    outcome: asyncio.Future[ErrorCode]


class PartitionWriter:
    def __init__(
        self,
        append: Callable[[list[KeyValue]], Awaitable[None]],
        replay: Callable[[bytes, bytes | None], None],
    ) -> None:
        self._append = append
        self._replay = replay
        self._queue: deque[_Write] = deque()
        self._under_way: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def write(self, records: list[KeyValue]) -> asyncio.Future[ErrorCode]:
        """Done with NONE when the records are committed and replayed, else with what to tell the client."""
        return self._enqueue(records, None)

    def write_built(self, build: BuildRecords) -> asyncio.Future[ErrorCode]:
        """As `write`; a KafkaError that `build` raises becomes the outcome."""
        return self._enqueue([], build)

    async def write_in_pieces(self, build: Callable[[], tuple[list[KeyValue], bool]]) -> ErrorCode:
        """Write what `build` returns, piece by piece, each as `write_built` does. `build` also says whether
        its piece is the last one. Returns the first outcome that is not NONE, or else NONE."""
        is_finished = False

        def build_piece() -> list[KeyValue]:
            nonlocal is_finished
            records, is_finished = build()
            return records

        code = ErrorCode.NONE
        while code is ErrorCode.NONE and not is_finished:
            code = await self.write_built(build_piece)
        return code

    def _enqueue(self, records: list[KeyValue], build: BuildRecords | None) -> asyncio.Future[ErrorCode]:
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            outcome.set_result(ErrorCode.NOT_COORDINATOR)
        elif len(self._queue) >= MAX_QUEUED_WRITES:
            outcome.set_result(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._queue.append(_Write(records, build, outcome))
            if self._task is None:
                self._task = asyncio.ensure_future(self._drain())
        return outcome

    def close(self) -> None:
        """Replay nothing more, and answer all writes with NOT_COORDINATOR: another broker coordinates now."""
        self._is_closed = True
        for write in (*self._under_way, *self._queue):
            _set_outcome(write, ErrorCode.NOT_COORDINATOR)
        self._queue.clear()

    async def _drain(self) -> None:
        try:
            while self._queue and not self._is_closed:
                self._under_way = self._take_batch()
                code = await self._commit([record for write in self._under_way for record in write.records])
                for write in self._under_way:
                    _set_outcome(write, code)
                self._under_way = []
                if self._queue:
                    await asyncio.sleep(0)
        finally:
            self._task = None

    def _take_batch(self) -> list[_Write]:
        first = self._queue.popleft()
        if first.build is not None:
            try:
                return [first._replace(records=first.build())]
            except KafkaError as error:
                _set_outcome(first, error.code)
            except Exception:
                _LOGGER.exception("working out records for __consumer_offsets failed")
                _set_outcome(first, ErrorCode.UNKNOWN_SERVER_ERROR)
            return []
        batch = [first]
        size = _size(first)
        count = len(first.records)
        while self._queue and self._queue[0].build is None:
            size += _size(self._queue[0])
            count += len(self._queue[0].records)
            if size > MAX_BATCH_BYTES or count > MOST_AT_ONCE:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _commit(self, records: list[KeyValue]) -> ErrorCode:
        if not records:
            return ErrorCode.NONE
        try:
            await self._append(records)
            if self._is_closed:
                return ErrorCode.NOT_COORDINATOR
            for key, value in records:
                self._replay(key, value)
        except KafkaError as error:
            _LOGGER.warning("writing to __consumer_offsets failed: %s", error)
            return _CODE_FOR_CLIENTS.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)
        except Exception:
            _LOGGER.exception("writing to __consumer_offsets failed with an unexpected error")
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE


def _set_outcome(write: _Write, code: ErrorCode) -> None:
    if not write.outcome.done():
        write.outcome.set_result(code)


def _size(write: _Write) -> int:
    return sum(len(key) + len(value or b"") for key, value in write.records)
