"""Leaders ask the controller for changes of their ISR, many partitions in a request.

What leaders propose in one iteration of the event loop travels together, and one request is under way at a
time. Each leader decides what an outcome means to it (`isr.py`); a change whose outcome is not known is sent
again after a pause, for as long as its leader wants it. When another broker becomes the controller, nobody
waits any longer for the one before, which may hang: what was asked of it is asked of the new one at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from klamm.client.errors import BrokerError, ClientError
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionState,
    AlterPartitionTopic,
    BrokerState,
)
from klamm.replication.isr import IsrChange, Outcome, outcome_of

logger = logging.getLogger("klamm.replication")

RETRY_PAUSE_S = 0.05
LONGEST_RETRY_PAUSE_S = 1.0
"""Pauses after requests that failed, which double up to this: a new controller is elected in such a time."""

Key = tuple[bytes, int]
"""(topic id, partition)"""


class LedPartition(Protocol):
    @property
    def key(self) -> Key: ...

    def on_isr_outcome(
        self, change: IsrChange, outcome: Outcome, isr: tuple[int, ...], partition_epoch: int
    ) -> IsrChange | None:
        """Take the outcome of a change; returns the change to send next, if there is one."""


Ask = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]


class IsrRequests:
    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        ask: Ask,
        on_disowned: Callable[[int], None] = lambda broker_epoch: None,
    ) -> None:
        """`ask` sends a request to the controller; it raises a ClientError or KafkaError if none answers.
        `on_disowned` gets a broker epoch of this broker that the controller does not know, or no longer."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._on_disowned = on_disowned
        self._proposed: dict[Key, tuple[LedPartition, IsrChange]] = {}
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._has_new_controller = asyncio.Event()

    def on_new_controller(self) -> None:
        self._failures = 0
        self._has_new_controller.set()

    def propose(self, partition: LedPartition, change: IsrChange) -> None:
        """Have a change sent. A later change of the same partition takes its place until it is sent."""
        self._proposed[partition.key] = (partition, change)
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="klamm-isr-requests")

    async def shut_down(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._proposed:
            under_way, self._proposed = self._proposed, {}
            request = _request(self._node_id, self._broker_epoch(), under_way)
            self._has_new_controller.clear()
            try:
                results = _results(await self._ask_controller(request))
            except (ClientError, KafkaError) as error:
                if error.code == ErrorCode.STALE_BROKER_EPOCH:
                    self._on_disowned(request.broker_epoch)
                if not self._failures:
                    logger.warning("the controller cannot be asked for changes of the ISR: %s", error)
                results = {}
            except Exception:
                # Without an outcome a leader would wait for ever, and propose nothing more.
                logger.exception("the controller cannot be asked for changes of the ISR")
                results = {}
            needs_pause = self._take(under_way, results)
            if needs_pause:
                self._failures += 1
                pause_s = min(RETRY_PAUSE_S * 2 ** min(self._failures, 10), LONGEST_RETRY_PAUSE_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_new_controller.wait(), pause_s)
            else:
                self._failures = 0

    async def _ask_controller(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Ask until there is an answer or another controller; NOT_CONTROLLER in that case."""
        asking = asyncio.ensure_future(self._ask(request))
        changing = asyncio.ensure_future(self._has_new_controller.wait())
        try:
            await asyncio.wait((asking, changing), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker has become the controller meanwhile")
        finally:
            asking.cancel()
            changing.cancel()

    def _take(
        self,
        under_way: dict[Key, tuple[LedPartition, IsrChange]],
        results: dict[Key, AlterPartitionResult],
    ) -> bool:
        """Tell the leaders their outcomes. True if a change is to be sent again, after a pause."""
        needs_pause = False
        for key, (partition, change) in under_way.items():
            result = results.get(key)
            if result is None:
                following = partition.on_isr_outcome(change, Outcome.UNKNOWN, (), -1)
                outcome = Outcome.UNKNOWN
            else:
                outcome = outcome_of(result.error_code)
                following = partition.on_isr_outcome(
                    change, outcome, tuple(result.isr), result.partition_epoch
                )
            if following is not None:
                self._proposed.setdefault(key, (partition, following))
                needs_pause = needs_pause or outcome is not Outcome.APPLIED
        return needs_pause


def _request(
    node_id: int, broker_epoch: int, under_way: dict[Key, tuple[LedPartition, IsrChange]]
) -> AlterPartitionRequest:
    topics: dict[bytes, AlterPartitionTopic] = {}
    for (topic_id, index), (_, change) in under_way.items():
        topics.setdefault(topic_id, AlterPartitionTopic(topic_id=topic_id)).partitions.append(
            AlterPartitionState(
                partition_index=index,
                leader_epoch=change.leader_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
                    for member in change.members
                ],
                partition_epoch=change.partition_epoch,
            )
        )
    return AlterPartitionRequest(broker_id=node_id, broker_epoch=broker_epoch, topics=list(topics.values()))


def _results(response: AlterPartitionResponse) -> dict[Key, AlterPartitionResult]:
    """The results by partition; none if the request as a whole was refused, which says nothing of any."""
    if response.error_code != ErrorCode.NONE:
        raise BrokerError.of(response.error_code, "AlterPartition")
    return {
        (topic.topic_id, result.partition_index): result
        for topic in response.topics
        for result in topic.partitions
    }
