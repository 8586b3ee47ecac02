"""What is still to be sent on one connection: bytes, and ranges of segment files.

Responses that are queued are joined into one `send`; the connection sends at the latest after every eight
requests (SEND_EVERY_REQUESTS). Small file ranges are read into that same send; a large one leaves by
`sendfile`, its header before it with MSG_MORE. When the socket is full the rest waits for the loop to say
that there is room. Nothing is copied that the kernel can copy.

A file range is in the page cache when it is put here, but it may leave the cache while it waits for a slow
client. So the queue looks up a range that has waited for a while again, piece by piece. It raises ColdRange
for a piece that is not in the cache, and the connection then reads the piece in a thread.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable

from klamm.storage.log import FileSlice
from klamm.storage.segments.page_cache import is_resident

SENDFILE_MIN_BYTES = 32 * 1024
"""Below this, reading the range into the response is as fast as sendfile (measured), and simpler. With 64 KB
sendfile takes half the time. A range that was read (`INLINE_BYTES`) is always shorter."""

JOIN_MAX_BYTES = 256 * 1024
"""Bytes joined into one send."""

RESUMED_MAX_BYTES = 1024 * 1024
"""Of a range that has waited, looked up, warmed and sent at a time: about what a socket's buffer takes."""

TRUSTED_S = 1.0
"""How long a range that was in the page cache is taken to be there still: a fast client needs no second
look."""

_INT = struct.Struct("i")

Chunk = bytes | memoryview | FileSlice


class PeerGone(Exception):
    """Nothing more can be sent: the peer closed or reset the connection, or a segment cannot be read."""


class ColdRange(Exception):
    """The next piece to send is not in the page cache: read `piece`, then call `send` with `is_warm`."""

    def __init__(self, piece: FileSlice) -> None:
        super().__init__(piece)
        self.piece = piece


def held_by(chunks: Iterable[Chunk]) -> tuple[int, int]:
    """The bytes in memory that `chunks` are, and the number of file ranges among them."""
    byte_count = file_count = 0
    for chunk in chunks:
        if isinstance(chunk, FileSlice):
            file_count += 1
        else:
            byte_count += len(chunk)
    return byte_count, file_count


class SendQueue:
    """A queue of chunks and the socket they go to. `pending_bytes` counts what is still queued."""

    __slots__ = ("_chunks", "_file_sent", "_socket", "_waiting_since", "pending_bytes")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._chunks: deque[Chunk] = deque()
        self._file_sent = 0
        self._waiting_since: float | None = None
        """Since when there is something left that the socket did not take."""
        self.pending_bytes = 0

    def put(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.pending_bytes += len(chunk)

    def held(self) -> tuple[int, int]:
        """The bytes in memory that are queued, and the number of file ranges."""
        return held_by(self._chunks)

    def on_its_way(self) -> int:
        """The number of bytes in the socket's send queue that the client's TCP has not acknowledged."""
        (count,) = _INT.unpack(fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
        return int(count)

    def send(self, *, is_warm: bool = False) -> bool:
        """Send as much as the socket takes; true when nothing is left. Raises ColdRange and PeerGone.

        After a ColdRange, `is_warm` says that its piece was warmed. It is sent without another look, so
        that there is progress however soon the page cache forgets.
        """
        chunks = self._chunks
        try:
            if len(chunks) == 1 and isinstance(chunks[0], bytes):  # the usual case
                sent = self._socket.send(chunks[0])
                self.pending_bytes -= sent
                if not self.pending_bytes:
                    chunks.clear()
                    return True
                chunks[0] = memoryview(chunks[0])[sent:]
                self._note_waiting()
                return False
            while chunks:
                head = chunks[0]
                if isinstance(head, FileSlice) and len(head) >= SENDFILE_MIN_BYTES:
                    is_taken = self._send_file(head, is_warm)
                    is_warm = False
                else:
                    is_taken = self._send_joined()
                if not is_taken:
                    self._note_waiting()
                    return False
        except BlockingIOError:
            self._note_waiting()
            return False
        except OSError as error:
            # The socket, or a segment that cannot be read: either way the frame cannot be finished.
            raise PeerGone(str(error)) from error
        self._waiting_since = None
        return True

    def _note_waiting(self) -> None:
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()

    def _send_file(self, piece: FileSlice, is_warm: bool) -> bool:
        position = piece.position + self._file_sent
        length = piece.length - self._file_sent
        if self._waiting_since is not None and time.monotonic() - self._waiting_since >= TRUSTED_S:
            length = min(length, RESUMED_MAX_BYTES)
            if not is_warm and not is_resident(piece.file.fd, position, length):
                raise ColdRange(FileSlice(piece.file, position, length, None))
        sent = os.sendfile(self._socket.fileno(), piece.file.fd, position, length)
        if sent == 0:
            # The file was truncated meanwhile, and the frame's length is already on its way.
            raise PeerGone(f"the segment ended {piece.length - self._file_sent} bytes early")
        self.pending_bytes -= sent
        self._file_sent += sent
        if self._file_sent == piece.length:
            self._chunks.popleft()
            self._file_sent = 0
        return True

    def _send_joined(self) -> bool:
        """Send the run of small chunks at the head in one call."""
        chunks = self._chunks
        joined: list[bytes | bytearray | memoryview] = []
        size = 0
        flags = 0
        while chunks and size < JOIN_MAX_BYTES:
            chunk = chunks[0]
            if isinstance(chunk, FileSlice):
                if len(chunk) >= SENDFILE_MIN_BYTES:
                    flags = socket.MSG_MORE
                    break
                joined.append(chunk.read())
            else:
                joined.append(chunk)
            size += len(chunk)
            chunks.popleft()
        data = joined[0] if len(joined) == 1 else b"".join(joined)
        try:
            sent = self._socket.send(data, flags)
        except BlockingIOError:
            sent = 0
        self.pending_bytes -= sent
        if sent == size:
            return True
        chunks.appendleft(memoryview(data)[sent:])
        return False
