"""One broker: makes all its parts, connects them, starts and stops them in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import random

from klamm.apis.broker import Clock, ProducerIds
from klamm.apis.registry import load_handlers
from klamm.cluster.view import TopicFailures
from klamm.cluster.image import ClusterImage, ImageDelta, TopicImage, broker_image
from klamm.cluster.service import ClusterService
from klamm.config.loading import BrokerConfig
from klamm.config.topic_keys import topic_config
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import StoreError
from klamm.groups.coordinator import GroupCoordinator
from klamm.model.ids import TopicPartition
from klamm.node.clock import SystemClock
from klamm.node.housekeeping import Housekeeping
from klamm.node.limits import open_files_limit, raise_descriptor_limit
from klamm.node.offsets_log import TOPIC as OFFSETS_TOPIC
from klamm.node.offsets_log import OffsetsLog
from klamm.node.producer_ids import ProducerIdBlocks
from klamm.replication.context import ReplicationContext
from klamm.replication.fetch_sessions import FetchSessions
from klamm.replication.partitions import Partitions, TopicSettings
from klamm.server.dispatch import Dispatcher
from klamm.server.listener import CannotListen, Server
from klamm.storage.compaction.cleaner import CleanerSettings, LogCleaner
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirError, LogDirs
from klamm.storage.segments.open_files import OpenFiles

logger = logging.getLogger("klamm.node")

STORE_FILE = "klamm-metadata.sqlite"
"""Topics, settings and producer id blocks, in the first log directory."""

GC_THRESHOLD = 50_000
"""Requests make and drop many small objects; the default threshold would look for cycles all the time."""


class CannotStart(Exception):
    """The broker cannot start; the text says why, and what to do, in one line."""


class BrokerNode:
    """One broker; API handlers see it as `apis.broker.Broker`."""

    def __init__(
        self, config: BrokerConfig, clock: Clock | None = None, most_open_files: int | None = None
    ) -> None:
        self._static_config = config
        self.clock: Clock = clock or SystemClock()
        self.node_id = config.int_("node.id")
        self.bootstrap = ""
        self.log_dirs = LogDirs(
            config.list_("log.dirs"),
            now_ms=self.clock.now_ms,
            report=logger.info,
            open_files=OpenFiles(most_open_files or open_files_limit()),
        )
        self._store_path = self.log_dirs.directories[0].path / STORE_FILE
        self._store = SqliteStore(self._store_path)
        self.cluster = ClusterService(self._store, config)
        self.producer_ids: ProducerIds = ProducerIdBlocks(self.cluster)
        self._server = Server(
            Dispatcher(self, load_handlers()),
            lambda: self.config,
            lambda work: self.partitions.run_in_thread(work),
        )
        self._stop_requested = asyncio.Event()

    @property
    def config(self) -> BrokerConfig:
        return self.cluster.config

    async def start(self) -> None:
        """Start; the broker serves when this returns. If it raises CannotStart, nothing is left open."""
        raise_descriptor_limit()
        try:
            self.log_dirs.lock()
            await self._start_parts()
        except (LogDirError, CannotListen) as error:
            self._abandon_start()
            raise CannotStart(str(error)) from error
        except BaseException:
            self._abandon_start()
            raise
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)

    async def _start_parts(self) -> None:
        config = self._static_config
        sockets = {
            listener.name: self._server.bind(listener.host, listener.port) for listener in config.listeners
        }
        image = await self._load_cluster({name: sock.getsockname()[1] for name, sock in sockets.items()})
        if ignored := self.config.without_effect():
            logger.warning(
                "these settings have no effect (docs/CONFIGURATION.md says why): %s", ", ".join(ignored)
            )
        self.log_dirs.identify(self.node_id, image.cluster_id)
        await self._load_logs(image)
        self._start_services()
        first = image.brokers[self.node_id].endpoints[config.listeners[0].name]
        self.bootstrap = f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"
        for name, sock in sockets.items():
            self._server.start_accepting(sock, name)

    async def _load_cluster(self, bound_ports: dict[str, int]) -> ClusterImage:
        try:
            await self._store.open()
            return await self.cluster.load(broker_image(self._static_config, bound_ports))
        except StoreError as error:
            raise CannotStart(f"the metadata in {self._store_path} cannot be read: {error}") from error

    async def _load_logs(self, image: ClusterImage) -> None:
        self.partitions = Partitions(
            ReplicationContext(self.node_id, self.clock.now_ms), self.log_dirs, self._settings_of
        )
        configs = {name: self._settings_of(topic).log for name, topic in image.topics.items()}
        loaded = await self.partitions.run_in_thread(
            self.log_dirs.load_logs, lambda topic: configs.get(topic, LogConfig())
        )
        await self.partitions.adopt(image, loaded, self.cluster.unfinished_deletions)
        await self.cluster.finish_deletions()
        self.cluster.subscribe(self._on_image)
        await self.cluster.raise_leader_epochs(self._recovered_partitions(image))

    def _recovered_partitions(self, image: ClusterImage) -> list[TopicPartition]:
        """Those that were not closed cleanly: a new leader epoch lets clients notice a log that was cut."""
        return [
            topic_partition
            for directory in self.log_dirs.online
            if not directory.had_clean_shutdown
            for topic_partition in directory.logs
            if topic_partition.topic in image.topics
        ]

    def _start_services(self) -> None:
        config = self.config
        self.fetch_sessions = FetchSessions(
            config.int_("max.incremental.fetch.session.cache.slots"), lambda: random.getrandbits(31)
        )
        self.groups = GroupCoordinator(
            OffsetsLog(self.cluster, self.partitions, self.clock), self.clock, config
        )
        self.groups.start()
        self._housekeeping = Housekeeping(self.partitions, self.log_dirs, self.clock, lambda: self.config)
        self._housekeeping.start()
        self._cleaner = asyncio.create_task(self._make_cleaner().run())

    def _make_cleaner(self) -> LogCleaner:
        return LogCleaner(
            lambda: [partition.log for partition in self.partitions if not partition.is_offline],
            lambda: CleanerSettings.from_config(self.config),
            now_ms=self.clock.now_ms,
            report=logger.info,
            on_directory_failure=lambda path, error: self.partitions.take_directory_offline(str(path), error),
            stable_offset=self._high_watermark_of,
        )

    def _high_watermark_of(self, log: Log) -> int:
        partition = self.partitions.find(*log.topic_partition)
        return partition.high_watermark if partition is not None else log.log_start_offset

    def request_stop(self) -> None:
        """Have `run_until_stopped` shut down; safe to call from a signal handler of the loop."""
        self._stop_requested.set()

    async def run_until_stopped(self) -> None:
        await self._stop_requested.wait()
        await self.stop()

    async def stop(self) -> None:
        """Shut down cleanly: nothing is lost, and the next start needs no recovery."""
        self._server.stop_accepting()
        self._server.close_connections()
        self.groups.stop()
        self._cleaner.cancel()
        await asyncio.gather(self._cleaner, self._housekeeping.stop(), return_exceptions=True)
        await self._housekeeping.write_checkpoints()
        await self.partitions.run_in_thread(self.log_dirs.close)
        await self._store.close()
        self.partitions.shut_down()

    def _abandon_start(self) -> None:
        self._server.stop_accepting()
        self.log_dirs.unlock()

    # ---- following the cluster's image

    async def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> TopicFailures:
        failures = await self.partitions.apply(new, delta)
        offsets_topic = delta.topics.get(OFFSETS_TOPIC)
        if offsets_topic is not None and (offsets_topic.before is None) != (offsets_topic.after is None):
            self.groups.update_leadership()
        gone = [change.deleted for change in delta.topics.values() if change.deleted is not None]
        if gone:
            self.groups.on_topics_deleted({topic.name: topic.topic_id for topic in gone})
        return failures

    def _settings_of(self, topic: TopicImage) -> TopicSettings:
        values = topic_config(self.config, topic.config)
        min_insync_replicas = values["min.insync.replicas"]
        assert isinstance(min_insync_replicas, int)
        return TopicSettings(LogConfig.from_topic_values(values), min_insync_replicas)
