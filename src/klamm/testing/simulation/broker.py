"""A simulated broker: the real parts of its life in the cluster, around simulated replicas.

Its registration, the elections, the controller, its channels, the requests for other ISRs and the group
coordinator are those of real brokers, on the event loop of a simulated process. The order in which they are
started and stopped is that of `node/broker.py`.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from types import GeneratorType
from typing import Any, cast

from klamm.apis import k04_leader_and_isr, k06_update_metadata, k07_controlled_shutdown, k56_alter_partition
from klamm.apis.broker import Broker
from klamm.apis.registry import Request
from klamm.apis.steps import run
from klamm.cluster.image import OFFSETS_TOPIC, BrokerImage, ClusterImage, Endpoint, ImageDelta
from klamm.cluster.service import ClusterService
from klamm.cluster.view import TopicFailures
from klamm.config.broker_config import BrokerConfig
from klamm.coordination.store import StoreError
from klamm.groups.coordinator import GroupCoordinator
from klamm.model.ids import NEVER_INTACT
from klamm.node.controller_link import ControllerLink
from klamm.node.membership import IdIsTaken, Membership
from klamm.protocol.messages.k04_leader_and_isr import LeaderAndIsrRequest
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest
from klamm.protocol.messages.k07_controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.k56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.protocol.schema import Message
from klamm.replication.isr import IsrChange
from klamm.replication.isr_requests import IsrRequests
from klamm.replication.progress import LagWatch
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.disk import SimulatedFile
from klamm.testing.simulation.groups import answer_group_request
from klamm.testing.simulation.network import Answer, Network, Node
from klamm.testing.simulation.offsets_log import SimulatedOffsetsLog
from klamm.testing.simulation.partitions import SimulatedPartitions
from klamm.testing.simulation.peers import SimulatedPeers, broker_name
from klamm.testing.simulation.replica import LAG_TIME_MAX_MS, Replica
from klamm.testing.simulation.store import SESSION_TIMEOUT_S, SimulatedStore, StoreServer
from klamm.testing.simulation.topics import PLACES

_START_AGAIN_S = 1.0
"""After which a supervisor starts a broker again that could not start."""
_FSYNC_INTERVAL_S = 20.0

_HANDLERS: dict[type[Message], Callable[[Any, Any], Any]] = {
    LeaderAndIsrRequest: k04_leader_and_isr.handle,
    UpdateMetadataRequest: k06_update_metadata.handle,
    ControlledShutdownRequest: k07_controlled_shutdown.handle,
    AlterPartitionRequest: k56_alter_partition.handle,
}


@cache
def _config(broker_id: int) -> BrokerConfig:
    return BrokerConfig(
        {
            "node.id": str(broker_id),
            "broker.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
            "replica.lag.time.max.ms": str(LAG_TIME_MAX_MS),
            "leader.imbalance.check.interval.seconds": "60",
        }
    )


class _NoWatchdog:
    """The loop of a simulated process does not hang."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def pause(self, until: Callable[[], object]) -> None:
        until()


@dataclass(frozen=True, slots=True)
class _Clock:
    """Wall-clock time of a machine: that of the simulation."""

    loop: Any

    def now_ms(self) -> int:
        return int(self.loop.now_ms)


