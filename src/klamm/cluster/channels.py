"""What the controller has to say to the other brokers, in order and until they have heard it.

Each living broker has a channel, and a channel has one task: so requests arrive in the order of the changes,
and a slow broker holds up no other. A request is sent again until the broker has obeyed it. A channel is for
one broker epoch. It is opened when the controller has dealt with the broker's registration, so a broker that
has just been restarted is told nothing that was decided before; and it is closed when the broker is gone or
has registered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from klamm.client.errors import ClientError
from klamm.cluster.announcing import EPOCH_OF_DELETED, Requests
from klamm.cluster.image import BrokerImage, ClusterImage
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k04_leader_and_isr import LeaderAndIsrResponse
from klamm.protocol.messages.k05_stop_replica import StopReplicaRequest, StopReplicaResponse
from klamm.protocol.schema import Message

logger = logging.getLogger("klamm.cluster")

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
"""Pauses before a request is sent again; they double up to this."""

MAX_WAITING = 1_000
"""Changes that wait for a broker. If it lags further behind, one full set of requests takes their place."""

Send = Callable[[int, Message], Awaitable[Any]]
"""Sends a request to a broker and returns the answer; raises a ClientError if there is none."""


class Channel:
    """To one broker in one broker epoch."""

    def __init__(
        self,
        broker: BrokerImage,
        send: Send,
        *,
        full: Callable[[int], Requests | None],
        on_deleted: Callable[[int, list[bytes]], None],
        on_roles: Callable[[BrokerImage, LeaderAndIsrResponse], None],
        on_replaced: Callable[[], None],
    ) -> None:
        self.broker = broker
        self._send = send
        self._full = full
        self._on_deleted = on_deleted
        self._on_roles = on_roles
        self._on_replaced = on_replaced
        self._waiting: deque[tuple[Requests | None, list[asyncio.Future[None]]]] = deque()
        """None stands for what `full` will return when its turn has come."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def put(self, requests: Requests) -> asyncio.Future[None]:
        """Have the requests sent; the future is done when all are obeyed, or the channel is closed."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_closed or not any(requests):
            told.set_result(None)
            return told
        self._waiting.append((requests, [told]))
        if len(self._waiting) > MAX_WAITING:
            self._wait_for_full([])
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"klamm-channel-{self.broker.id}")
        return told

    def _wait_for_full(self, told: list[asyncio.Future[None]]) -> None:
        """Send a full set instead of all that waits; then `told` are done, too."""
        told = told + [each for _, futures in self._waiting for each in futures]
        self._waiting.clear()
        self._waiting.append((None, told))

    def close(self) -> None:
        """Say nothing more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        while self._waiting:
            _tell(self._waiting.popleft()[1])

    async def _run(self) -> None:
        while self._waiting:
            requests, told = self._waiting.popleft()
            try:
                requests = self._full(self.broker.id) if requests is None else requests
                for request in requests or ():
                    if request is not None:
                        await self._deliver(request)
            except Exception:
                # A bug of ours must not leave a broker that is told nothing more, or less than all.
                logger.exception("a request to broker %d failed; sending it all metadata", self.broker.id)
                self._wait_for_full(told)
                told = []
                await asyncio.sleep(LONGEST_PAUSE_S)
            finally:
                _tell(told)

    async def _deliver(self, request: Message) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_closed:
            problem = await self._try(request)
            if problem is None:
                return
            if pause_s == FIRST_PAUSE_S:
                logger.info("a request to broker %d failed and is sent again: %s", self.broker.id, problem)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _try(self, request: Message) -> str | None:
        """None if the broker has obeyed or never will; else why it has not."""
        try:
            response = await self._send(self.broker.id, request)
        except ClientError as error:
            return str(error)
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self._take_answer(request, response)
            return None
        if code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._on_replaced()
            self._is_closed = True
            return None
        if code is ErrorCode.STALE_BROKER_EPOCH:
            # It has registered again: another channel is opened when that is dealt with.
            self._is_closed = True
            return None
        # Also when a broker does not know its own new epoch yet: then this is not delivered.
        return f"it answered {code.name}"

    def _take_answer(self, request: Message, response: Any) -> None:
        if isinstance(request, StopReplicaRequest):
            for each in response.partition_errors:
                # A deletion that failed stays noted: the broker is told again when it registers anew.
                logger.warning(
                    "broker %d has not stopped its replica of %s-%d: %s",
                    self.broker.id,
                    each.topic_name,
                    each.partition_index,
                    ErrorCode(each.error_code).name,
                )
            deleted = _deleted_topics(request, response)
            if deleted:
                self._on_deleted(self.broker.id, deleted)
        elif isinstance(response, LeaderAndIsrResponse):
            self._on_roles(self.broker, response)


def _tell(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _deleted_topics(request: StopReplicaRequest, response: StopReplicaResponse) -> list[bytes]:
    """The ids of deleted topics of which the broker has no files any more."""
    failed = {
        TopicPartition(each.topic_name, each.partition_index)
        for each in response.partition_errors
        if each.error_code != ErrorCode.NONE
    }
    return [
        topic.topic_id
        for topic in request.topic_states
        if all(
            each.leader_epoch == EPOCH_OF_DELETED
            and TopicPartition(topic.topic_name, each.partition_index) not in failed
            for each in topic.partition_states
        )
    ]


class Channels:
    """The channels to all other brokers, for one term of the controller."""

    def __init__(
        self,
        send: Send,
        *,
        full: Callable[[int], Requests | None],
        on_deleted: Callable[[int, list[bytes]], None],
        on_roles: Callable[[BrokerImage, LeaderAndIsrResponse], None],
        on_replaced: Callable[[], None],
    ) -> None:
        """`full` makes all requests for one broker, `on_deleted` is told which broker has no files of which
        topics, `on_roles` what a broker says of its roles, `on_replaced` that a broker knows a later
        controller."""
        self._send = send
        self._full = full
        self._on_deleted = on_deleted
        self._on_roles = on_roles
        self._on_replaced = on_replaced
        self._channels: dict[int, Channel] = {}

    def tell(self, image: ClusterImage, requests: Mapping[int, Requests]) -> list[asyncio.Future[None]]:
        """Have the brokers of `image` told; one future for each, done when that broker has obeyed."""
        for broker_id, channel in list(self._channels.items()):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != channel.broker.epoch:
                self._channels.pop(broker_id).close()
        told = []
        for broker_id, for_broker in requests.items():
            if broker_id not in self._channels:
                self._channels[broker_id] = Channel(
                    image.brokers[broker_id],
                    self._send,
                    full=self._full,
                    on_deleted=self._on_deleted,
                    on_roles=self._on_roles,
                    on_replaced=self._on_replaced,
                )
            told.append(self._channels[broker_id].put(for_broker))
        return told

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
