"""Moves replicas of this broker from one log directory to another, in the background, one after the other.

A replica is copied in steps, each in a thread, and served all the while; when the copy has caught up, the log
goes on in it (storage/log_dirs). Every move has its turn: a replica that is written to faster than it is
copied does not hold up the others. A move that fails is called off, and its replica stays where it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.records.batch import CorruptBatch
from klamm.replication.partitions import Partitions
from klamm.replication.throttling import Throttle
from klamm.storage.files import LogDirFailure
from klamm.storage.log_dirs import LogDirs

logger = logging.getLogger("klamm.replication")

P = ParamSpec("P")
T = TypeVar("T")


class LogDirMoves:
    def __init__(self, partitions: Partitions, log_dirs: LogDirs, monotonic_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._log_dirs = log_dirs
        self._monotonic_ms = monotonic_ms
        self.throttle = Throttle()
        self._moving: dict[TopicPartition, None] = {}
        """In the order of their turns."""
        self._task: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()

    async def resume(self) -> None:
        """Go on with the moves that were under way when the broker stopped."""
        for topic_partition, (_, copy) in self._log_dirs.futures.items():
            partition = self._partitions.find(*topic_partition)
            is_of_topic = partition is not None and copy.topic_id in (partition.topic_id, None)
            if not is_of_topic or (copy.topic_id is None and copy.has_files):
                await self._call_off(topic_partition)
            else:
                self._start(topic_partition)

    async def move(self, topic_partition: TopicPartition, path: str) -> None:
        """Begin to move a replica to the log directory `path`. A move of it to elsewhere is called off, and
        that is all if the replica is in `path`. If it is not on this broker, it will be made there later."""
        target = self._log_dirs.directory_at(path)
        async with self._asking:
            try:
                self._partitions.get(*topic_partition).check_online()
            except KafkaError as error:
                if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    raise
                self._log_dirs.prefer(topic_partition, target)
                raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(error)) from error
            if topic_partition in target.futures:
                return
            await self._call_off(topic_partition)
            await self._partitions.run_in_thread(self._log_dirs.create_future, topic_partition, target)
            if topic_partition in target.futures:
                self._start(topic_partition)

    async def stop(self) -> None:
        """Returns when nothing is copied any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self, topic_partition: TopicPartition) -> None:
        self._moving[topic_partition] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._moving:
            topic_partition = next(iter(self._moving))
            del self._moving[topic_partition]
            try:
                if not await self._take_turn(topic_partition):
                    self._moving[topic_partition] = None
            except LogDirFailure as failure:
                await self._call_off(topic_partition)
                self._take_offline(failure)
            except (OSError, KafkaError, CorruptBatch) as error:
                if topic_partition in self._log_dirs.futures:  # else somebody has called it off
                    logger.error("%s stays where it is: moving it failed: %s", topic_partition, error)
                    await self._call_off(topic_partition)
            except Exception:
                # A bug of ours must not hold up the moves that wait.
                logger.exception("%s stays where it is: moving it failed", topic_partition)
                await self._call_off(topic_partition)

    async def _take_turn(self, topic_partition: TopicPartition) -> bool:
        """Copy what the log has by now, then try to complete the move. True if it is complete, or off."""
        partition = self._partitions.find(*topic_partition)
        end_offset = 0 if partition is None else partition.log.log_end_offset
        while copied := await self._in_thread(self._log_dirs.copy_some, topic_partition):
            future = self._log_dirs.futures.get(topic_partition)
            if future is None or future[1].log_end_offset >= end_offset:
                break
            if self.throttle.quota is not None:
                await self._keep_rate(copied)
        if copied is None:
            return True
        put_away_as = await self._in_thread(self._log_dirs.replace_by_future, topic_partition)
        if put_away_as is None:
            return topic_partition not in self._log_dirs.futures
        logger.info("%s was moved; its former directory is %s", topic_partition, put_away_as)
        self._partitions.log_removal.remove_soon([put_away_as])
        return True

    async def _keep_rate(self, byte_count: int) -> None:
        """Wait until more may be copied."""
        while (quota := self.throttle.quota) is not None:
            quota.record(byte_count, self._monotonic_ms())
            byte_count = 0
            pause_ms = quota.pause_ms(self._monotonic_ms())
            if not pause_ms:
                break
            await asyncio.sleep(pause_ms / 1000)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """If cancelled, raises only when `work` is done: the logs may be closed then."""
        step = asyncio.ensure_future(self._partitions.run_in_thread(work, *args, **kwargs))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    async def _call_off(self, topic_partition: TopicPartition) -> None:
        try:
            put_away = await self._in_thread(self._log_dirs.drop_future, topic_partition)
        except OSError as error:
            logger.error("the copy of %s cannot be removed: %s", topic_partition, error)
        else:
            self._partitions.log_removal.remove_soon(put_away)

    def _take_offline(self, failure: LogDirFailure) -> None:
        failed = Path(str(failure.filename))
        for directory in self._log_dirs.directories:
            if failed.is_relative_to(directory.path):
                self._partitions.take_directory_offline(str(directory.path), failure)
