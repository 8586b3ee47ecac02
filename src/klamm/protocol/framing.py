"""Frames: an int32 size, then as many bytes.

The server reads into its own buffer and calls only `frame_size`. Clients and tests, which receive bytes in
pieces, use `FrameReader`: bytes in, frames out, no IO.
"""

from __future__ import annotations

from struct import Struct as Packer

from klamm.protocol.errors import MalformedMessage
from klamm.protocol.primitives import Buffer

SIZE_BYTES = 4
"""The size before every frame."""

DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The default of Kafka's socket.request.max.bytes: no well-behaved client sends a larger request."""

_SIZE = Packer(">i")


def frame_size(buffer: Buffer, offset: int = 0, max_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> int:
    """The size at `offset`, where four bytes must be. It is malformed unless in 0..max_bytes."""
    size: int = _SIZE.unpack_from(buffer, offset)[0]
    if not 0 <= size <= max_bytes:
        raise MalformedMessage(f"a frame of {size} bytes is announced, and 0 to {max_bytes} are allowed")
    return size


class FrameReader:
    """Cuts a stream of bytes into frames.

    Holds at most one frame that is not complete, so no more than `max_bytes` and what was fed last. After a
    MalformedMessage the stream is lost, and every later call fails the same way.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._received = bytearray()

    def feed(self, data: Buffer) -> list[memoryview]:
        """Takes received bytes and returns the frames that are now complete, without their sizes."""
        self._received += data
        frames: list[memoryview] = []
        start = 0
        while len(self._received) - start >= SIZE_BYTES:
            end = start + SIZE_BYTES + frame_size(self._received, start, self._max_bytes)
            if end > len(self._received):
                break
            frames.append(memoryview(self._received[start + SIZE_BYTES : end]))
            start = end
        del self._received[:start]
        return frames

    @property
    def buffered_bytes(self) -> int:
        return len(self._received)
