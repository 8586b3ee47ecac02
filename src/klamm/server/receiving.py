"""The buffers that connections receive into.

Small frames, that is nearly all of them, are received into one buffer that every connection of a server
shares: it is filled and consumed within one callback, so ten thousand idle connections hold no buffer at
all. A frame that is longer than what has arrived of it gets a buffer of its own from `LargeBuffers`. Those
are anonymous maps: memory becomes resident only as bytes really arrive, however much a length announces.
The bytes that have arrived are counted and limited. If the announced bytes were, a few clients that announce
much and send nothing could keep all others from sending large frames.
"""

from __future__ import annotations

import mmap

from klamm.protocol.framing import SIZE_BYTES

SHARED_BUFFER_BYTES = 256 * 1024
"""Bytes read at a time: large enough for many pipelined requests, small enough to stay in the CPU cache."""

LARGE_FRAME_BYTES = 64 * 1024
"""A partial frame longer than this is received into its own buffer; a shorter one is carried over."""

KEPT_BYTES = 32 * 1024 * 1024
"""Large buffers kept for reuse: a resident buffer saves its page faults on the next frame."""

DEFAULT_LIMIT_BYTES = 1024 * 1024 * 1024
"""Received bytes of all large frames under way together. A connection that would exceed it is closed."""


class ReceiveMemoryExceeded(Exception):
    """Too many bytes of large frames are under way."""


class LargeBuffers:
    """A pool of buffers whose sizes are powers of two."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._received_bytes = 0
        self._kept_bytes = 0
        self._kept: dict[int, list[mmap.mmap]] = {}

    def take(self, size: int) -> mmap.mmap:
        capacity = 1 << (size - 1).bit_length()
        kept = self._kept.get(capacity)
        if kept:
            self._kept_bytes -= capacity
            return kept.pop()
        try:
            return mmap.mmap(-1, capacity)
        except OSError as error:
            raise ReceiveMemoryExceeded(f"no memory for a frame of {size} bytes: {error}") from error

    def count_received(self, byte_count: int) -> None:
        """Count `byte_count` more bytes that have arrived in a buffer; they count until it is given back."""
        if self._received_bytes + byte_count > self._limit_bytes:
            raise ReceiveMemoryExceeded(
                f"{self._received_bytes} of {self._limit_bytes} bytes for large frames are in use"
            )
        self._received_bytes += byte_count

    def give_back(self, buffer: mmap.mmap, counted_bytes: int) -> None:
        """Take the buffer back, and stop counting the `counted_bytes` that arrived in it."""
        self._received_bytes -= counted_bytes
        capacity = len(buffer)
        if self._kept_bytes + capacity <= KEPT_BYTES:
            self._kept_bytes += capacity
            self._kept.setdefault(capacity, []).append(buffer)


def holds_frame(carried: bytes) -> bool:
    """Whether these bytes begin with a frame that can be handled (or refused) without receiving more."""
    return len(carried) >= SIZE_BYTES and len(carried) - SIZE_BYTES >= int.from_bytes(
        carried[:SIZE_BYTES], "big", signed=True
    )
