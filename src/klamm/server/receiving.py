"""Where received bytes go before they are frames.

Small frames, that is nearly all of them, are received into one buffer that every connection of the loop
shares: it is filled and consumed within one callback, so ten thousand idle connections hold no buffer at
all. A frame that is longer than what has arrived of it gets a buffer of its own from `LargeBuffers`. Those
are anonymous maps: memory becomes resident only as bytes really arrive, however much a length announces.
"""

from __future__ import annotations

import mmap

SHARED_BUFFER_BYTES = 256 * 1024
"""Bytes read at a time: large enough for many pipelined requests, small enough to stay in the CPU cache."""

LARGE_FRAME_BYTES = 64 * 1024
"""A partial frame longer than this is received into its own buffer; a shorter one is carried over."""

KEPT_BYTES = 32 * 1024 * 1024
"""Large buffers kept for reuse: a resident buffer saves its page faults on the next frame."""

DEFAULT_LIMIT_BYTES = 1024 * 1024 * 1024
"""All large frames under way together. A connection that would exceed it is closed."""


class ReceiveMemoryExceeded(Exception):
    """Too many bytes of large frames are under way."""


class LargeBuffers:
    """A pool of buffers whose sizes are powers of two."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._in_use_bytes = 0
        self._kept_bytes = 0
        self._kept: dict[int, list[mmap.mmap]] = {}

    def take(self, size: int) -> mmap.mmap:
        capacity = 1 << (size - 1).bit_length()
        if self._in_use_bytes + capacity > self._limit_bytes:
            raise ReceiveMemoryExceeded(
                f"a frame of {size} bytes does not fit: {self._in_use_bytes} of {self._limit_bytes} bytes "
                "for large frames are in use"
            )
        self._in_use_bytes += capacity
        kept = self._kept.get(capacity)
        if kept:
            self._kept_bytes -= capacity
            return kept.pop()
        return mmap.mmap(-1, capacity)

    def give_back(self, buffer: mmap.mmap) -> None:
        capacity = len(buffer)
        self._in_use_bytes -= capacity
        if self._kept_bytes + capacity <= KEPT_BYTES:
            self._kept_bytes += capacity
            self._kept.setdefault(capacity, []).append(buffer)
