"""How this broker reaches the controller, whichever broker that is at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from klamm.apis.k56_alter_partition import answer as answer_alter_partition
from klamm.apis.k73_assign_replicas_to_dirs import assign, request_to_assign
from klamm.client.errors import ClientError
from klamm.cluster.controller.elections import may_lead
from klamm.cluster.controller.offline_replicas import ReplicaKey
from klamm.cluster.election import Controller
from klamm.cluster.service import ClusterService
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.node.peers import CONTROL, FORWARDING
from klamm.protocol.messages.k07_controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from klamm.protocol.messages.k19_create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.k56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.protocol.messages.k58_envelope import EnvelopeRequest, EnvelopeResponse
from klamm.protocol.messages.k67_allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from klamm.protocol.schema import Message

T = TypeVar("T")

FORWARDING_S = 10.0
"""How long a client's request waits for a controller: an election takes less, and clients wait longer."""

SHUTDOWN_S = 5.0
"""How long a broker that stops waits for its leaders to move."""

ISR_ANSWER_S = 2.0
"""How long a leader waits for the controller to answer AlterPartition before it asks by way of others."""

RELAYED_ISR_ANSWER_S = 3.0
"""How long it waits for a broker that passes the request on, and waits for the controller itself."""

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5


class PeerCalls(Protocol):
    """See `node/peers.py`."""

    async def call(
        self, broker_id: int, lane: str, request: Message, timeout_s: float | None = None
    ) -> Any: ...


