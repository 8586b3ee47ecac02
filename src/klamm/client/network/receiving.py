"""Frames out of received bytes: a core that owns the buffers a socket is read into.

Small frames arrive in one scratch buffer, many at a time, and are copied out together. A frame that does not
fit gets a buffer of its own and is received straight into it: a fetched answer of many megabytes is not
copied again, and what is decoded from it are slices of that buffer.
"""

from __future__ import annotations

from klamm.protocol.framing import SIZE_BYTES, frame_size

SCRATCH_BYTES = 64 * 1024
"""What one read takes at most while frames are small; larger frames get a buffer of their own."""

_FIRST_BYTES = 16


class FrameReceiver:
    """Give `buffer` to the socket, tell `received` how much came, and get the frames that are whole.

    Holds at most one frame that is not whole, of at most `max_frame_bytes`. After a MalformedMessage the
    stream is lost.
    """

    __slots__ = ("_filled", "_large", "_scratch", "first_bytes", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._large: memoryview | None = None
        self._filled = 0
        """Bytes that are in the large buffer, or else at the start of the scratch buffer."""
        self.first_bytes = b""
        """What the stream began with: says what a server speaks that does not speak Kafka."""

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._scratch[self._filled :] if self._filled else self._scratch

    def received(self, count: int) -> list[memoryview]:
        """The frames, without their sizes, that are whole now that `count` more bytes are in `buffer`."""
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
            self._filled = 0  # just one frame: so it is for those who ask for one thing at a time
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
        self._large = memoryview(bytearray(size))
        self._large[: len(start)] = start
        self._filled = len(start)
