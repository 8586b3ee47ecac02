"""One segment: a stretch of a partition's log in `<base offset>.log`, with its two indexes.

The log file is a chain of batches; positions are byte offsets of batch starts. Writing is for the active
segment only, by one thread at a time (the log holds its lock). Reading needs no lock: `size` is raised
after the bytes are written, and bytes below `size` never change.

A segment holds its file open only while it is used, see open_files.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId
from klamm.records.batch import HEADER_SIZE, LOG_OVERHEAD, NO_TIMESTAMP, BatchHeader, parse_header
from klamm.storage.checkpoints import PARTITION_METADATA_FILE, write_partition_metadata
from klamm.storage.files import remove_if_there, sync_fd, write_all
from klamm.storage.segments import offset_index, time_index
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.open_files import FileHandle, OpenFiles
from klamm.storage.segments.page_cache import WouldBlock, is_resident, read_blocking, read_nowait, warm
from klamm.storage.segments.time_index import TimeIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
CLEANED_SUFFIX = ".cleaned"
"""Ends the names of files that compaction has written and that are not in place yet."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
MAX_RELATIVE_OFFSET = 2**31 - 1

SCAN_BYTES = 8 * 1024
"""One read of a header scan: an index interval and the headers around it."""
INLINE_BYTES = 32 * 1024
"""Below this, reading and writing is as fast as sendfile, and the read proves that nothing blocks."""
CURSOR_LIMIT = 64
"""How many positions where readers stopped are kept; a miss costs an index look-up and a short scan."""

_OFFSETS = struct.Struct(">qi11xi")
_OFFSETS_BYTES = _OFFSETS.size
_MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD


