"""A blocking connection that sends single requests, for tests and the bench.

It has no retries, no metadata and no batching: it sends exactly the requests that it is given.
"""

from __future__ import annotations

import socket
from typing import Any, TypeVar

from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.framing import FrameReader
from klamm.protocol.headers import encode_request_frame, parse_response_header
from klamm.protocol.schema import Message

ResponseT = TypeVar("ResponseT", bound=Message)


class WireConnection:
    """One socket to a broker. `call` sends a request and returns its response; `send` and `receive` do one
    each."""

    def __init__(self, bootstrap: str, *, client_id: str = "wire", timeout_s: float = 30.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._correlation_id = 0
        self._sent: list[tuple[int, ApiKey, int]] = []
        self._reader = FrameReader(max_bytes=2**31 - 1)
        self._frames: list[memoryview] = []

    def call(self, request: Message, version: int | None = None) -> Any:
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int | None = None, *, expect_response: bool = True) -> None:
        """Send `request` in `version`, by default in the newest."""
        assert request.__api_key__ is not None
        key = ApiKey(request.__api_key__)
        if version is None:
            version = API_VERSIONS[key].max_version
        self._correlation_id += 1
        chunks = encode_request_frame(key, version, self._correlation_id, self._client_id, request)
        self.socket.sendall(b"".join(chunks))
        if expect_response:
            self._sent.append((self._correlation_id, key, version))

    def receive(self) -> Any:
        """The response to the oldest request that is not answered yet."""
        frame = self.receive_frame()
        correlation_id, key, version = self._sent.pop(0)
        answered_id, offset = parse_response_header(key, version, frame)
        assert answered_id == correlation_id, f"response {answered_id} instead of {correlation_id}"
        message, _ = decode(API_VERSIONS[key].response, version, frame, offset)
        return message

    def receive_frame(self) -> memoryview:
        while not self._frames:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._frames = self._reader.feed(data)
        return self._frames.pop(0)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> WireConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
