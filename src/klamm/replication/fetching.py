"""Collecting the answer to a fetch, and waiting when there is too little of it.

`collect` walks the partitions that may have something to say and takes whole batches as file ranges; it
never blocks. What the page cache lacks raises `WouldBlock`, and the same walk is done again in a thread.

A `ParkedFetch` waits until enough bytes have arrived, something changed, or its time is up. It is woken by
the partitions themselves and looks again once per iteration of the loop, however many appends there were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.reply import Reply
from klamm.replication.fetch_sessions import FetchTarget, TargetSet
from klamm.replication.partition import Partition
from klamm.storage.log import FileSlice, WouldBlock

logger = logging.getLogger("klamm.replication")


class PartitionAnswer(NamedTuple):
    """The answer of a fetch for one partition."""

    target: FetchTarget
    error: KafkaError | None
    high_watermark: int
    log_start_offset: int
    records: FileSlice | None
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, its end offset) if the fetcher's log diverges from ours."""


class FetchResult:
    """What has been collected for one answer."""

    __slots__ = ("_max_bytes", "_max_files", "answers", "byte_count", "file_count", "must_answer")

    def __init__(self, max_bytes: int, max_files: int) -> None:
        """At most `max_bytes` (the first batch even if larger), in at most `max_files` ranges of files."""
        self._max_bytes = max_bytes
        self._max_files = max_files
        self.answers: list[PartitionAnswer] = []
        self.byte_count = 0
        self.file_count = 0
        self.must_answer = False
        """True if there is an error or a change that the client is told at once, whatever min_bytes is."""

    def collect(self, targets: Iterable[FetchTarget], *, may_block: bool) -> None:
        """Read what `targets` have."""
        for target in targets:
            left = self._max_bytes - self.byte_count if self.file_count < self._max_files else 0
            answer = _collect_one(target, left, self.byte_count == 0, may_block)
            self.answers.append(answer)
            if answer.error is not None or answer.diverging_epoch is not None:
                self.must_answer = True
            elif answer.records is not None:
                self.byte_count += answer.records.length
                self.file_count += 1


MAX_COLLECTED = 1_000
"""Ready partitions of a session that one answer looks at. The others keep their place in line."""


def ready_targets(fetch: TargetSet) -> tuple[FetchTarget, ...]:
    """Those that the next answer looks at. Only the later answers of a session may leave out some."""
    if fetch.is_incremental and len(fetch.ready) > MAX_COLLECTED:
        return tuple(islice(fetch.ready, MAX_COLLECTED))
    return tuple(fetch.ready)


def collect(
    targets: Iterable[FetchTarget], max_bytes: int, max_files: int, *, may_block: bool
) -> FetchResult:
    """Read what `targets` have into one answer."""
    result = FetchResult(max_bytes, max_files)
    result.collect(targets, may_block=may_block)
    return result


def _collect_one(
    target: FetchTarget, bytes_left: int, must_return_one: bool, may_block: bool
) -> PartitionAnswer:
    position = target.position
    partition = target.partition
    if partition is None:
        return PartitionAnswer(target, target.error, -1, -1, None)
    try:
        partition.check_leader_epoch(position.current_leader_epoch)
        diverging_epoch = _diverging_epoch(partition, position.last_fetched_epoch, position.fetch_offset)
        records = None
        if diverging_epoch is None and (bytes_left > 0 or must_return_one):
            records = partition.read(
                position.fetch_offset,
                min(position.max_bytes, bytes_left),
                must_return_one=must_return_one,
                may_block=may_block,
            )
    except KafkaError as error:
        return PartitionAnswer(target, error.as_result(), -1, -1, None)
    except OSError as error:
        return PartitionAnswer(target, _unreadable(partition, error), -1, -1, None)
    return PartitionAnswer(
        target, None, partition.high_watermark, partition.log.log_start_offset, records, diverging_epoch
    )


def _unreadable(partition: Partition, error: OSError) -> KafkaError:
    """The disk failed, or the partition was deleted while its files were being opened."""
    if not partition.is_offline:
        logger.error("%s-%d cannot be read: %s", partition.topic, partition.index, error)
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic}-{partition.index} cannot be read: {error}"
    )


