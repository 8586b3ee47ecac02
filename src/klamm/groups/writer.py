"""Writes to one __consumer_offsets partition, one batch at a time, in the order they were asked for.

What is asked for while a batch is on its way to the replicas travels together in the next one, so that a
busy partition writes few large batches and an idle one adds no delay. A batch is replayed once it is
committed, and only then are its writers told.

Some records depend on all that was written before: tombstones for the offsets a group has. They are given as
a function, which is called when everything before it has been replayed, and are written alone.

A batch is made, written and replayed in one go, so it has few records, and other work of the event loop gets
a turn before the next batch. Callers with very many records ask for `MOST_AT_ONCE` of them at a time.

What is in memory never differs from what is committed, whatever happens to a batch:
* Refused: nothing was appended, nothing changes.
* Not committed in time: its writers are told so, but the batch is in the log and may still be committed. It
  stays under way, and nothing else is appended, until it is committed and replayed or the epoch is over.
* Nobody will tell whether it is committed: `on_lost` is called, and the partition must be loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from klamm.groups.log_port import LedPartition
from klamm.groups.records import KeyValue
from klamm.groups.timers import TimerHandle, Timers
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
"""What a failed append means to a group's client: codes that make it look for its coordinator again.
REQUEST_TIMED_OUT stands for a batch that is not committed after offsets.commit.timeout.ms."""

BuildRecords = Callable[[], list[KeyValue]]


class _Write(NamedTuple):
    records: list[KeyValue]
    build: BuildRecords | None
    deadline_ms: int
    outcome: asyncio.Future[ErrorCode]


class PartitionWriter:
    def __init__(
        self,
        led: LedPartition,
        replay: Callable[[bytes, bytes | None], None],
        on_lost: Callable[[], None],
        timers: Timers,
        timeout_ms: int,
    ) -> None:
        self._led = led
        self._replay = replay
        self._on_lost = on_lost
        self._timers = timers
        self._timeout_ms = timeout_ms
        self._queue: deque[_Write] = deque()
        self._under_way: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        """Set while writes wait, at the deadline of the oldest one as last looked at."""
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
            deadline_ms = self._timers.now_ms() + self._timeout_ms
            self._queue.append(_Write(records, build, deadline_ms, outcome))
            if self._task is None:
                self._task = asyncio.ensure_future(self._drain())
        return outcome

    def close(self) -> None:
        """Replay nothing more, and answer all writes with NOT_COORDINATOR: the leader epoch is over."""
        self._is_closed = True
        for write in (*self._under_way, *self._queue):
            _set_outcome(write, ErrorCode.NOT_COORDINATOR)
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    async def _drain(self) -> None:
        is_lost = False
        self._set_timer()
        try:
            while self._queue and not is_lost:
                self._under_way = self._take_batch()
                is_lost = await self._write_batch()
                self._under_way = []
                if self._queue:
                    await asyncio.sleep(0)
        finally:
            self._task = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if is_lost:
            self._on_lost()

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

    async def _write_batch(self) -> bool:
        """Write and replay what is under way, and tell the writers. True if the outcome cannot be known."""
        records = [record for write in self._under_way for record in write.records]
        code = ErrorCode.NONE
        may_be_appended = False
        try:
            if records:
                committed = self._led.append(records)
                may_be_appended = True
                await committed
                code = self._replay_all(records)
        except KafkaError as error:
            _LOGGER.warning("writing to __consumer_offsets-%d failed: %s", self._led.partition, error)
            code = _CODE_FOR_CLIENTS.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)
        except Exception:
            _LOGGER.exception("writing to __consumer_offsets-%d failed unexpectedly", self._led.partition)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            may_be_appended = True
        for write in self._under_way:
            _set_outcome(write, code)
        return may_be_appended and code is not ErrorCode.NONE

    def _replay_all(self, records: list[KeyValue]) -> ErrorCode:
        """Not after the epoch is over: another leader may have written since."""
        if not self._led.is_led:
            return ErrorCode.NOT_COORDINATOR
        for key, value in records:
            self._replay(key, value)
        return ErrorCode.NONE

    # Time

    def _set_timer(self) -> None:
        waiting = next((each for each in self._under_way if not each.outcome.done()), None)
        if waiting is None and self._queue:
            waiting = self._queue[0]
        self._timer = None if waiting is None else self._timers.call_at(waiting.deadline_ms, self._on_timer)

    def _on_timer(self) -> None:
        """Tell the writers that have waited for too long. What has not been appended yet never will be."""
        now_ms = self._timers.now_ms()
        late = [write for write in self._under_way if write.deadline_ms <= now_ms]
        while self._queue and self._queue[0].deadline_ms <= now_ms:
            late.append(self._queue.popleft())
        for write in late:
            _set_outcome(write, _CODE_FOR_CLIENTS[ErrorCode.REQUEST_TIMED_OUT])
        self._set_timer()


def _set_outcome(write: _Write, code: ErrorCode) -> None:
    if not write.outcome.done():
        write.outcome.set_result(code)


def _size(write: _Write) -> int:
    return sum(len(key) + len(value or b"") for key, value in write.records)
