"""What a broker of a cluster needs to replicate: whom leaders ask, and who fetches for followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from klamm.apis.broker import Clock
from klamm.client.network.connection import BrokerConnection
from klamm.config.cluster_keys import RACK_AWARE_SELECTOR
from klamm.config.loading import BrokerConfig
from klamm.node.controller_link import ControllerLink
from klamm.node.peers import REPLICATION, Peers
from klamm.replication.context import ReplicationContext
from klamm.replication.fetcher import FetchSettings
from klamm.replication.fetchers import Fetchers
from klamm.replication.isr_requests import IsrRequests
from klamm.replication.partitions import Partitions


class Replication:
    def __init__(
        self,
        node_id: int,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        racks: Callable[[], Mapping[int, str | None]],
        peers: Peers,
        link: ControllerLink,
        partitions: Callable[[], Partitions],
        on_disowned: Callable[[int], None],
    ) -> None:
        self._config = config
        self._racks = racks
        self._peers = peers
        self._partitions = partitions
        self._isr_requests = IsrRequests(
            node_id, lambda: self.context.broker_epoch, link.alter_partition, on_disowned
        )
        self.context = ReplicationContext(
            node_id,
            clock.now_ms,
            lag_time_max_ms=lambda: config().int_("replica.lag.time.max.ms"),
            propose=self._isr_requests.propose,
            living_brokers=lambda: racks().keys(),
            racks=self._racks_of_readers,
        )
        self.fetchers = Fetchers(
            self._connect, self._fetch_settings, lambda work: partitions().run_in_thread(work)
        )
        self._watching: asyncio.Task[None] | None = None

    def on_new_controller(self) -> None:
        """Another broker has become the controller."""
        self._isr_requests.on_new_controller()

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch_lag(), name="klamm-lag-watch")

    async def shut_down(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.fetchers.shut_down()
        await self._isr_requests.shut_down()

    async def _watch_lag(self) -> None:
        """Have leaders look at followers that are behind, twice in the time that they may lag."""
        while True:
            await asyncio.sleep(self._config().int_("replica.lag.time.max.ms") / 2000)
            self._partitions().check_lag()

    async def _connect(self, leader_id: int, lane: int) -> BrokerConnection:
        return await self._peers.connect(leader_id, f"{REPLICATION}-{lane}")

    def _fetch_settings(self) -> FetchSettings:
        config = self._config()
        max_wait_ms = config.int_("replica.fetch.wait.max.ms")
        return FetchSettings(
            node_id=self.context.node_id,
            broker_epoch=self.context.broker_epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=config.int_("replica.fetch.min.bytes"),
            max_bytes=config.int_("replica.fetch.response.max.bytes"),
            partition_max_bytes=config.int_("replica.fetch.max.bytes"),
            pause_s=config.int_("replica.fetch.backoff.ms") / 1000,
            timeout_s=max(config.int_("replica.socket.timeout.ms"), 2 * max_wait_ms) / 1000,
        )

    def _racks_of_readers(self) -> Mapping[int, str | None]:
        is_aware = self._config().optional_str("replica.selector.class") == RACK_AWARE_SELECTOR
        return self._racks() if is_aware else {}
