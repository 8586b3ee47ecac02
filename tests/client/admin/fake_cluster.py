"""Several brokers that say what a test tells them to: for what one real broker cannot show.

Leaders, coordinators and the controller move when the test moves them. Every request that arrives is kept,
with the broker that it came to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k03_metadata import MetadataResponseTopic
from klamm.protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from klamm.protocol.schema import Message
from tests.client.network.fake_broker import SILENCE, FakeBroker, topic_of

Handler = Callable[[int, Any], Any]
"""From a broker and a request to the answer, or HANG_UP."""


class FakeCluster:
    """Brokers 1 to `size`, on the loop of the test."""

    def __init__(self, size: int = 2) -> None:
        self.controller = 1
        self.coordinator = 1
        self.leaders: dict[tuple[str, int], int] = {}
        self.newest: dict[ApiKey, int] = {}
        """The newest version of an API that brokers advertise. What has no handler is not advertised."""
        self.handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
        }
        self.seen: list[tuple[int, Message]] = []
        self._brokers = {number: FakeBroker(number) for number in range(1, size + 1)}
        self._running = AsyncExitStack()
        for number, broker in self._brokers.items():
            broker.answers = {key: partial(self._answer, number, key) for key in ApiKey}

    @property
    def bootstrap(self) -> str:
        return self._brokers[1].bootstrap

    async def __aenter__(self) -> FakeCluster:
        for broker in self._brokers.values():
            await self._running.enter_async_context(broker)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._running.aclose()

    def stop(self, broker: int) -> None:
        """From now on nobody listens there; the cluster goes on naming it."""
        self._brokers[broker].stop_listening()

    def requests(self, kind: type[Message]) -> list[tuple[int, Any]]:
        """Which requests of a kind came to which broker, in order."""
        return [(broker, request) for broker, request in self.seen if isinstance(request, kind)]

    def _answer(self, broker: int, key: ApiKey, request: Message, version: int) -> Any:
        self.seen.append((broker, request))
        return self.handlers[key](broker, request) if key in self.handlers else SILENCE

    # ---- what every client asks

    def _api_versions(self, broker: int, request: Any) -> Message:
        changes: dict[str, tuple[int, int] | None] = {
            key.name: None for key in ApiKey if key not in self.handlers
        }
        return self._brokers[broker].api_versions(
            **changes, **{key.name: (0, newest) for key, newest in self.newest.items()}
        )

    def _metadata(self, broker: int, request: Any) -> Message:
        named = {topic for topic, _ in self.leaders}
        if request.topics is not None:
            named = {topic.name for topic in request.topics}
        response = self._brokers[broker].metadata(
            *(self._topic(name) for name in sorted(named)), brokers=list(self._brokers.values())
        )
        response.controller_id = self.controller
        return response

    def _topic(self, name: str) -> MetadataResponseTopic:
        leaders = [leader for (topic, _), leader in sorted(self.leaders.items()) if topic == name]
        if not leaders:
            return topic_of(name, [], topic_id=bytes(16), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic_of(name, leaders, topic_id=name.encode().ljust(16)[:16])

    def _find_coordinator(self, broker: int, request: Any) -> Message:
        place = self._brokers[self.coordinator]
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=place.node_id, host="127.0.0.1", port=place.port)
                for key in request.coordinator_keys
            ]
        )
