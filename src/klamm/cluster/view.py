"""The cluster as one broker sees it: the current image, the effective configuration, and the subscribers.

A broker keeps its view when it becomes the controller or stops being it. The controller publishes every
stored change here; any other broker publishes what the controller's UpdateMetadata requests say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from klamm.cluster.config_changes import effective_config
from klamm.cluster.departed import DepartedBrokers
from klamm.cluster.image import BrokerImage, ClusterImage, Endpoint, ImageDelta
from klamm.config.loading import BrokerConfig
from klamm.model.errors import KafkaError

TopicFailures: TypeAlias = Mapping[str, KafkaError]
"""Topics, by name, that this broker cannot fully serve after a change, each with the reason."""
Subscriber = Callable[[ClusterImage, ClusterImage, ImageDelta], Awaitable[TopicFailures]]


class ClusterView:
    def __init__(self, config: BrokerConfig) -> None:
        """`config` is what the broker was started with."""
        self.config = config
        """The broker's effective configuration under the image."""
        self.subscribers: list[Subscriber] = []
        self._static_config = config
        self._image: ClusterImage | None = None
        self._departed = DepartedBrokers()
        self._telling: set[asyncio.Task[TopicFailures]] = set()

    @property
    def image(self) -> ClusterImage:
        assert self._image is not None, "the cluster is not loaded"
        return self._image

    def begin_with(self, image: ClusterImage) -> None:
        """Make `image` the current one without telling subscribers."""
        self.config = self.config_under(image)
        if self._image is not None and image.brokers is not self._image.brokers:
            self._departed.on_change(self._image.brokers, image.brokers, time.monotonic())
        self._image = image

    def listed_brokers(self, listener_name: str) -> Iterator[tuple[BrokerImage, Endpoint]]:
        """The brokers that have a listener of this name, and those that had one and left a moment ago."""
        yield from self.image.brokers_at(listener_name)
        yield from self._departed.at(listener_name, time.monotonic())

    def config_under(self, image: ClusterImage) -> BrokerConfig:
        """The broker's effective configuration if `image` were the current one."""
        if self._image is not None and image.broker_configs is self._image.broker_configs:
            return self.config
        return effective_config(self._static_config, image)

    def publish(self, image: ClusterImage, delta: ImageDelta) -> asyncio.Task[TopicFailures]:
        """Make `image`, which `delta` led to, the current one; the task is done when all subscribers are."""
        old = self.image
        self.begin_with(image)
        calls = [subscriber(old, image, delta) for subscriber in self.subscribers]
        task = asyncio.create_task(_failures_of(calls))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task


async def _failures_of(calls: Sequence[Awaitable[TopicFailures]]) -> TopicFailures:
    """Wait for all. A subscriber that raises is a bug of ours; the others are heard before that goes on."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures: dict[str, KafkaError] = {}
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        failures |= outcome
    return failures
