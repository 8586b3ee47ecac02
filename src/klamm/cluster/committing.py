"""How a change is made: one at a time, first in the store, then in the image, then by the subscribers.

One change is made at a time. Subscribers are told (old image, new image) in order, after the image has
switched; what they return is awaited before the change counts as done, so a created topic can be used when
its creation is answered. A subscriber must not wait for another change: that one would wait for it.

A change runs to its end even when whoever asked for it goes away, since the store may have it already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from klamm.cluster import layout
from klamm.cluster.config_changes import effective_config
from klamm.cluster.controller import Change
from klamm.cluster.image import BrokerImage, ClusterImage
from klamm.cluster.loading import ControllerTerm, claim_controller, prepare_store, read_image
from klamm.config.loading import BrokerConfig
from klamm.coordination.store import BadVersion, Check, Operation, Store, StoreError
from klamm.model.errors import ErrorCode, KafkaError

TopicFailures: TypeAlias = Mapping[str, KafkaError]
"""Topics, by name, that this broker cannot fully serve after a change, each with the reason."""
Subscriber = Callable[[ClusterImage, ClusterImage], Awaitable[TopicFailures]]
ResultT = TypeVar("ResultT")


class Committer:
    """Holds the current image and configuration, and changes them.

    `marked` has the deleted topics whose files may still be there.
    """

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self.store = store
        self.config = config
        self.controller_epoch = 0
        self.marked: set[str] = set()
        self.subscribers: list[Subscriber] = []
        self._static_config = config
        self._image: ClusterImage | None = None
        self._term = ControllerTerm(0, 0)
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._must_reload = False

    @property
    def image(self) -> ClusterImage:
        assert self._image is not None, "the cluster is not loaded"
        return self._image

    async def load(self, broker: BrokerImage) -> None:
        """Read everything and begin a term as the controller, with `broker` alive."""
        await prepare_store(self.store)
        self._term = await claim_controller(self.store)
        self.controller_epoch = self._term.epoch
        loaded = await read_image(self.store, broker.id)
        self.marked = set(loaded.deleted_topics)
        self._switch_to(loaded.image.with_broker(broker))

    async def in_turn(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Do `work` while no other change is made. It runs to its end even if the caller is cancelled."""

        async def alone() -> ResultT:
            async with self._turn:
                if self._must_reload:
                    await self._reload()
                return await work()

        task = asyncio.create_task(alone())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def write(self, operations: Sequence[Operation]) -> None:
        """Apply operations to the store as the controller, or raise a KafkaError."""
        try:
            await self.store.txn([Check(layout.CONTROLLER_EPOCH, self._term.version), *operations])
        except BadVersion:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, "another broker has become the controller: ask that one"
            ) from None
        except StoreError as error:
            # What the store holds now is not known, so what the image says may be wrong.
            self._must_reload = True
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the change may or may not have been made: {error}"
            ) from error

    async def commit(self, changes: Sequence[Change]) -> TopicFailures:
        """Apply changes that follow one another in one transaction, then publish the last one's image."""
        await self.write(list(chain.from_iterable(change.operations for change in changes)))
        return await self.publish(changes[-1].image)

    async def publish(self, image: ClusterImage) -> TopicFailures:
        """Make `image` the current one and wait for all subscribers; returns the failures of all of them.

        A subscriber that raises is a bug of ours; the others are heard before its exception goes on.
        """
        old = self.image
        self._switch_to(image)
        outcomes = await asyncio.gather(
            *(subscriber(old, image) for subscriber in self.subscribers), return_exceptions=True
        )
        failures: dict[str, KafkaError] = {}
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            failures |= outcome
        return failures

    def _switch_to(self, image: ClusterImage) -> None:
        if self._image is None or image.broker_configs is not self._image.broker_configs:
            self.config = effective_config(self._static_config, image)
        self._image = image

    async def _reload(self) -> None:
        """Read the store again, after a change whose outcome was not known."""
        try:
            loaded = await read_image(self.store, self.image.controller_id)
        except StoreError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the store cannot be read: {error}") from error
        self._must_reload = False
        self.marked = set(loaded.deleted_topics)
        image = loaded.image
        for broker in self.image.brokers.values():
            image = image.with_broker(broker)
        await self.publish(image)
