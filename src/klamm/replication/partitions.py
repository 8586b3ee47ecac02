"""All partitions that this broker holds, kept in step with the cluster's metadata image.

The controller decides, the image says, and this class makes it so: logs are created and deleted, leader
epochs and settings taken over. Handlers look partitions up here. The event loop owns all state; what may
block runs through `run_in_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from klamm.cluster.image import ClusterImage, TopicImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.flusher import Flusher
from klamm.replication.opening import open_and_rewrite
from klamm.replication.partition import Partition
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs

logger = logging.getLogger("klamm.replication")

P = ParamSpec("P")
T = TypeVar("T")

WORKER_THREADS = 4
"""Threads for blocking work: cold reads, opening batches, look-ups by time, making and deleting files."""

FLUSH_THREADS = 2
"""Threads for fsyncs, which take long and must not keep the others waiting."""


class TopicSettings(NamedTuple):
    """What a topic's configuration means for its partitions."""

    log: LogConfig
    min_insync_replicas: int


class Partitions:
    def __init__(
        self,
        node_id: int,
        log_dirs: LogDirs,
        settings_of: Callable[[TopicImage], TopicSettings],
    ) -> None:
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._settings_of = settings_of
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._topic_names: dict[bytes, str] = {}
        self._lost: set[tuple[str, int]] = set()
        """Those whose log lies in a directory that could not be read at start: they must not begin anew."""
        self._unmade: dict[str, TopicImage] = {}
        """Topics whose logs could not all be made, for want of room, say; tried again now and then."""
        self._turn = asyncio.Lock()
        self._executor = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="klamm-worker")
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="klamm-opener")
        self._flush_executor = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="klamm-flush")
        self.flusher = Flusher(self._flush_executor, self._on_flush_failure)

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def find(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is None:
            raise self._why_missing(topic, index)
        return partition

    def _why_missing(self, topic: str, index: int) -> KafkaError:
        if (topic, index) in self._lost:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{index} is in a directory that is offline"
            )
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index} on this broker"
        )

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        name = self._topic_names.get(topic_id)
        if name is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this topic id; it may have been deleted"
            )
        return self.get(name, index)

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._topic_names.get(topic_id)

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))

    async def open_batch(self, batch: bytearray, config: LogConfig, now_ms: int) -> bytearray:
        """`open_and_rewrite` in a thread of its own, one batch at a time.

        A small batch may open to hundreds of megabytes: that must not be multiplied by the number of threads,
        nor keep cold reads and fsyncs waiting.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._opener, open_and_rewrite, batch, config, now_ms)

    # ---- following the image

    async def adopt(
        self, image: ClusterImage, loaded: dict[TopicPartition, Log], deleted: frozenset[str] = frozenset()
    ) -> None:
        """Take over the logs found on disk at start, then make what the image has and the disk lacks.

        `deleted` are the topics whose deletion was under way when the broker stopped.
        """
        for topic_partition, log in loaded.items():
            topic = image.topics.get(topic_partition.topic)
            if topic is not None and log.topic_id is None:
                # Power was lost between making the directory and writing down whose it is.
                await self.run_in_thread(log.assign_topic_id, topic.topic_id)
            if topic is None or log.topic_id != topic.topic_id:
                await self._put_away(log, may_delete=topic_partition.topic in deleted)
            else:
                self._add(topic, topic_partition.partition, log)
        if len(self._log_dirs.online) < len(self._log_dirs.directories):
            self._lost = {place for topic in image.topics.values() for place in self._missing(topic)}
        for topic in image.topics.values():
            self._topic_names[topic.topic_id] = topic.name
            await self._follow(topic)

    async def _put_away(self, log: Log, *, may_delete: bool) -> None:
        """A log on disk that belongs to no topic. Records go only where somebody asked for it: the topic may
        be missing because the metadata is older than the logs, as after a restored backup."""
        if may_delete or log.size_bytes == 0:
            logger.info("%s is on disk, but its topic was deleted: deleting it", log.topic_partition)
            await self.run_in_thread(self._log_dirs.delete_log, log)
        else:
            kept_as = await self.run_in_thread(self._log_dirs.set_aside, log)
            logger.error(
                "%s is on disk, but no topic has it: kept as %s; remove it if it is not needed",
                log.topic_partition,
                kept_as,
            )

    async def apply(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow a change of the image; when this returns the new partitions can be used."""
        async with self._turn:
            await self._delete_gone(old, new)
            broker_defaults_changed = old.broker_configs is not new.broker_configs
            for name, topic in new.topics.items():
                if broker_defaults_changed or old.topics.get(name) is not topic:
                    await self._follow(topic)

    async def make_unmade(self) -> None:
        """Try again to make the logs of topics that were created while there was no room for them."""
        for name in tuple(self._unmade):
            async with self._turn:
                topic = self._unmade.get(name)
                if topic is not None:
                    await self._follow(topic)

    async def _delete_gone(self, old: ClusterImage, new: ClusterImage) -> None:
        for name, topic in old.topics.items():
            successor = new.topics.get(name)
            if successor is not None and successor.topic_id == topic.topic_id:
                continue
            self._topic_names.pop(topic.topic_id, None)
            self._unmade.pop(name, None)
            places = [(name, index) for index in range(len(topic.partitions))]
            self._lost.difference_update(places)
            gone = [partition for place in places if (partition := self._partitions.pop(place, None))]
            for partition in gone:  # all of them first: nothing more is acknowledged for the topic
                partition.take_offline()
            for partition in gone:
                await self.run_in_thread(self._log_dirs.delete_log, partition.log)

    async def _follow(self, topic: TopicImage) -> None:
        """Make the logs that the topic lacks here, and take over its settings and its state."""
        settings = self._settings_of(topic)
        missing = [index for _, index in self._missing(topic)]
        if missing:
            self._unmade[topic.name] = topic
            logs = await self.run_in_thread(self._create_logs, topic, missing, settings.log)
            for index, log in zip(missing, logs, strict=True):
                self._add(topic, index, log)
        self._unmade.pop(topic.name, None)
        for index, state in enumerate(topic.partitions):
            partition = self._partitions.get((topic.name, index))
            if partition is not None:
                partition.log.config = settings.log
                partition.min_insync_replicas = settings.min_insync_replicas
                partition.take_over(state)

    def _missing(self, topic: TopicImage) -> list[tuple[str, int]]:
        """Partitions of the topic that belong here and have no log."""
        return [
            place
            for index, state in enumerate(topic.partitions)
            if self._node_id in state.replicas
            and (place := (topic.name, index)) not in self._partitions
            and place not in self._lost
        ]

    def _create_logs(self, topic: TopicImage, indexes: list[int], config: LogConfig) -> list[Log]:
        return [
            self._log_dirs.create_log(TopicPartition(topic.name, index), topic.topic_id, config)
            for index in indexes
        ]

    def _add(self, topic: TopicImage, index: int, log: Log) -> None:
        log.on_roll = self._flush_rolled_soon
        self._partitions[topic.name, index] = Partition(topic.name, index, topic.topic_id, log)
        self._topic_names[topic.topic_id] = topic.name

    def _flush_rolled_soon(self, log: Log) -> None:
        """Called where a segment is rolled: in an append on the loop, or by retention in a thread."""
        self._loop.call_soon_threadsafe(self.flusher.flush_rolled, log)

    # ---- failures and the end

    def _on_flush_failure(self, log: Log, error: OSError) -> None:
        self.take_directory_offline(os.path.dirname(log.directory), error)

    def take_directory_offline(self, log_dir: str, error: Exception) -> None:
        """A disk that failed an fsync cannot be trusted: its partitions stop, the broker goes on.

        The next start recovers its logs, as no clean stop is noted there.
        """
        logger.error("log directory %s failed: %s", log_dir, error)
        self._log_dirs.take_offline(Path(log_dir), error)
        for partition in self._partitions.values():
            if os.path.dirname(partition.log.directory) == log_dir and not partition.is_offline:
                partition.take_offline()

    def shut_down(self) -> None:
        self._opener.shutdown(wait=True)
        self._flush_executor.shutdown(wait=True)
        self._executor.shutdown(wait=True)