def _diverging_epoch(partition: Partition, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.log.epoch_end_offset(last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic}-{partition.index} has no records of leader epoch {last_fetched_epoch}",
        )
    if epoch < last_fetched_epoch or end_offset < offset:
        return epoch, end_offset
    return None


def select_for_response(fetch: TargetSet, answers: Iterable[PartitionAnswer]) -> list[PartitionAnswer]:
    """Choose what goes into the response, and remember what the client has been told with it.

    An incremental answer leaves out partitions with nothing new. A partition that gave records moves to the
    end of the line, so that a full response does not starve the others; one without records leaves the line
    until it has some.
    """
    told: list[PartitionAnswer] = []
    for answer in answers:
        target = answer.target
        has_news = (
            answer.error is not None
            or answer.records is not None
            or answer.diverging_epoch is not None
            or answer.high_watermark != target.high_watermark_told
            or answer.log_start_offset != target.log_start_offset_told
        )
        fetch.ready.pop(target, None)
        had_something = (
            answer.error is not None or answer.records is not None or answer.diverging_epoch is not None
        )
        if had_something or target.partition is None or _may_read_more(target, target.partition):
            fetch.ready[target] = None
        if has_news or not fetch.is_incremental:
            target.high_watermark_told = answer.high_watermark
            target.log_start_offset_told = answer.log_start_offset
            told.append(answer)
    return told


def _may_read_more(target: FetchTarget, partition: Partition) -> bool:
    """True when the byte limit, and not the end of the log, kept a partition from giving records."""
    return target.position.fetch_offset < partition.high_watermark


class ParkedFetch:
    """A fetch whose answer is too small yet. It completes its reply, or ends with the reply's connection."""

    __slots__ = (
        "_attempt",
        "_attempt_from_disk",
        "_fetch",
        "_is_over",
        "_is_scheduled",
        "_loop",
        "_min_bytes",
        "_on_end",
        "_reply",
        "_timer",
        "_woken_bytes",
    )

    def __init__(
        self,
        fetch: TargetSet,
        reply: Reply,
        attempt: Callable[[bool], Any],
        attempt_from_disk: Callable[[], Coroutine[Any, Any, Any]],
        *,
        min_bytes: int,
        bytes_so_far: int,
        max_wait_ms: int,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """`attempt(is_last)` makes the response or returns None when it is still too small; where it would
        block, `attempt_from_disk` makes it in a thread. `on_end` is called when the fetch is over."""
        self._fetch = fetch
        self._attempt = attempt
        self._attempt_from_disk = attempt_from_disk
        self._min_bytes = min_bytes
        self._woken_bytes = bytes_so_far
        self._is_scheduled = False
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._reply = reply
        self._on_end = on_end
        reply.on_drop = self._end
        self._timer = self._loop.call_later(max_wait_ms / 1000, self._look, True)
        fetch.wake = self._wake
        fetch.watch()

    def _wake(self, byte_count: int) -> None:
        """More bytes arrived; 0 means that a partition itself changed, which the client must hear of."""
        self._woken_bytes += byte_count
        if not self._is_scheduled and (self._woken_bytes >= self._min_bytes or byte_count == 0):
            self._is_scheduled = True
            self._loop.call_soon(self._look, False)

    def _look(self, is_last: bool) -> None:
        self._is_scheduled = False
        if not self._reply.is_open:
            return
        try:
            response = self._attempt(is_last)
        except WouldBlock:
            self._stop_listening()
            self._loop.create_task(self._look_on_disk())
            return
        except Exception as error:
            self._end()
            self._reply.fail(error)
            return
        if response is not None:
            self._end()
            self._reply.complete(response)

    async def _look_on_disk(self) -> None:
        try:
            response = await self._attempt_from_disk()
        except Exception as error:
            self._end()
            self._reply.fail(error)
            return
        self._end()
        self._reply.complete(response)

    def _stop_listening(self) -> None:
        self._timer.cancel()
        self._fetch.wake = None

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._stop_listening()
            self._fetch.on_request_done()
            if self._on_end is not None:
                self._on_end()
