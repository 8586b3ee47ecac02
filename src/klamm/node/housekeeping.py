"""What a broker does now and then: retention, flushing by time, checkpoints, forgetting old producers.

Each task is a loop with an interval of its own. Logs are gone through one by one in a worker thread, so that
neither the event loop nor requests for blocking work wait long for a round over thousands of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from klamm.apis.broker import Clock
from klamm.config.loading import BrokerConfig
from klamm.model.errors import KafkaError
from klamm.replication.partition import Partition
from klamm.replication.partitions import Partitions
from klamm.storage.log import Log
from klamm.storage.log_dirs import LogDirs

logger = logging.getLogger("klamm.node")

DELETED_FILES_INTERVAL_MS = 5_000
UNMADE_LOGS_INTERVAL_MS = 5_000
ROOM_INTERVAL_MS = 5_000
LONGEST_SLEEP_S = 3600.0
"""Settings allow intervals of centuries, timers of the event loop do not."""

_NEVER_MS = 2**62

_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Errors of a full or broken disk: logged as a warning without a traceback."""


class Housekeeping:
    def __init__(
        self, partitions: Partitions, log_dirs: LogDirs, clock: Clock, config: Callable[[], BrokerConfig]
    ) -> None:
        self._partitions = partitions
        self._log_dirs = log_dirs
        self._clock = clock
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for key, task in (
            ("log.retention.check.interval.ms", self.delete_expired),
            ("log.flush.offset.checkpoint.interval.ms", self.write_checkpoints),
            ("log.flush.start.offset.checkpoint.interval.ms", self._write_log_starts),
            ("replica.high.watermark.checkpoint.interval.ms", self._write_high_watermarks),
            ("log.flush.scheduler.interval.ms", self.flush_due),
            ("producer.id.expiration.check.interval.ms", self._expire_producers),
        ):
            self._repeat(lambda key=key: self._config().int_(key), task)  # type: ignore[misc]
        self._repeat(lambda: DELETED_FILES_INTERVAL_MS, self._remove_deleted_files)
        self._repeat(lambda: UNMADE_LOGS_INTERVAL_MS, self._partitions.make_unmade)
        self._repeat(lambda: ROOM_INTERVAL_MS, self._partitions.full_disks.look_for_room)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _repeat(self, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        async def loop() -> None:
            waited_s = 0.0
            while True:
                interval_s = interval_ms() / 1000
                sleep_s = min(interval_s - waited_s, LONGEST_SLEEP_S)
                await asyncio.sleep(sleep_s)
                waited_s += sleep_s
                if waited_s >= interval_s:
                    waited_s = 0.0
                    try:
                        await work()
                    except Exception as error:
                        what = work.__name__.strip("_").replace("_", " ")
                        said = "housekeeping (%s) failed: %s; it is tried again in %g s"
                        if _is_of_the_disk(error):
                            logger.warning(said, what, error, interval_s)
                        else:
                            logger.exception(said, what, error, interval_s)

        self._tasks.append(asyncio.get_running_loop().create_task(loop()))

    # ---- the tasks

    async def delete_expired(self) -> None:
        """Retention by time and size, and segments that lie below the log's start; all below the high
        watermark only.

        The active segment of a log that nobody writes to is rolled first when it is old enough: only then
        can it be deleted or compacted.
        """
        now_ms = self._clock.now_ms()
        for partition in self._online():
            if not partition.log.may_expire:  # among thousands of partitions most are empty
                continue
            with _one_failure_is_not_all(partition):
                deleted = await self._partitions.run_in_thread(
                    _roll_and_delete, partition.log, now_ms, partition.high_watermark
                )
                if deleted:
                    logger.info("retention deleted %d segments of %s", deleted, partition.topic_partition)

    async def flush_due(self) -> None:
        """Flush the logs whose flush.ms has passed."""
        now_ms = self._clock.now_ms()
        for partition in self._online():
            if partition.log.config.flush_ms < _NEVER_MS and partition.log.needs_flush(now_ms):
                with _one_failure_is_not_all(partition):
                    await self._partitions.flusher.flushed(partition.log)

    async def write_checkpoints(self) -> None:
        """Note down where recovery would begin, where logs start, and the high watermarks."""
        await self._partitions.run_in_thread(self._log_dirs.write_checkpoints)
        await self._write_high_watermarks()

    async def _write_log_starts(self) -> None:
        await self._partitions.run_in_thread(self._log_dirs.write_log_start_checkpoints)

    async def _write_high_watermarks(self) -> None:
        high_watermarks = {
            partition.topic_partition: partition.high_watermark for partition in self._partitions
        }
        await self._partitions.run_in_thread(self._log_dirs.write_high_watermarks, high_watermarks)

    async def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._config().int_("producer.id.expiration.ms")
        for partition in self._online():
            partition.log.expire_producers(now_ms, expiration_ms)

    async def _remove_deleted_files(self) -> None:
        now_ms = self._clock.now_ms()
        for partition in self._partitions:
            if partition.log.has_deleted_files:
                with _one_failure_is_not_all(partition):
                    await self._partitions.run_in_thread(partition.log.remove_deleted_files, now_ms)

    def _online(self) -> list[Partition]:
        return [partition for partition in self._partitions if not partition.is_offline]


def _roll_and_delete(log: Log, now_ms: int, deletable_before: int) -> int:
    log.maybe_roll(now_ms)
    return log.delete_expired(now_ms, deletable_before)


@contextmanager
def _one_failure_is_not_all(partition: Partition) -> Iterator[None]:
    """Log a failure of one partition and go on with the others."""
    try:
        yield
    except (OSError, KafkaError) as error:
        if not partition.is_offline:
            level = logging.WARNING if _is_of_the_disk(error) else logging.ERROR
            logger.log(level, "housekeeping of %s failed: %s", partition.topic_partition, error)


def _is_of_the_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            return True
        error = error.__cause__
    return False
