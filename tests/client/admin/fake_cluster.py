"""Several brokers that say what a test tells them to: for what one real broker cannot show.

Leaders, coordinators and the controller move when the test moves them. Every request that arrives is kept,
with the broker that it came to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.headers import encode_response_frame, parse_request_header
from klamm.protocol.messages.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from klamm.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.schema import Message

Handler = Callable[[int, Any], Message | None]
"""From a broker and a request to the answer; None hangs up instead."""


class FakeCluster:
    """Brokers 1 to `size`, on the loop of the test."""

    def __init__(self, size: int = 2) -> None:
        self.ids = range(1, size + 1)
        self.controller = 1
        self.coordinator = 1
        self.leaders: dict[tuple[str, int], int] = {}
        self.newest: dict[ApiKey, int | None] = {}
        """The newest version of an API that brokers advertise; None hides it."""
        self.handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
        }
        self.seen: list[tuple[int, Message]] = []
        self._servers: dict[int, asyncio.Server] = {}
        self._ports: dict[int, int] = {}
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    async def __aenter__(self) -> FakeCluster:
        for broker in self.ids:
            server = await asyncio.start_server(self._accept(broker), "127.0.0.1", 0)
            self._servers[broker] = server
            self._ports[broker] = server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for broker in self.ids:
            self.stop(broker)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def stop(self, broker: int) -> None:
        """From now on nobody listens there; the cluster goes on naming it."""
        self._servers[broker].close()

    def requests(self, kind: type[Message]) -> list[tuple[int, Any]]:
        """Which requests of a kind came to which broker, in order."""
        return [(broker, request) for broker, request in self.seen if isinstance(request, kind)]

    # ---- what every client asks

    def _api_versions(self, broker: int, request: Any) -> Message:
        ranges = []
        for key, spec in API_VERSIONS.items():
            newest = self.newest.get(key, spec.max_version)
            if key in self.handlers and newest is not None:
                ranges.append(ApiVersion(api_key=key, min_version=spec.min_version, max_version=newest))
        return ApiVersionsResponse(api_keys=ranges)

    def _metadata(self, broker: int, request: Any) -> Message:
        named = {topic for topic, _ in self.leaders}
        if request.topics is not None:
            named = {topic.name for topic in request.topics}
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=one, host="127.0.0.1", port=self._ports[one])
                for one in self.ids
            ],
            cluster_id="fake",
            controller_id=self.controller,
            topics=[self._topic(name) for name in sorted(named)],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        partitions = [
            MetadataResponsePartition(
                partition_index=number, leader_id=leader, replica_nodes=[leader], isr_nodes=[leader]
            )
            for (topic, number), leader in sorted(self.leaders.items())
            if topic == name
        ]
        code = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = name.encode().ljust(16, b"\0")[:16] if partitions else bytes(16)
        return MetadataResponseTopic(name=name, error_code=code, topic_id=topic_id, partitions=partitions)

    def _find_coordinator(self, broker: int, request: Any) -> Message:
        place = {"node_id": self.coordinator, "host": "127.0.0.1", "port": self._ports[self.coordinator]}
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=key, **place) for key in request.coordinator_keys]
        )

    # ---- connections

    def _accept(self, broker: int) -> Callable[..., None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(broker, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return accept

    async def _serve(self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                key, version, correlation_id, _, offset = parse_request_header(frame)
                request, _ = decode(API_VERSIONS[ApiKey(key)].request, version, frame, offset)
                self.seen.append((broker, request))
                answer = self.handlers[ApiKey(key)](broker, request)
                if answer is None:
                    break
                for chunk in encode_response_frame(key, version, correlation_id, answer):
                    writer.write(chunk)
        writer.close()