class SimulatedBroker(Node):
    def __init__(
        self,
        broker_id: int,
        network: Network,
        store: StoreServer,
        ledger: Ledger,
        replica_class: type[Replica],
        chance: random.Random,
    ) -> None:
        super().__init__(broker_name(broker_id), network)
        self.node_id = broker_id
        self.ledger = ledger
        self.files = [SimulatedFile() for _ in PLACES]
        self.replicas: list[Replica] = []
        self.is_stopping = False
        self._server = store
        self._replica_class = replica_class
        self._chance = chance
        self._marker = NEVER_INTACT
        """On disk: the broker epochs in the marker of a clean shutdown, until the next start."""
        self._member_count = 0

    # ---- starting and stopping

    def start(self) -> None:
        self.is_up = True
        self.is_stopping = False
        self.new_process_loop(self._on_error)
        self.run(self.incarnation, self._begin)

    def _begin(self) -> None:
        self._lag_watch = LagWatch()
        self.replicas = [
            self._replica_class(index, self.node_id, file, self.ledger, self._lag_watch, self._propose)
            for index, file in enumerate(self.files)
        ]
        self.partitions = SimulatedPartitions(self, self.replicas)
        self._intact_at_start, self._marker = self._marker, NEVER_INTACT
        self.groups: GroupCoordinator | None = None
        self.membership: Membership | None = None
        self._store: SimulatedStore | None = None
        self._answering: dict[asyncio.Task[None], None] = {}
        self.later(LAG_TIME_MAX_MS / 2000, self._check_lag)
        self.later(_FSYNC_INTERVAL_S * self._chance.random(), self._fsync)
        self._main = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        """Start, and take part in the cluster; again and again while the store does not answer."""
        while True:
            try:
                await self._try_to_join()
                return
            except (StoreError, IdIsTaken):
                assert self.membership is not None
                await self.membership.close()
                await asyncio.sleep(_START_AGAIN_S)

    async def _try_to_join(self) -> None:
        self.cluster = ClusterService(self._new_store(), _config(self.node_id))
        self.membership = Membership(
            self.node_id,
            self._new_store,
            self.cluster,
            session_timeout_s=SESSION_TIMEOUT_S,
            watchdog=_NoWatchdog(),
            on_registered=self._on_registered,
            on_lost=self._on_session_lost,
        )
        self.peers = SimulatedPeers(self, self.network, lambda: self.cluster.image.brokers)
        self.link = ControllerLink(self.node_id, self.cluster, self.peers)
        self._isr_requests = IsrRequests(
            self.node_id,
            lambda: self.partitions.broker_epoch,
            self.link.alter_partition,
            self.membership.on_disowned,
        )
        store = await self.membership.open()
        await self.cluster.join(store, self.peers.tell, self.link.create_topics)
        self.cluster.subscribe(self._on_image)
        log_port = SimulatedOffsetsLog(self.replicas, self.partitions.wake_fetches)
        self.groups = GroupCoordinator(
            log_port, _Clock(self.loop), _config(self.node_id), new_unique_id=self._new_unique_id
        )
        self.groups.start()
        own = BrokerImage(self.node_id, {"brokers": Endpoint(self.name, 0)})
        await self.membership.register(own, self._intact_at_start)

    def _new_unique_id(self) -> str:
        self._member_count += 1
        return f"{self.node_id}-{self._member_count}"

    def kill(self) -> None:
        self.stop()
        self.network.reset_connections(self)
        self._server.on_death(self.name)

    def lose_power(self) -> None:
        self.stop()
        for file in self.files:
            file.lose_power(self._chance)

    def shut_down(self, on_stopped: Callable[[], None]) -> None:
        """Stop cleanly; `on_stopped` is called when the process has ended."""
        self.is_stopping = True
        self.run(self.incarnation, self._begin_to_stop, on_stopped)

    def _begin_to_stop(self, on_stopped: Callable[[], None]) -> None:
        self._stopping = asyncio.get_running_loop().create_task(self._stop(on_stopped))

    async def _stop(self, on_stopped: Callable[[], None]) -> None:
        self._main.cancel()
        epoch = self.broker_epoch
        if epoch is not None:
            await self.link.shut_down(epoch)
        if self.groups is not None:
            self.groups.stop()
        await self._isr_requests.shut_down()
        self.partitions.stop_fetching()
        for file in self.files:
            file.sync()
        epochs = NEVER_INTACT if self.membership is None else self.membership.intact_epochs
        self._marker = self._intact_at_start if epochs == NEVER_INTACT else epochs
        self.cluster.on_resigned()
        if self.membership is not None:
            await self.membership.close()
        self.kill()
        on_stopped()

    # ---- what the real parts ask for

    async def relay_alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self.link.relay_alter_partition(request)

    @property
    def broker_epoch(self) -> int | None:
        return None if self.membership is None else self.membership.broker_epoch

    def _new_store(self) -> SimulatedStore:
        self._store = SimulatedStore(self)
        return self._store

    def _on_registered(self, broker_epoch: int) -> None:
        self.ledger.note(f"broker {self.node_id} is registered in epoch {broker_epoch}")
        self.partitions.broker_epoch = broker_epoch

    async def _on_session_lost(self) -> None:
        self.ledger.note(f"the session of broker {self.node_id} has ended")
        self.partitions.resign_all()
        if self.groups is not None:
            self.groups.update_leadership()

    async def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> TopicFailures:
        if delta.brokers:
            self.peers.on_brokers_changed()
        if self.cluster.is_controller:
            await self.partitions.apply(new, delta)
            if OFFSETS_TOPIC in delta.topics and self.groups is not None:
                self.groups.update_leadership()
        else:
            await self.partitions.apply_settings(new, delta)
        return {}

    def _propose(self, replica: Replica, change: IsrChange) -> None:
        self._isr_requests.propose(replica, change)

    def _on_error(self, context: dict[str, Any]) -> None:
        self.ledger.on_error(f"broker {self.node_id}: {context.get('message')}", context.get("exception"))

    # ---- requests

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        if kind == "fetch":
            replica_id, broker_epoch, positions = payload
            self.partitions.on_fetch(replica_id, broker_epoch, positions, answer)
        elif kind == "produce":
            index, producer_id, sequence, is_idempotent, acks_all = payload
            self.partitions.produce(index, producer_id, sequence, is_idempotent, acks_all, answer)
        elif kind == "read":
            index, offset, leader_epoch = payload
            answer(self.replicas[index].read_committed(offset, leader_epoch))
        elif kind == "coordinator":
            answer(self._leader_of(payload))
        elif kind == "group":
            answer_group_request(self.groups, payload, answer, self._spawn)
        elif kind == "watch":
            answer(None)
            if self._store is not None:
                self._store.on_watch(*payload)
        else:
            self._spawn(self._answer(payload, answer))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._answering[task] = None
        task.add_done_callback(lambda done: self._answering.pop(done, None))

    async def _answer(self, message: Message, answer: Answer) -> None:
        if self.membership is None:
            return  # no listener is open before the broker has read the store
        handler = _HANDLERS[type(message)]
        # The handlers look at no more of a request than its message.
        nothing = cast(Any, None)
        outcome = await handler(cast(Broker, self), Request(message, 0, None, nothing, nothing))
        if isinstance(outcome, GeneratorType):
            _, outcome = run(outcome, math.inf)
        answer(outcome)

    def _leader_of(self, index: int) -> int:
        """As Metadata and FindCoordinator say it: by the image; -1 if it says nothing."""
        if self.broker_epoch is None:
            return -1
        place = PLACES[index]
        topic = self.cluster.image.topics.get(place.topic)
        return -1 if topic is None else topic.partitions[place.partition].leader

    def _check_lag(self) -> None:
        for leader, change in self._lag_watch.check(self.loop.now_ms):
            replica = self.partitions.of(leader.topic_partition)
            if replica.leader is leader:
                self._propose(replica, change)
        self.later(LAG_TIME_MAX_MS / 2000, self._check_lag)

    def _fsync(self) -> None:
        for file in self.files:
            file.sync()
        self.later(_FSYNC_INTERVAL_S, self._fsync)
