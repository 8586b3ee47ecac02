"""Cuts received bytes into frames. A core, which owns the buffers that a socket is read into.

Small frames arrive in one scratch buffer, many at a time, and are copied out together. A frame that does not
fit gets a buffer of its own and is received directly into it: a fetch response of many megabytes is not
copied again, and the records decoded from it are slices of that buffer. The latest such buffer is used again
once nobody has a slice of it any longer, because new memory must be cleared and costs page faults.
"""

from __future__ import annotations

from klamm.protocol.framing import SIZE_BYTES, frame_size

SCRATCH_BYTES = 64 * 1024
"""The size of the scratch buffer; frames that do not fit get a buffer of their own."""

KEPT_BYTES = 4 * 1024 * 1024
"""The largest buffer that is kept for the next frame: what a follower's fetch is answered with under load."""

_FIRST_BYTES = 16


class FrameReceiver:
    """Read the socket into `buffer`, pass the number of bytes to `received`, and get the complete frames.

    Keeps at most one incomplete frame, of at most `max_frame_bytes`. After a MalformedMessage the stream
    cannot be read any further.
    """

    __slots__ = ("_filled", "_kept", "_large", "_scratch", "first_bytes", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._large: memoryview | None = None
        self._kept = bytearray()
        """The latest large buffer; frames that were received into it may still be in use."""
        self._filled = 0
        """The number of bytes in the large buffer; without one, at the start of the scratch buffer."""
        self.first_bytes = b""
        """The first bytes of the stream: they show what a server speaks that does not speak Kafka."""

    def buffer(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._scratch[self._filled :] if self._filled else self._scratch

    def received(self, count: int) -> list[memoryview]:
        """`count` more bytes are in `buffer`. Returns the frames that are complete now, without their
        sizes."""
        self._filled += count
        large = self._large
        if large is None:
            if not self.first_bytes:
                self.first_bytes = bytes(self._scratch[: min(count, _FIRST_BYTES)])
            return self._cut()
        if self._filled < len(large):
            return []
        self._large = None
        self._filled = 0
        return [large]

    def _cut(self) -> list[memoryview]:
        scratch, end = self._scratch, self._filled
        if end >= SIZE_BYTES and frame_size(scratch, 0, self.max_frame_bytes) == end - SIZE_BYTES:
            self._filled = 0  # exactly one frame, as with callers that have one request under way at a time
            return [memoryview(bytes(scratch[SIZE_BYTES:end]))]
        frames: list[memoryview] = []
        position = 0
        copy: memoryview | None = None
        while end - position >= SIZE_BYTES:
            size = frame_size(scratch, position, self.max_frame_bytes)
            start = position + SIZE_BYTES
            if start + size > end:
                if SIZE_BYTES + size > SCRATCH_BYTES:
                    self._begin_large(size, scratch[start:end])
                    return frames
                break
            if copy is None:
                copy = memoryview(bytes(scratch[:end]))
            frames.append(copy[start : start + size])
            position = start + size
        if position:
            rest = bytes(scratch[position:end])
            scratch[: len(rest)] = rest
            self._filled = len(rest)
        return frames

    def _begin_large(self, size: int, start: memoryview) -> None:
        self._large = self._buffer_of(size)
        self._large[: len(start)] = start
        self._filled = len(start)

    def _buffer_of(self, size: int) -> memoryview:
        if size > KEPT_BYTES:
            return memoryview(bytearray(size))
        if len(self._kept) < size or not _is_unused(self._kept):
            self._kept = bytearray(size)
        return memoryview(self._kept)[:size]


def _is_unused(buffer: bytearray) -> bool:
    """True if nobody has a memoryview of the buffer: only then may its length change."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
