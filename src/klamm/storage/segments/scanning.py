"""Walking along the chain of batches in a log file, in threads: recovery, compaction, time look-ups."""

from __future__ import annotations

from collections.abc import Iterator

from klamm.records.batch import HEADER_SIZE, MAGIC, BatchHeader, parse_header
from klamm.storage.segments.page_cache import read_blocking

HEADER_SCAN_BYTES = 16 * 1024
BATCH_SCAN_BYTES = 1024 * 1024


class BrokenChain(Exception):
    """At `position` there is no whole batch."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"{reason} at position {position}")
        self.position = position
        self.reason = reason


def iter_headers(
    fd: int, position: int, end: int, chunk_bytes: int = HEADER_SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch; bodies that lie outside the chunks are not read."""
    chunk: bytes = b""
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = read_blocking(fd, position, min(chunk_bytes, end - position))
            chunk_start = position
            at = 0
            if len(chunk) < HEADER_SIZE:
                raise BrokenChain(position, "the file ends inside a header")
        header = parse_header(chunk, at)
        size = _checked_size(header, position, end)
        yield position, header
        position += size


def iter_batches(
    fd: int, position: int, end: int, chunk_bytes: int = BATCH_SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, whole batch) of each batch. The view holds until the next step."""
    chunk = memoryview(b"")
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = memoryview(read_blocking(fd, position, min(chunk_bytes, end - position)))
            chunk_start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                raise BrokenChain(position, "the file ends inside a header")
        header = parse_header(chunk, at)
        size = _checked_size(header, position, end)
        if at + size > len(chunk):
            chunk = memoryview(read_blocking(fd, position, min(max(chunk_bytes, size), end - position)))
            chunk_start, at = position, 0
            if len(chunk) < size:
                raise BrokenChain(position, "the file ends inside a batch")
        yield position, header, chunk[at : at + size]
        position += size


def read_batch(fd: int, position: int, header: BatchHeader) -> bytes:
    """The whole batch whose header was read. The log may have been truncated since."""
    batch = read_blocking(fd, position, header.size)
    if len(batch) != header.size:
        raise BrokenChain(position, "the file ends inside a batch")
    return batch


def _checked_size(header: BatchHeader, position: int, end: int) -> int:
    size = header.size
    if size < HEADER_SIZE:
        raise BrokenChain(position, f"a batch says it has {size} bytes")
    if header.magic != MAGIC:
        raise BrokenChain(position, f"a batch has magic {header.magic}")
    if size > end - position:
        raise BrokenChain(position, "the file ends inside a batch")
    return size
