"""What an API handler may reach: the services of one broker, without knowing how they are wired."""

from __future__ import annotations

from typing import Protocol

from klamm.cluster.service import ClusterService
from klamm.config.loading import BrokerConfig
from klamm.groups.coordinator import GroupCoordinator
from klamm.protocol.messages.k56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.replication.fetch_sessions import FetchSessions
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.replication.partitions import Partitions
from klamm.storage.log_dirs import LogDirs


class Clock(Protocol):
    """Wall-clock time, injected so that tests can move it."""

    def now_ms(self) -> int: ...


class ProducerIds(Protocol):
    """Hands out producer ids that no producer of the cluster has had before."""

    async def next(self) -> int:
        """The next producer id. Raises a KafkaError while no controller gives any."""


class Broker(Protocol):
    node_id: int
    clock: Clock
    cluster: ClusterService
    partitions: Partitions
    groups: GroupCoordinator
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    log_dirs: LogDirs
    log_dir_moves: LogDirMoves

    @property
    def config(self) -> BrokerConfig:
        """The effective configuration: static values with dynamic ones laid over them."""

    @property
    def broker_epoch(self) -> int | None:
        """The epoch in which this broker is registered with its cluster; None while it is not."""

    async def forward(self, frame: bytes, client_host: str) -> bytes | None:
        """Have the controller answer a client's request, both without their length; None if it does not."""

    async def relay_alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Have the controller answer another broker that does not reach it; NOT_CONTROLLER if it does not."""
