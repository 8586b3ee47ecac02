"""A broker that follows a script: real sockets, real frames, and answers that a real broker never gives.

    async with FakeBroker() as broker:
        broker.answers[ApiKey.METADATA] = lambda request, version: MetadataResponse(...)
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE

ApiVersions and Metadata have answers of their own until they are replaced. What an answer returns is a
message, raw bytes to write as they are, SILENCE, or HANG_UP.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any

from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.headers import encode_response_frame, parse_request_header
from klamm.protocol.messages.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.schema import Message

STOP_SECONDS = 5.0
"""How long `stop` waits for connections whose other side does not read what was sent."""

SILENCE = object()
HANG_UP = object()
Answer = Callable[[Any, int], Any]


class FakeBroker:
    """One node with the id `node_id`, alone in its cluster unless the Metadata answer says otherwise."""

    def __init__(self, node_id: int = 1) -> None:
        self.node_id = node_id
        self.port = 0
        self.connections = 0
        self.requests: list[tuple[ApiKey, int, Message]] = []
        self.answers: dict[int, Answer] = {
            ApiKey.API_VERSIONS: lambda request, version: self.api_versions(),
            ApiKey.METADATA: lambda request, version: self.metadata(),
        }
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def __aenter__(self) -> FakeBroker:
        await self.listen()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def listen(self) -> None:
        """Start, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Take no new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        self.stop_listening()
        self.cut()
        # Until the last has hung up: asyncio complains of one that is cancelled when the loop ends.
        if tasks := [task for task in self._tasks if task is not None]:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    def cut(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    def count(self, key: ApiKey) -> int:
        return sum(each[0] == key for each in self.requests)

    # ---- answers

    def api_versions(self, **changes: tuple[int, int] | None) -> ApiVersionsResponse:
        """All keys in all versions, but for `changes` by the names of ApiKey; None takes a key out."""
        served = {
            key.name: (spec.accepted.first, spec.accepted.last) for key, spec in API_VERSIONS.items()
        } | changes
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=ApiKey[name], min_version=span[0], max_version=span[1])
                for name, span in served.items()
                if span is not None
            ]
        )

    def metadata(
        self, *topics: MetadataResponseTopic, brokers: list[FakeBroker] | None = None
    ) -> MetadataResponse:
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=each.node_id, host="127.0.0.1", port=each.port)
                for each in (brokers or [self])
            ],
            cluster_id="fake",
            controller_id=self.node_id,
            topics=list(topics),
        )

    # ---- serving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        try:
            while await self._handle_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._tasks.discard(asyncio.current_task())

    async def _handle_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        frame = await reader.readexactly(size)
        api_key, version, correlation_id, _, offset = parse_request_header(frame)
        key = ApiKey(api_key)
        request, _ = decode(API_VERSIONS[key].request, version, frame, offset)
        self.requests.append((key, version, request))
        answer = self.answers.get(key, lambda request, version: SILENCE)(request, version)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is HANG_UP:
            return False
        if answer is not SILENCE:
            if isinstance(answer, Message):
                if isinstance(answer, ApiVersionsResponse) and answer.error_code:
                    version = 0
                answer = b"".join(encode_response_frame(key, version, correlation_id, answer))
            writer.write(answer)
        return True


def topic_of(
    name: str, leaders: list[int], *, epoch: int = 0, topic_id: bytes = b"t" * 16, error: int = 0
) -> MetadataResponseTopic:
    """A topic in a Metadata answer; `leaders` are those of its partitions."""
    return MetadataResponseTopic(
        name=name,
        topic_id=topic_id,
        error_code=error,
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[leader],
                isr_nodes=[leader],
            )
            for index, leader in enumerate(leaders)
        ],
    )