class ControllerLink:
    def __init__(self, node_id: int, cluster: ClusterService, peers: PeerCalls) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._peers = peers
        self._last_relay = -1
        self._relaying_for: set[int] = set()
        """The leaders whose requests are being passed on to the controller."""

    async def forward(self, frame: bytes, client_host: str) -> bytes | None:
        """The controller's answer to a client's request; None if no controller answers in time."""
        envelope = EnvelopeRequest(request_data=frame, client_host_address=client_host.encode())

        async def attempt(timeout_s: float) -> EnvelopeResponse | None:
            response: EnvelopeResponse = await self._call(FORWARDING, envelope, timeout_s)
            return None if response.error_code == ErrorCode.NOT_CONTROLLER else response

        try:
            response = await self._until_answered(attempt, FORWARDING_S)
        except KafkaError:
            return None
        return None if response.response_data is None else bytes(response.response_data)

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Have topics made that this broker needs; raises a KafkaError if no controller answers in time."""

        async def attempt(timeout_s: float) -> CreateTopicsResponse | None:
            response: CreateTopicsResponse = await self._call(FORWARDING, request, timeout_s)
            refused = any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in response.topics)
            return None if refused else response

        return await self._until_answered(attempt, FORWARDING_S)

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Ask once for other ISRs; raises a ClientError or KafkaError without an answer.

        Where the controller does not answer, or is not known, another broker is asked to pass the request on,
        each time the next one. A leader that lost its way to the controller could not part with a follower
        otherwise, and where the controller is that follower, all writes with acks=all would wait. A leader
        that is cut off from the store alone hears in this way that others lead in its place.
        """
        if self._cluster.is_controller:
            return await answer_alter_partition(self._cluster, request)
        controller = self._cluster.controller
        try:
            response: AlterPartitionResponse = await self._call(CONTROL, request, ISR_ANSWER_S)
            return response
        except (ClientError, KafkaError) as error:
            problem = error
        relay = self._next_relay(controller)
        if relay is not None:
            with suppress(ClientError):
                response = await self._peers.call(relay, CONTROL, request, RELAYED_ISR_ANSWER_S)
                if response.error_code != ErrorCode.NOT_CONTROLLER:
                    return response
        raise problem

    def _next_relay(self, controller: Controller | None) -> int | None:
        """The broker after the last one, in turn; None if there is no third broker."""
        known = (self._node_id, None if controller is None else controller.broker_id)
        others = sorted(each for each in self._cluster.image.brokers if each not in known)
        if not others:
            return None
        self._last_relay = next((each for each in others if each > self._last_relay), others[0])
        return self._last_relay

    async def relay_alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Ask the controller for a leader that does not reach it; NOT_CONTROLLER if this broker does not.

        One request of each leader at a time, as leaders ask: so a request ends even where two brokers take
        each other for the controller.
        """
        leader_id = request.broker_id
        if leader_id != self._node_id and leader_id not in self._relaying_for:
            self._relaying_for.add(leader_id)
            try:
                response: AlterPartitionResponse = await self._call(CONTROL, request, ISR_ANSWER_S)
                return response
            except (ClientError, KafkaError):
                pass
            finally:
                self._relaying_for.discard(leader_id)
        return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)

    async def change_replicas(
        self, broker_epoch: int, *, offline: Iterable[ReplicaKey], online: Iterable[ReplicaKey]
    ) -> None:
        """Tell once which replicas of this broker are offline and which are back; ClientError, KafkaError."""
        request = request_to_assign(self._node_id, broker_epoch, offline=offline, online=online)
        if self._cluster.is_controller:
            await assign(self._cluster, request)
            return
        response = await self._call(CONTROL, request, None)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), "the controller refused it")

    async def allocate_producer_ids(self, broker_epoch: int) -> range:
        """A block of producer ids; raises a KafkaError if no controller gives one in time."""
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=broker_epoch)

        async def attempt(timeout_s: float) -> range | None:
            if self._cluster.is_controller:
                return await self._cluster.allocate_producer_ids(self._node_id, broker_epoch)
            response: AllocateProducerIdsResponse = await self._call(CONTROL, request, timeout_s)
            if response.error_code != ErrorCode.NONE:
                raise KafkaError(ErrorCode(response.error_code))
            start = response.producer_id_start
            return range(start, start + response.producer_id_len) or None

        return await self._until_answered(attempt, FORWARDING_S)

    async def shut_down(self, broker_epoch: int) -> bool:
        """Have the leaders of this broker moved to others; False if some stay, or nobody answers in time."""
        request = ControlledShutdownRequest(broker_id=self._node_id, broker_epoch=broker_epoch)

        async def attempt(timeout_s: float) -> bool | None:
            if self._cluster.is_controller:
                remaining = await self._cluster.shut_down_broker(self._node_id, broker_epoch)
            else:
                response: ControlledShutdownResponse = await self._call(CONTROL, request, timeout_s)
                if response.error_code != ErrorCode.NONE:
                    raise KafkaError(ErrorCode(response.error_code))
                remaining = [
                    TopicPartition(each.topic_name, each.partition_index)
                    for each in response.remaining_partitions
                ]
            if not remaining:
                return True
            return None if any(map(self._has_others_alive, remaining)) else False

        try:
            return await self._until_answered(attempt, SHUTDOWN_S)
        except KafkaError:
            return False

    def _has_others_alive(self, place: TopicPartition) -> bool:
        """True if another replica of the partition may be in sync soon."""
        image = self._cluster.image
        topic = image.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return False
        partition = topic.partitions[place.partition]
        others = (each for each in partition.replicas if each != self._node_id)
        return any(may_lead(image.brokers, partition, each) for each in others)

    async def _call(self, lane: str, request: Message, timeout_s: float | None) -> Any:
        controller = self._cluster.controller
        if controller is None or controller.broker_id == self._node_id:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "there is no controller now")
        return await self._peers.call(controller.broker_id, lane, request, timeout_s)

    async def _until_answered(self, attempt: Callable[[float], Awaitable[T | None]], patience_s: float) -> T:
        """What the first attempt returns that is not None. Attempts that fail are made again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        pause_s = FIRST_PAUSE_S
        reason = "the controller did not take the request"
        while (left_s := deadline - loop.time()) > 0:
            try:
                result = await attempt(left_s)
                if result is not None:
                    return result
            except (ClientError, KafkaError) as error:
                reason = str(error)
            await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"no controller has answered: {reason}")
