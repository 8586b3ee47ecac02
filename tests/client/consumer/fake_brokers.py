"""The fake cluster on sockets: as much of a broker as a consumer without a group needs.

What a test does to the logs happens under `changing`, which also wakes fetches that wait.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.headers import encode_response_frame, parse_request_header
from klamm.protocol.messages.k01_fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from klamm.protocol.schema import Message
from tests.client.consumer.fake_cluster import FakeCluster

SERVED = (
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
)
EARLIEST = -2


class FakeBrokers:
    """One listener for each node of a cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.newest_fetch = API_VERSIONS[ApiKey.FETCH].max_version
        self.epoch_questions: list[OffsetForLeaderEpochRequest] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._servers = {node: self._listen(node) for node in cluster.nodes}

    @property
    def ports(self) -> dict[int, int]:
        return {node: server.server_address[1] for node, server in self._servers.items()}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[self.cluster.nodes[0]]}"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def fetched_from(self) -> list[int]:
        """The nodes that were asked for records, in order."""
        with self._changed:
            return [node for node, _ in self.cluster.requests]

    def __enter__(self) -> FakeBrokers:
        return self

    def __exit__(self, *exception: object) -> None:
        with self.changing():
            self._is_closed = True
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    # ---- serving

    def _listen(self, node: int) -> socketserver.ThreadingTCPServer:
        brokers = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(ConnectionError):
                    while (frame := _receive(self.request)) is not None:
                        brokers._serve(node, self.request, frame)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name=f"klamm-broker-fake-{node}")
        thread.daemon = True
        thread.start()
        return server

    def _serve(self, node: int, connection: socket.socket, frame: bytes) -> None:
        key, version, correlation_id, _, offset = parse_request_header(frame)
        request, _ = decode(API_VERSIONS[ApiKey(key)].request, version, frame, offset)
        with self._changed:
            response = self._answer(node, ApiKey(key), request, version)
        connection.sendall(b"".join(encode_response_frame(key, version, correlation_id, response)))

    def _answer(self, node: int, key: ApiKey, request: Any, version: int) -> Message:
        match key:
            case ApiKey.API_VERSIONS:
                return self._versions()
            case ApiKey.METADATA:
                return self.cluster.describe(self.ports)
            case ApiKey.LIST_OFFSETS:
                return self._offsets(node, request)
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                return self._epoch_ends(request)
        return self._fetch(node, request, version)

    def _versions(self) -> ApiVersionsResponse:
        newest = {key: API_VERSIONS[key].max_version for key in SERVED} | {ApiKey.FETCH: self.newest_fetch}
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=API_VERSIONS[key].min_version, max_version=newest[key])
                for key in SERVED
            ]
        )

    def _offsets(self, node: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                log = self.cluster.logs[TopicPartition(topic.name, asked.partition_index)]
                answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
                if log.leader != node:
                    answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    answer.offset = log.start if asked.timestamp == EARLIEST else log.end
                partitions.append(answer)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        self.epoch_questions.append(request)
        topics = []
        for topic in request.topics:
            ends = []
            for asked in topic.partitions:
                log = self.cluster.logs[TopicPartition(topic.topic, asked.partition)]
                epoch, end_offset = log.epoch_end(asked.leader_epoch)
                ends.append(
                    EpochEndOffset(
                        error_code=0, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
                    )
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _fetch(self, node: int, request: FetchRequest, version: int) -> FetchResponse:
        deadline = time.monotonic() + request.max_wait_ms / 1000
        response = self.cluster.fetch(node, request, version)
        empty = FetchRequest(
            session_id=response.session_id, max_wait_ms=0, min_bytes=0, max_bytes=request.max_bytes
        )
        while not _is_enough(response) and (left := deadline - time.monotonic()) > 0 and not self._is_closed:
            self._changed.wait(left)
            session = self.cluster.sessions.get((node, response.session_id))
            if session is None:
                break
            empty.session_epoch = session.next_epoch
            response = self.cluster.fetch(node, empty, version)
            self.cluster.requests.pop()
            session.next_epoch -= 1  # that was no request of the client's
        return response


def _is_enough(response: FetchResponse) -> bool:
    return bool(
        response.error_code
        or any(
            data.records or data.error_code or data.preferred_read_replica >= 0
            for topic in response.responses
            for data in topic.partitions
        )
    )


def _receive(connection: socket.socket) -> bytes | None:
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    return connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
