"""All partitions that this broker holds, kept in step with the cluster's metadata image.

The controller decides, the image says, and this class makes it so: logs are created and deleted, leader
epochs and settings taken over. Handlers look partitions up here. The event loop owns all state; what may
block runs through `run_in_thread`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from klamm.cluster.image import ClusterImage, TopicImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.flusher import Flusher
from klamm.replication.partition import Partition
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs

logger = logging.getLogger("klamm.replication")

P = ParamSpec("P")
T = TypeVar("T")

WORKER_THREADS = 4
"""Threads for blocking work: cold reads, fsyncs, opening batches, look-ups by time."""


class Replicas:
    def __init__(
        self,
        node_id: int,
        log_dirs: LogDirs,
        log_config: Callable[[TopicImage], LogConfig],
        min_insync_replicas: Callable[[TopicImage], int],
    ) -> None:
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._log_config = log_config
        self._min_insync_replicas = min_insync_replicas
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._topic_names: dict[bytes, str] = {}
        self._executor = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="klamm-worker")
        self.flusher = Flusher(self._executor, self._on_flush_failure)

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def find(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index} on this broker"
            )
        return partition

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

    # ---- following the image

    async def adopt(self, image: ClusterImage, loaded: dict[TopicPartition, Log]) -> None:
        """Take over the logs found on disk at start, then make what the image has and the disk lacks."""
        for topic_partition, log in loaded.items():
            topic = image.topics.get(topic_partition.topic)
            if topic is not None and log.topic_id == topic.topic_id:
                self._add(topic, topic_partition.partition, log)
            else:
                logger.warning(
                    "%s is on disk but its topic was deleted while the broker was away: deleting it",
                    topic_partition,
                )
                await self.run_in_thread(self._log_dirs.delete_log, log)
        await self._create_missing(image, image.topics.values())

    async def apply(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow a change of the image; when this returns the new partitions can be used."""
        await self._delete_gone(old, new)
        changed = [topic for name, topic in new.topics.items() if old.topics.get(name) is not topic]
        await self._create_missing(new, changed)
        broker_defaults_changed = old.broker_configs != new.broker_configs
        for topic in new.topics.values() if broker_defaults_changed else changed:
            self._take_over(topic)

    async def _delete_gone(self, old: ClusterImage, new: ClusterImage) -> None:
        for name, topic in old.topics.items():
            successor = new.topics.get(name)
            if successor is not None and successor.topic_id == topic.topic_id:
                continue
            self._topic_names.pop(topic.topic_id, None)
            for index in range(len(topic.partitions)):
                partition = self._partitions.pop((name, index), None)
                if partition is not None:
                    partition.take_offline()
                    await self.run_in_thread(self._log_dirs.delete_log, partition.log)

    async def _create_missing(self, image: ClusterImage, topics: Iterable[TopicImage]) -> None:
        missing = [
            (topic, index)
            for topic in topics
            for index, state in enumerate(topic.partitions)
            if self._node_id in state.replicas and (topic.name, index) not in self._partitions
        ]
        if missing:
            for topic, index, log in await self.run_in_thread(self._create_logs, missing):
                self._add(topic, index, log)

    def _create_logs(self, missing: list[tuple[TopicImage, int]]) -> list[tuple[TopicImage, int, Log]]:
        return [
            (
                topic,
                index,
                self._log_dirs.create_log(
                    TopicPartition(topic.name, index), topic.topic_id, self._log_config(topic)
                ),
            )
            for topic, index in missing
        ]

    def _add(self, topic: TopicImage, index: int, log: Log) -> None:
        partition = Partition(topic.name, index, topic.topic_id, log)
        self._partitions[topic.name, index] = partition
        self._topic_names[topic.topic_id] = topic.name
        self._take_over_state(topic, partition)

    def _take_over(self, topic: TopicImage) -> None:
        config = self._log_config(topic)
        for index in range(len(topic.partitions)):
            partition = self._partitions.get((topic.name, index))
            if partition is not None:
                partition.log.config = config
                self._take_over_state(topic, partition)

    def _take_over_state(self, topic: TopicImage, partition: Partition) -> None:
        state = topic.partitions[partition.index]
        partition.replicas = state.replicas
        partition.isr = state.isr
        partition.min_insync_replicas = self._min_insync_replicas(topic)
        if state.leader_epoch > partition.leader_epoch:
            partition.leader_epoch = state.leader_epoch
            partition.notify_changed()

    # ---- failures and the end

    def _on_flush_failure(self, log: Log, error: OSError) -> None:
        self.take_directory_offline(log.directory.parent, error)

    def take_directory_offline(self, log_dir: object, error: OSError) -> None:
        """A disk that failed an fsync cannot be trusted: its partitions stop, the broker goes on."""
        logger.error("log directory %s failed and is offline until the next start: %s", log_dir, error)
        for partition in self._partitions.values():
            if partition.log.directory.parent == log_dir and not partition.is_offline:
                partition.take_offline()

    def shut_down(self) -> None:
        self._executor.shutdown(wait=True)