class CorruptSegment(KafkaError):
    """The chain of batches is broken where it was whole before, or an index entry points at no batch."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class FileSlice:
    """A run of whole batches in a segment's file, to be sent as it is.

    Small ones hold their bytes already; large ones are for sendfile from `file` at `position`.
    """

    __slots__ = ("_data", "file", "length", "position")

    def __init__(self, file: FileHandle, position: int, length: int, data: bytes | bytearray | None) -> None:
        self.file = file
        self.position = position
        self.length = length
        self._data = data

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes | bytearray:
        """All bytes; an OSError if the log was cut meanwhile."""
        if self._data is not None:
            return self._data
        data = read_blocking(self.file.fd, self.position, self.length)
        if len(data) != self.length:
            raise OSError(errno.ENODATA, "the log was truncated while this was sent", self.file.path)
        return data


def segment_file(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


class Segment:
    __slots__ = (
        "__weakref__",
        "_cursors",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "first_timestamp",
        "handle",
        "is_deleted",
        "is_sealed",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "open_files",
        "recently_used",
        "size",
        "time_index",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        open_files: OpenFiles,
        *,
        size: int = 0,
        index_entries: int = 0,
        time_index_entries: int = 0,
        created_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """A segment whose files exist. `suffix` ends the names of files that are not in place yet."""
        self.directory = directory
        self.base_offset = base_offset
        self.open_files = open_files
        self.size = size
        self.created_ms = created_ms
        self.handle: FileHandle | None = None
        self.recently_used = False
        self.is_deleted = False
        """True once it is no longer part of the log, see `retire`."""
        self.is_sealed = True
        """True if the index files are complete."""
        self.offset_index = OffsetIndex(self.path(INDEX_SUFFIX + suffix), index_entries)
        self.time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX + suffix), time_index_entries)
        self.bytes_since_index = 0
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._cursors: dict[int, int] = {}

    @classmethod
    def create(
        cls,
        directory: str,
        base_offset: int,
        open_files: OpenFiles,
        *,
        created_ms: int,
        preallocate_bytes: int = 0,
        suffix: str = "",
    ) -> Segment:
        """A new, empty segment. Its index files are made with their first entries, or when it is sealed:
        making files is slow, and a log rolls on the event loop."""
        segment = cls(directory, base_offset, open_files, created_ms=created_ms, suffix=suffix)
        for leftover in (segment.offset_index.path, segment.time_index.path):
            remove_if_there(leftover)
        handle = FileHandle(segment.path(LOG_SUFFIX + suffix), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if preallocate_bytes:
            os.posix_fallocate(handle.fd, 0, preallocate_bytes)
        segment.handle = handle
        open_files.admit(segment)
        return segment

    def retire(self) -> None:
        """It is no longer part of the log: from now on its file names may be those of another segment."""
        self.is_deleted = True
        self.open_files.forget(self)

    def remove(self) -> None:
        """Remove the files of a segment that never became part of the log."""
        self.open_files.forget(self)
        for suffix in SEGMENT_SUFFIXES:
            remove_if_there(self.path(suffix))

    def in_place(self) -> Segment:
        """The same segment after its files have lost their suffix."""
        return Segment(
            self.directory,
            self.base_offset,
            self.open_files,
            size=self.size,
            index_entries=len(self.offset_index),
            time_index_entries=len(self.time_index),
            created_ms=self.created_ms,
        )

    def relocate(self, directory: str) -> None:
        """The directory of its files was renamed. The caller holds the log's lock."""
        self.directory = directory
        self.offset_index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)

    def path(self, suffix: str) -> str:
        return segment_file(self.directory, self.base_offset, suffix)

    # Writing: the active segment only, under the log's lock.

    def append(
        self, batch: memoryview, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Write one batch at the end. After an OSError the segment is as it was before."""
        handle = self.handle or self.open_handle()
        self.recently_used = True
        position = self.size
        size = len(batch)
        try:
            written = os.pwrite(handle.fd, batch, position)
            while written < size:
                written += os.pwrite(handle.fd, batch[written:], position + written)
        except OSError:
            os.ftruncate(handle.fd, position)
            raise
        if position == 0:
            self.first_timestamp = max_timestamp
        self.is_sealed = False
        self.note_batch(position, size, last_offset, max_timestamp, index_interval_bytes)
        self.size = position + size

    def write_ahead(self, batches: memoryview) -> None:
        """Write batches behind the end, where nobody reads. `take_in` makes them part of the segment, and
        `drop_ahead` removes them, also after an OSError."""
        handle = self.handle or self.open_handle()
        self.recently_used = True
        write_all(handle.fd, batches, self.size)

    def drop_ahead(self) -> None:
        handle = self.handle or self.open_handle()
        os.ftruncate(handle.fd, self.size)

    def take_in(self, headers: Sequence[BatchHeader], index_interval_bytes: int) -> None:
        """Batches with these headers were written ahead; now they are part of the segment."""
        position = self.size
        if position == 0:
            self.first_timestamp = headers[0].max_timestamp
        self.is_sealed = False
        for header in headers:
            size = header.size
            self.note_batch(position, size, header.last_offset, header.max_timestamp, index_interval_bytes)
            position += size
        self.size = position

    def note_batch(
        self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Keep the indexes for a batch that lies at `position`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def has_index_room(self, limit_bytes: int) -> bool:
        """True if both indexes have room for another entry."""
        return (
            len(self.offset_index) < limit_bytes // offset_index.ENTRY_BYTES
            and len(self.time_index) < limit_bytes // time_index.ENTRY_BYTES - 1  # one is added at the end
        )

    def seal(self) -> None:
        """Cut the log file to its size and complete the index files, as far as the kernel; does not sync.

        After an OSError the entries are still in memory, and `sync` writes them.
        """
        handle = self.handle or self.open_handle()
        if os.fstat(handle.fd).st_size != self.size:
            os.ftruncate(handle.fd, self.size)
        if self.max_timestamp != NO_TIMESTAMP:
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.offset_index.flush()
        self.time_index.flush()
        for path in (self.offset_index.path, self.time_index.path):
            FileHandle(path, os.O_RDWR | os.O_CREAT)  # the file exists also when it has no entries
        self.is_sealed = True

    def sync(self) -> None:
        """Bring log and indexes to the disk; blocks."""
        handle = self.handle or self.open_handle()
        sync_fd(handle.fd, handle.path)
        self.offset_index.flush(sync=True)
        self.time_index.flush(sync=True)

    # Reading.

    def open_handle(self) -> FileHandle:
        """FileNotFoundError if the segment is no longer part of the log."""
        handle = FileHandle(self.path(LOG_SUFFIX))
        self._check_still_there()
        self.handle = handle
        self.open_files.admit(self)
        return handle

    def release(self) -> None:
        self.handle = None
        self.offset_index.unload()

    def load_index(self) -> None:
        """FileNotFoundError if the segment is no longer part of the log."""
        loaded_bytes = self.offset_index.load(self._check_still_there)
        self._check_still_there()
        self.open_files.admit(self, loaded_bytes)

    def _find_in_index(self, find: Callable[[int], int], value: int) -> int:
        """Load the index and search it; again if others have made the segment release it meanwhile."""
        while True:
            self.load_index()
            with suppress(WouldBlock):
                return find(value)

    def _check_still_there(self) -> None:
        if self.is_deleted:
            raise FileNotFoundError(
                errno.ENOENT, "this segment was deleted or replaced", self.path(LOG_SUFFIX)
            )

    def locate(self, offset: int, may_block: bool) -> int | None:
        """Where the first batch starts whose last offset is not below `offset`; None if there is none."""
        if offset <= self.base_offset:
            return 0 if self.size else None
        position = self._cursors.get(offset)
        if position is not None and position < self.size:
            return position
        try:
            position = self.offset_index.lookup(offset - self.base_offset)
        except WouldBlock:
            if not may_block:
                raise
            position = self._find_in_index(self.offset_index.lookup, offset - self.base_offset)
        end = self.size
        unpack_from = _OFFSETS.unpack_from
        while position < end:
            chunk = self.read_range(position, min(SCAN_BYTES, end - position), may_block)
            at = 0
            last_start = len(chunk) - _OFFSETS_BYTES
            while at <= last_start:
                base, length, last_delta = unpack_from(chunk, at)
                if base + last_delta >= offset:
                    return position + at
                if length < _MIN_BATCH_LENGTH:
                    raise CorruptSegment(f"{self.path(LOG_SUFFIX)} is damaged at position {position + at}")
                at += length + LOG_OVERHEAD
            if at == 0:
                raise CorruptSegment(f"{self.path(LOG_SUFFIX)} ends inside a batch at {position}")
            position += at
        return None

    def cut(self, start: int, limit: int, may_block: bool) -> tuple[int, int]:
        """The last batch boundary not beyond `limit` at or after `start`, and the offset that comes next."""
        try:
            position = max(start, self.offset_index.floor_position(limit))
        except WouldBlock:
            if not may_block:
                raise
            position = max(start, self._find_in_index(self.offset_index.floor_position, limit))
        while True:
            chunk = self.read_range(position, min(SCAN_BYTES, self.size - position), may_block)
            at = 0
            last_start = len(chunk) - _OFFSETS_BYTES
            while at <= last_start:
                base, length, _ = _OFFSETS.unpack_from(chunk, at)
                if length < _MIN_BATCH_LENGTH:
                    raise CorruptSegment(f"{self.path(LOG_SUFFIX)} is damaged at position {position + at}")
                if position + at + length + LOG_OVERHEAD > limit:
                    return position + at, base
                at += length + LOG_OVERHEAD
            if at == 0:
                raise CorruptSegment(f"{self.path(LOG_SUFFIX)} ends inside a batch at {position}")
            position += at

    def batch_size_at(self, position: int, may_block: bool) -> int:
        header = self.read_range(position, LOG_OVERHEAD, may_block)
        return int.from_bytes(header[8:12], "big", signed=True) + LOG_OVERHEAD

    def read_range(self, position: int, length: int, may_block: bool) -> bytes | bytearray:
        handle = self.handle
        if handle is None:
            if not may_block:
                raise WouldBlock
            handle = self.open_handle()
        if may_block:
            return read_blocking(handle.fd, position, length)
        return read_nowait(handle.fd, position, length)

    def slice(self, position: int, length: int, may_block: bool) -> FileSlice:
        """A range that can be sent without waiting for the disk."""
        handle = self.handle
        if handle is None:
            if not may_block:
                raise WouldBlock
            handle = self.open_handle()
        self.recently_used = True
        if length < INLINE_BYTES:
            data = (read_blocking if may_block else read_nowait)(handle.fd, position, length)
            if len(data) != length:
                raise CorruptSegment(f"{self.path(LOG_SUFFIX)} is shorter than it was")
            return FileSlice(handle, position, length, data)
        if may_block:
            warm(handle.fd, position, length)
        elif not is_resident(handle.fd, position, length):
            raise WouldBlock
        return FileSlice(handle, position, length, None)

    def note_cursor(self, offset: int, position: int) -> None:
        """A reader has read up to `offset`; what comes next starts at `position`."""
        if len(self._cursors) >= CURSOR_LIMIT:
            self._cursors = {}  # replaced, not emptied: other threads may be reading it
        self._cursors[offset] = position

    def load_first_timestamp(self) -> None:
        """Load the timestamp of the first batch, from which the segment's age is counted."""
        if self.size:
            self.first_timestamp = parse_header(self.read_range(0, HEADER_SIZE, may_block=True)).max_timestamp

    def load_largest_timestamp(self) -> None:
        """Load the largest timestamp from the time index, before the segment is written to again."""
        last = self.time_index.last_entry()
        if last is not None:
            self.max_timestamp, relative_offset = last
            self.max_timestamp_offset = self.base_offset + relative_offset

    def largest_timestamp(self) -> int:
        """Of a segment that may have been opened from disk: the time index knows. NO_TIMESTAMP if none.

        Blocks; FileNotFoundError if the segment is no longer part of the log. Changes nothing: others may
        be writing to the segment.
        """
        if self.max_timestamp != NO_TIMESTAMP:
            return self.max_timestamp
        last = self.time_index.last_entry(self._check_still_there)
        return NO_TIMESTAMP if last is None else last[0]


class FirstSegment(Segment):
    """The first segment of a log that is new or was never written to: the log's directory is empty.

    The files are made with the first batch, because making files is slow, and many partitions are made long
    before they get a record. The file that names the topic comes first: records without it could be taken for
    those of a later topic of the same name.
    """

    __slots__ = ("is_made", "topic_id")

    def __init__(self, directory: str, open_files: OpenFiles, *, base_offset: int, created_ms: int) -> None:
        super().__init__(directory, base_offset, open_files, created_ms=created_ms)
        self.is_made = False
        self.topic_id: TopicId | None = None

    def open_handle(self) -> FileHandle:
        if not self.is_made:
            self._check_still_there()
            if self.topic_id is not None:
                write_partition_metadata(f"{self.directory}/{PARTITION_METADATA_FILE}", self.topic_id)
            FileHandle(self.path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT)
            self.is_made = True
        return super().open_handle()
