"""One broker: makes all its parts, connects them, starts and stops them in order.

A broker without `klamm.coordination.url` is a cluster of one: its store is a file of its own, it is its own
controller from the start, and nothing waits for others. Otherwise it joins: it reads the store to know whose
logs it has, registers, and takes no role in any partition before a controller has said so.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.apis.broker import Clock, ProducerIds
from klamm.apis.registry import load_handlers
from klamm.cluster.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageDelta,
    TopicImage,
    broker_image,
    unfinished_deletions_of,
)
from klamm.cluster.service import ClusterService
from klamm.cluster.view import TopicFailures
from klamm.config.loading import BrokerConfig
from klamm.config.topic_keys import topic_config
from klamm.coordination.sqlite import SqliteStore
from klamm.coordination.store import Store, StoreError
from klamm.groups.coordinator import GroupCoordinator
from klamm.metrics.topic_counters import IsrCounters
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NEVER_INTACT, IntactEpochs, TopicPartition
from klamm.node.clock import SystemClock
from klamm.node.housekeeping import Housekeeping
from klamm.node.limits import open_files_limit, raise_descriptor_limit
from klamm.node.listeners import Listeners
from klamm.node.offsets_log import TOPIC as OFFSETS_TOPIC
from klamm.node.offsets_log import OffsetsLog
from klamm.node.producer_ids import ProducerIdBlocks
from klamm.protocol.messages.k56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.protocol.schema import Message
from klamm.replication.context import ALONE_EPOCH, ReplicationContext
from klamm.replication.fetch_sessions import FetchSessions
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.replication.partitions import Partitions, TopicSettings
from klamm.replication.throttling import ThrottledReplicas
from klamm.server.dispatch import Dispatcher
from klamm.server.listener import CannotListen, Server
from klamm.storage.compaction.cleaner import CleanerSettings, LogCleaner
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirError, LogDirs
from klamm.storage.segments.open_files import OpenFiles

if TYPE_CHECKING:
    from klamm.node.controller_link import ControllerLink
    from klamm.node.membership import Membership
    from klamm.node.monitoring.monitoring import Monitoring
    from klamm.node.peers import Peers
    from klamm.node.replica_reports import ReplicaReports
    from klamm.node.replication import Replication

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
        url = config.optional_str("klamm.coordination.url")
        self._store_address = url or str(self.log_dirs.directories[0].path / STORE_FILE)
        self._session_timeout_s = config.int_("broker.session.timeout.ms") / 1000
        self._store = self._new_store()
        self.cluster = ClusterService(self._store, config)
        self.membership: Membership | None = None
        self.peers: Peers | None = None
        self.controller_link: ControllerLink | None = None
        self.replication: Replication | None = None
        self.replica_reports: ReplicaReports | None = None
        if config.inter_broker_listener_name is not None:
            self._make_cluster_parts(config.inter_broker_listener_name)
        self._producer_ids = ProducerIdBlocks(self._allocate_producer_ids)
        self.producer_ids: ProducerIds = self._producer_ids
        self.server = Server(
            Dispatcher(self, load_handlers()),
            lambda: self.config,
            lambda work: self.partitions.run_in_thread(work),
        )
        self._listeners = Listeners(self.server, config.inter_broker_listener_name)
        self.cluster.check_own_config = self._check_config
        self._telling_endpoints: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self.has_services = False
        self.stage = "the broker starts: it reads the metadata of the cluster"
        """Why the broker serves no clients now, in one line; empty while it serves them."""
        self.monitoring = self._make_monitoring()

    def _make_monitoring(self) -> Monitoring | None:
        listener = self._static_config.http_listener
        if listener is None:
            return None
        # Imported here, as a broker without it starts quicker.
        from klamm.node.monitoring.monitoring import Monitoring

        return Monitoring(self, listener)

    @property
    def store(self) -> Store:
        """The coordination store in the present session."""
        return (None if self.membership is None else self.membership.store) or self._store

    @property
    def isr_counters(self) -> IsrCounters:
        return self._replication_context.isr_counters

    def _new_store(self) -> Store:
        if self._static_config["klamm.coordination.url"] is None:
            return SqliteStore(Path(self._store_address))
        from klamm.coordination.engines import new_store

        try:
            return new_store(self._store_address, session_timeout_s=self._session_timeout_s)
        except ValueError as error:
            raise CannotStart(f"klamm.coordination.url is refused: {error}") from None

    def _make_cluster_parts(self, listener_name: str) -> None:
        # Imported here: a broker that is alone starts quicker without them.
        from klamm.coordination.watchdog import LoopWatchdog
        from klamm.node.controller_link import ControllerLink
        from klamm.node.membership import Membership
        from klamm.node.peers import Peers
        from klamm.node.replication import Replication

        self.membership = Membership(
            self.node_id,
            self._new_store,
            self.cluster,
            session_timeout_s=self._session_timeout_s,
            watchdog=LoopWatchdog(self._session_timeout_s),
            on_registered=self._on_registered,
            on_lost=self._on_session_lost,
            on_cut_off=lambda: self._listeners.turn_clients_away(),
        )
        self.peers = Peers(
            self.node_id, listener_name, self._static_config, lambda: self.cluster.image.brokers
        )
        self.controller_link = ControllerLink(self.node_id, self.cluster, self.peers)
        self.replication = Replication(
            self.node_id,
            self.clock,
            lambda: self.config,
            lambda: {broker.id: broker.rack for broker in self.cluster.image.brokers.values()},
            self.peers,
            self.controller_link,
            lambda: self.partitions,
            self.membership.on_disowned,
        )
        self.cluster.on_new_controller = self.replication.on_new_controller

    @property
    def config(self) -> BrokerConfig:
        return self.cluster.config

    @property
    def broker_epoch(self) -> int | None:
        return None if self.membership is None else self.membership.broker_epoch

    async def forward(self, frame: bytes, client_host: str) -> bytes | None:
        assert self.controller_link is not None, "a broker that is alone is the controller"
        return await self.controller_link.forward(frame, client_host)

    async def relay_alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        assert self.controller_link is not None, "a broker that is alone is the controller"
        return await self.controller_link.relay_alter_partition(request)

    async def _allocate_producer_ids(self) -> range:
        if self.controller_link is None:
            return await self.cluster.allocate_producer_ids(self.node_id, ALONE_EPOCH)
        epoch = self.broker_epoch
        if epoch is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker is not registered now")
        return await self.controller_link.allocate_producer_ids(epoch)

    async def start(self) -> None:
        """Start; the broker serves when this returns. If it raises CannotStart, nothing is left open."""
        raise_descriptor_limit()
        try:
            self.log_dirs.lock()
            await self._start_parts()
        except (LogDirError, CannotListen) as error:
            await self._abandon_start()
            raise CannotStart(str(error)) from error
        except BaseException:
            await self._abandon_start()
            raise
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)

    async def _start_parts(self) -> None:
        self._listeners.bind(self._static_config.listeners)
        if self.monitoring is not None:
            await self.monitoring.start()
        image = await self._load_cluster(self._own_image())
        if self._listeners.follow(self.config.listeners) and self.membership is None:
            await self.cluster.change_own_endpoints(self._own_image().endpoints)
            image = self.cluster.image
        if ignored := self.config.without_effect():
            logger.warning(
                "these settings have no effect (docs/CONFIGURATION.md says why): %s", ", ".join(ignored)
            )
        self.log_dirs.identify(self.node_id, image.cluster_id)
        self.stage = "the broker starts: it loads its logs"
        await self._load_logs(image)
        self._start_services()
        own = self._own_image()
        first = own.endpoints[self._listeners.listeners[0].name]
        self.bootstrap = f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"
        if self.membership is not None:
            self.stage = "the broker starts: it waits until a controller has told it its part"
            self._listeners.accept_brokers()
            await self._join(self.membership, own)
        self._listeners.accept_clients()
        self.stage = ""

    def _own_image(self) -> BrokerImage:
        return broker_image(self.config, self._listeners.listeners, self._listeners.ports)

    async def _check_config(self, config: BrokerConfig) -> None:
        try:
            await self._listeners.check(config.listeners)
        except CannotListen as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"listeners is refused: {error}") from error

    def _follow_listeners(self) -> None:
        if self._listeners.follow(self.config.listeners):
            self._telling_endpoints = asyncio.create_task(self._tell_endpoints(self._own_image().endpoints))

    async def _tell_endpoints(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Clients are told the addresses that this broker listens on now."""
        if self.membership is not None:
            await self.membership.change_endpoints(endpoints)
        else:
            await self.cluster.change_own_endpoints(endpoints)

    async def _load_cluster(self, own: BrokerImage) -> ClusterImage:
        """What the store says of the cluster."""
        try:
            if self.membership is None:
                await self._store.open()
                return await self.cluster.load(own)
            assert self.controller_link is not None
            store = await self.membership.open()
            return await self.cluster.join(store, self._tell_broker, self.controller_link.create_topics)
        except StoreError as error:
            raise CannotStart(f"the metadata in {self._store_address} cannot be read: {error}") from error

    async def _join(self, membership: Membership, own: BrokerImage) -> None:
        """Register, and wait until a controller has said what this broker is to do."""
        from klamm.node.membership import IdIsTaken

        is_told = asyncio.Event()

        async def look(old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> TopicFailures:
            broker = new.brokers.get(self.node_id)
            if broker is not None and broker.epoch == membership.broker_epoch:
                is_told.set()
            return {}

        self.cluster.subscribe(look)
        try:
            await membership.register(own, self._intact_epochs())
        except IdIsTaken as error:
            raise CannotStart(str(error)) from None
        except StoreError as error:
            raise CannotStart(f"this broker cannot register in {self._store_address}: {error}") from error
        waiting = [asyncio.create_task(event.wait()) for event in (is_told, self._stop_requested)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        self.cluster.view.subscribers.remove(look)

    def _intact_epochs(self) -> IntactEpochs:
        """What the logs say, if all of them were closed cleanly."""
        epochs = {
            directory.intact_epochs if directory.had_clean_shutdown else NEVER_INTACT
            for directory in self.log_dirs.directories
        }
        return epochs.pop() if len(epochs) == 1 else NEVER_INTACT

    async def _tell_broker(self, broker_id: int, request: Message) -> Any:
        assert self.peers is not None
        return await self.peers.tell(broker_id, request)

    def _on_registered(self, broker_epoch: int) -> None:
        assert self.replication is not None
        self.replication.context.broker_epoch = broker_epoch
        self._listeners.welcome_clients()

    async def _on_session_lost(self) -> None:
        """Other brokers lead what was led here."""
        self.partitions.resign_all()
        self.groups.update_leadership()

    async def _load_logs(self, image: ClusterImage) -> None:
        if self.replication is None:
            context, fetchers = ReplicationContext(self.node_id, self.clock.now_ms), None
        else:
            context, fetchers = self.replication.context, self.replication.fetchers
        self.partitions = Partitions(context, self.log_dirs, self._settings_of, fetchers)
        configs = {name: self._settings_of(topic).log for name, topic in image.topics.items()}
        loaded = await self.partitions.run_in_thread(
            self.log_dirs.load_logs, lambda topic: configs.get(topic, LogConfig())
        )
        await self.partitions.adopt(
            image,
            loaded,
            unfinished_deletions_of(image, self.node_id),
            takes_roles=self.membership is None,
        )
        self._replication_context = context
        self.log_dir_moves = LogDirMoves(self.partitions, self.log_dirs, context.monotonic_ms)
        self._set_rates()
        await self.log_dir_moves.resume()
        self.cluster.subscribe(self._on_image)
        if self.controller_link is not None:
            self._report_replicas_to(self.controller_link)
        if self.membership is None:
            await self.cluster.finish_deletions()
            await self.cluster.raise_leader_epochs(self._recovered_partitions(image))

    def _report_replicas_to(self, link: ControllerLink) -> None:
        from klamm.node.replica_reports import ReplicaReports

        self.replica_reports = ReplicaReports(
            self.node_id,
            self.partitions,
            self.log_dirs,
            link,
            lambda: self.cluster.image,
            lambda: self.broker_epoch,
        )
        self.partitions.offline.on_changed = self.replica_reports.look

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
        if self.replication is not None:
            self.replication.start()
        self.has_services = True

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

    async def wait_for_stop(self) -> None:
        """Wait until a stop is requested."""
        await self._stop_requested.wait()

    async def run_until_stopped(self) -> None:
        await self.wait_for_stop()
        await self.stop()

    async def stop(self) -> None:
        """Shut down cleanly: nothing is lost, and the next start needs no recovery."""
        self.stage = "the broker stops"
        await self._hand_over_leaders()
        await self._end_services()
        await self._housekeeping.write_checkpoints()
        epochs = NEVER_INTACT if self.membership is None else self.membership.intact_epochs
        if epochs == NEVER_INTACT:  # it has not registered: what the logs said of the time before still holds
            epochs = self._intact_epochs()
        await self.partitions.run_in_thread(lambda: self.log_dirs.close(intact_epochs=epochs))
        await self._leave_cluster()
        await self._stop_monitoring()
        self.partitions.shut_down()

    async def kill(self) -> None:
        """End as a process that dies: nothing is handed over, flushed or written down."""
        await self._stop_monitoring()
        await self._end_services()
        await self._leave_cluster()
        await self.partitions.run_in_thread(lambda: self.log_dirs.close(clean=False))
        self.partitions.shut_down()

    async def _stop_monitoring(self) -> None:
        if self.monitoring is not None:
            await self.monitoring.stop()

    async def _end_services(self) -> None:
        self.server.stop_accepting()
        self.server.close_connections()
        if self._telling_endpoints is not None:
            self._telling_endpoints.cancel()
        self.groups.stop()
        await self._producer_ids.shut_down()
        self._cleaner.cancel()
        await asyncio.gather(
            self._cleaner, self._housekeeping.stop(), self.log_dir_moves.stop(), return_exceptions=True
        )
        if self.replication is not None:
            await self.replication.shut_down()
        if self.replica_reports is not None:
            await self.replica_reports.shut_down()

    async def _hand_over_leaders(self) -> None:
        epoch = self.broker_epoch
        if self.controller_link is None or epoch is None:
            return
        if self.config.bool_("controlled.shutdown.enable") and not await self.controller_link.shut_down(
            epoch
        ):
            logger.info("this broker stops with partitions that no other broker can lead now")

    async def _leave_cluster(self) -> None:
        if self.membership is None:
            await self._store.close()
            return
        self.cluster.on_resigned()
        await self.membership.close()
        if self.peers is not None:
            await self.peers.close()

    async def _abandon_start(self) -> None:
        if self.has_services:
            await self.stop()
            return
        self.server.stop_accepting()
        await self._stop_monitoring()
        if self.membership is not None:
            await self._leave_cluster()
        self.log_dirs.unlock()

    # ---- following the cluster's image

    def _set_rates(self) -> None:
        """Take over the rates of throttled replication."""
        config, context = self.config, self._replication_context
        for throttle, rate, window in (
            (context.leader_throttle, "leader.replication.throttled.rate", "replication.quota.window"),
            (context.follower_throttle, "follower.replication.throttled.rate", "replication.quota.window"),
            (
                self.log_dir_moves.throttle,
                "replica.alter.log.dirs.io.max.bytes.per.second",
                "alter.log.dirs.replication.quota.window",
            ),
        ):
            sample_ms = config.int_(f"{window}.size.seconds") * 1000
            throttle.set_rate(config[rate], config.int_(f"{window}.num"), sample_ms)

    async def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> TopicFailures:
        failures: TopicFailures = {}
        if delta.broker_configs:
            self._set_rates()
            self._follow_listeners()
        if delta.brokers and self.peers is not None:
            self.peers.on_brokers_changed()
        if self.cluster.is_controller:
            failures = await self.partitions.apply(new, delta)
            if self.replica_reports is not None:
                self.replica_reports.look_if_offline()
            if OFFSETS_TOPIC in delta.topics and self.has_services:
                self.groups.update_leadership()
        else:
            await self.partitions.apply_settings(new, delta)
        gone = [change.deleted for change in delta.topics.values() if change.deleted is not None]
        if gone and self.has_services:
            self.groups.on_topics_deleted({topic.name: topic.topic_id for topic in gone})
        return failures

    def _settings_of(self, topic: TopicImage) -> TopicSettings:
        values = topic_config(self.config, topic.config)
        min_insync_replicas = values["min.insync.replicas"]
        assert isinstance(min_insync_replicas, int)
        throttled = ThrottledReplicas(
            values["leader.replication.throttled.replicas"],  # type: ignore[arg-type]
            values["follower.replication.throttled.replicas"],  # type: ignore[arg-type]
        )
        return TopicSettings(LogConfig.from_topic_values(values), min_insync_replicas, throttled)
