"""One client's connection: frames in, responses out, in the order of the requests.

The socket is non-blocking and read straight from the loop's readiness callback; docs/adr/0001 says why this
and not a transport. All frames of one read are handled in one go. Their answers leave together, at the latest
after every eight requests (SEND_EVERY_REQUESTS), unless an earlier request is still being answered. Replies
that are completed later (`replies.py`) are sent once per iteration of the loop, however many they are.

Nothing is read from a connection while one of its replies holds it, while too many of its replies are not
complete, while its client does not take its answers, and while it waits for its turn because its requests
took long (`turns.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import socket
import time
from collections.abc import Callable, Coroutine
from socket import SO_ERROR, SOL_SOCKET
from typing import Any, Protocol

from klamm.apis.registry import CloseConnection, Later, Shortcut
from klamm.metrics.request_times import RequestTimes, TimesByApi
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.framing import SIZE_BYTES, frame_size
from klamm.server.dispatch import Dispatcher, LargeRequest
from klamm.server.joint_sending import JointSending
from klamm.server.receiving import LARGE_FRAME_BYTES, LargeBuffers, ReceiveMemoryExceeded, holds_frame
from klamm.server.replies import ReplyLine
from klamm.server.sending import ColdRange, PeerGone, SendQueue
from klamm.server.turns import LONG_S, Turns
from klamm.server.unsent import UnsentAnswers
from klamm.server.work import WorkQueue
from klamm.storage.log import FileSlice
from klamm.storage.segments.page_cache import warm

logger = logging.getLogger("klamm.server")

MAX_REQUESTS_IN_FLIGHT = 1000
"""Replies of one connection that are not complete; librdkafka pipelines up to 1,000."""

SEND_EVERY_REQUESTS = 8
"""Pipelined requests handled before their answers are sent, if more are waiting: the client works on the
first answers meanwhile. Measured sixteen deep: 8 gives a quarter more requests a second, 4 and fewer cost
more sends than they gain."""

MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""Answers that a client has not taken, or that wait for an earlier one; beyond this nothing more is read
from it."""

CONNECTION_TURN_LIMIT_S = 0.01
"""How long the requests of one connection are handled before it joins the line of `turns.py`."""

SHORT_FRAME_BYTES = 1024
"""The clock is read after every pipelined request that is longer, else whenever answers are sent."""

SO_BUF_LOCK = 72
SEND_BUFFER_IS_FIXED = 1
"""Which of a socket's buffers have a size that somebody has set. Not in `socket` yet."""

MAX_READS_AT_ONCE = 64
"""Reads of one connection in an iteration of the loop: enough to empty the largest buffer of a socket."""

RunInThread = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]


class ServerLimits(Protocol):
    """What a connection needs to know of the server it belongs to."""

    dispatcher: Dispatcher
    receive_buffer: memoryview
    large_buffers: LargeBuffers
    work: WorkQueue
    unsent: UnsentAnswers
    turns: Turns
    joint_sending: JointSending
    request_times: TimesByApi
    max_request_bytes: int
    run_in_thread: RunInThread

    def forget(self, connection: Connection) -> None: ...


class Connection:
    __slots__ = (
        "_carried",
        "_close_callbacks",
        "_fault",
        "_has_sent",
        "_is_handling",
        "_is_noted_as_unsent",
        "_is_reading",
        "_is_sending_soon",
        "_is_waiting_to_send",
        "_is_yielding",
        "_large",
        "_large_filled",
        "_large_view",
        "_last_progress_s",
        "_line",
        "_loop",
        "_on_its_way",
        "_send_queue",
        "_server",
        "_socket",
        "_started_s",
        "_times",
        "_warming",
        "client_host",
        "is_closed",
        "last_active",
        "listener_name",
        "shortcut",
    )

    def __init__(
        self,
        server: ServerLimits,
        sock: socket.socket,
        client_host: str,
        listener_name: str,
        *,
        is_for_brokers: bool = False,
    ) -> None:
        self._server = server
        self._socket = sock
        self.client_host = client_host
        self.listener_name = listener_name
        self._loop = asyncio.get_running_loop()
        self._send_queue = SendQueue(sock)
        times = server.request_times
        self._times = times.of_brokers if is_for_brokers else times.of_clients
        self._line = ReplyLine(self, self._send_queue, server.work, server.unsent, self._times)
        self._has_sent = False
        self._carried: bytes = b""
        self._large: mmap.mmap | None = None
        self._large_view: memoryview | None = None
        self._large_filled = 0
        self._fault: str | None = None
        """Why the connection is closed, or will be as soon as the answers before the fault are sent."""
        self._is_yielding = False
        """The connection waits for its turn; `_carried` may hold whole frames."""
        self._warming: asyncio.Task[None] | None = None
        """Reads into the page cache what is to be sent next; until then nothing is sent."""
        self._close_callbacks: list[Callable[[], None]] = []
        self._started_s = 0.0
        """When the handling of these frames began; 0 if they are short and only the produce shortcut handled
        them."""
        self._is_handling = False
        self._is_sending_soon = False
        self._is_waiting_to_send = False
        self._is_noted_as_unsent = False
        self.is_closed = False
        self.shortcut: Shortcut | None = None
        self.last_active = self._last_progress_s = self._loop.time()
        self._on_its_way = -1
        self._loop.add_reader(sock.fileno(), self._on_readable)
        self._is_reading = True

    def on_close(self, callback: Callable[[], None]) -> None:
        self._close_callbacks.append(callback)

    def let_send_buffer_grow(self) -> None:
        with contextlib.suppress(OSError):  # before Linux 5.14
            fixed = self._socket.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, fixed & ~SEND_BUFFER_IS_FIXED)

    @property
    def files_left(self) -> int:
        if self._send_queue.pending_bytes:
            self._note_unsent()  # answers to earlier requests of this read are not counted yet
        return self._server.unsent.files_left

    @property
    def is_busy(self) -> bool:
        """A request is still being answered, so the client is not idle."""
        return bool(self._line)

    def close(self, reason: str = "", *, is_stopping: bool = False) -> None:
        """Close the connection. Replies that are not complete are dropped: effects stand."""
        if self.is_closed:
            return
        self.is_closed = True
        self._fault = reason
        if reason:
            logger.warning("closing the connection of %s: %s", self.client_host, reason)
        descriptor = self._socket.fileno()
        if self._is_reading:
            self._loop.remove_reader(descriptor)
        if self._is_waiting_to_send:
            self._loop.remove_writer(descriptor)
        self._socket.close()
        if self._is_noted_as_unsent:
            self._server.unsent.note(self, 0, 0)
        self._line.abandon(is_stopping=is_stopping)
        self._release_large()
        for callback in self._close_callbacks:
            callback()
        self._close_callbacks.clear()
        self.shortcut = None  # which refers to this connection: without that both are freed at once
        self._server.forget(self)

    def abandon(self) -> None:
        """Close the connection because the broker stops: no task may write once the logs are closed."""
        self.close(is_stopping=True)
        if self._warming is not None:
            self._warming.cancel()

    # ---- receiving

    def _on_readable(self) -> None:
        """Receive, and go on until something was answered or nothing more is there.

        When bytes and a reset arrive together, libuv announces both by one call and then stops watching the
        socket. What was answered runs into the reset when it is sent. Otherwise only another look finds it:
        another read, or after short requests, behind which there is hardly ever more, the socket's error.
        """
        self.last_active = self._loop.time()
        if self._server.turns.is_used_up:
            self._yield(0.0)
            return
        self._has_sent = False
        self._server.joint_sending.note_reader(self)
        started_s = None
        try:
            for _ in range(MAX_READS_AT_ONCE):
                large_view = self._large_view
                if large_view is not None:
                    self._receive_large(large_view)
                else:
                    self._receive_shared()
                if self._has_sent or self._send_queue.pending_bytes or not self._is_reading or self.is_closed:
                    return
                if large_view is None and self._large_view is None and not self._carried:
                    if self._socket.getsockopt(SOL_SOCKET, SO_ERROR):
                        self.close()
                    return
                if started_s is None:
                    started_s = time.monotonic()
                elif (used_s := time.monotonic() - started_s) >= LONG_S:
                    self._yield(used_s)
                    return
        except BlockingIOError:
            return
        except ReceiveMemoryExceeded as error:
            self.close(str(error))
        except OSError:
            self.close()

    def _receive_shared(self) -> None:
        carried = len(self._carried)
        buffer = self._server.receive_buffer
        if carried:
            buffer[:carried] = self._carried
        count = self._socket.recv_into(buffer[carried:] if carried else buffer)
        if count == 0:
            self.close()
            return
        self._handle_frames(buffer, carried + count)

    def _receive_large(self, view: memoryview) -> None:
        count = self._socket.recv_into(view[self._large_filled :])
        if count == 0:
            self.close()
            return
        self._server.large_buffers.count_received(count)
        self._large_filled += count
        if self._large_filled == len(view):
            self._large_view = None
            self._handle_frames(view, len(view))
            self._release_large_if_unused()

    def _release_large_if_unused(self) -> None:
        """The buffer is in use while a frame is received into it, and while steps may read it."""
        if self._large_view is None and not self._line.job_count:
            self._release_large()

    def _release_large(self) -> None:
        self._large_view = None
        if self._large is not None:
            self._server.large_buffers.give_back(self._large, self._large_filled)
            self._large = None
            self._large_filled = 0

    def _handle_frames(self, buffer: memoryview, end: int) -> None:
        """Handle every whole frame of `buffer[:end]`, keep what is left, and send the answers."""
        max_request_bytes = self._server.max_request_bytes
        position = 0
        handled = 0
        self._started_s = 0.0
        if end > SHORT_FRAME_BYTES:
            self._note_long()
        times, timed_from_s = self._begin_timing()
        self._is_handling = True
        try:
            while end - position >= SIZE_BYTES and not self._must_wait():
                frame_start = position + SIZE_BYTES
                frame_end = frame_start + frame_size(buffer, position, max_request_bytes)
                if frame_end > end:
                    break
                frame = buffer[frame_start:frame_end]
                self._handle(frame)
                position = frame_end
                handled += 1
                if position < end and (handled % SEND_EVERY_REQUESTS == 0 or len(frame) > SHORT_FRAME_BYTES):
                    self._yield_after(CONNECTION_TURN_LIMIT_S)
                    if handled % SEND_EVERY_REQUESTS == 0 and not self._line:
                        self._send_early()
            if position < end:
                self._keep_rest(buffer[position:end])
            else:
                self._carried = b""
            if self._started_s:
                self._yield_after(LONG_S)
        except (MalformedMessage, CloseConnection, ReceiveMemoryExceeded) as error:
            self._fault = str(error)
        finally:
            self._is_handling = False
        if times is not None and times.untimed:
            times.note_untimed(time.monotonic() - timed_from_s, self.last_active)
        if (
            self._started_s
            or not self._send_queue.pending_bytes
            or not self._server.joint_sending.takes(self)
        ):
            self.send_answers()

    def _begin_timing(self) -> tuple[RequestTimes | None, float]:
        """What takes the time of the requests that the shortcut answers at once, and their beginning.

        Nothing while the last timing is a moment ago: most of these requests are only counted.
        """
        shortcut = self.shortcut
        if shortcut is None:
            return None, 0.0
        times = self._times[shortcut.api_key]
        if self.last_active < times.due_s:
            return None, 0.0
        return times, self._started_s or time.monotonic()

    def _keep_rest(self, rest: memoryview) -> None:
        """Keep the bytes that are not a whole frame yet, or that may not be handled yet."""
        if not self._must_wait() and len(rest) >= SIZE_BYTES:
            whole = SIZE_BYTES + frame_size(rest, 0, self._server.max_request_bytes)
            if whole > LARGE_FRAME_BYTES:
                self._carried = b""
                self._large = self._server.large_buffers.take(whole)
                self._server.large_buffers.count_received(len(rest))
                self._large_filled = len(rest)
                self._large_view = memoryview(self._large)[:whole]
                self._large_view[: len(rest)] = rest
                return
        self._carried = bytes(rest) if rest else b""

    def _must_wait(self) -> bool:
        line = self._line
        unsent_bytes = self._send_queue.pending_bytes + line.byte_count
        if unsent_bytes and (unsent_bytes > MAX_UNSENT_BYTES or self._server.unsent.is_crowded):
            return True
        if self._is_yielding or self._fault is not None:
            return True
        return bool(line) and (line.hold_count > 0 or len(line) >= MAX_REQUESTS_IN_FLIGHT)

    def _yield_after(self, long_s: float) -> None:
        """Yield if handling these frames has taken `long_s`."""
        if self._started_s and not self._is_yielding:
            used_s = time.monotonic() - self._started_s
            if used_s >= long_s:
                self._yield(used_s)

    def _yield(self, used_s: float) -> None:
        """Let other connections go on first: this one has taken `used_s` of this iteration of the loop."""
        self._is_yielding = True
        self._server.turns.wait(used_s, self._end_yielding)
        self._regulate_reading()

    def _end_yielding(self) -> None:
        self._is_yielding = False
        self._regulate_reading()

    # ---- handling

    def _handle(self, frame: memoryview) -> None:
        try:
            if self.shortcut is not None:
                chunks = self.shortcut.take(frame, self._line)
                if isinstance(chunks, Later):
                    return
                if chunks is not None:
                    if self._line:
                        self._line.open_encoded(self.shortcut.api_key, 0).complete_encoded(list(chunks))
                    else:
                        self._times[self.shortcut.api_key].untimed += 1
                        for chunk in chunks:
                            self._send_queue.put(chunk)
                    return
            if not self._started_s:
                self._note_long()
            self._server.dispatcher.start(frame, self, self._line)
        except LargeRequest:
            if self._large is None:  # the frame is in the buffer that all connections share
                frame = memoryview(bytearray(frame))
            self._server.dispatcher.start_in_steps(frame, self, self._line)
        except (MalformedMessage, CloseConnection):
            raise
        except Exception:
            logger.exception("a handler failed; its client %s is disconnected", self.client_host)
            raise CloseConnection("internal error") from None

    def _note_long(self) -> None:
        """These frames may take long to handle: from here on their time is measured, and nobody waits."""
        self._server.joint_sending.send()
        self._started_s = time.monotonic()

    def on_answered(self) -> None:
        """A reply was completed, holds the connection no longer, or its steps are over: see what can go on.

        Not at once: whoever completed the reply may be in the middle of something, and complete many more.
        """
        if not self._is_handling and not self._is_sending_soon:
            self._is_sending_soon = True
            self._server.joint_sending.send_soon(self)

    def on_failed(self, reason: str) -> None:
        """A reply will never be completed."""
        self._fault = reason
        self.on_answered()

    def send_answered(self) -> None:
        self._is_sending_soon = False
        self._release_large_if_unused()
        self.send_answers()

    # ---- sending

    def send_answers(self) -> None:
        """Send every answer that is next in order, then go on with what back-pressure held up."""
        if self.is_closed:
            return
        if self._fault is not None:
            with contextlib.suppress(PeerGone, ColdRange):
                self._send_queue.send()  # what was answered before the fault
            self.close(self._fault)
            return
        line = self._line
        if self._send_queue.pending_bytes and not self._is_waiting_to_send and self._warming is None:
            self._send()
        if line.byte_count or self._send_queue.pending_bytes or self._is_noted_as_unsent:
            self._note_unsent()
        if line or self._send_queue.pending_bytes or self._carried or not self._is_reading:
            self._regulate_reading()

    def _send(self, *, is_warm: bool = False) -> None:
        self._has_sent = True
        try:
            is_drained = self._send_queue.send(is_warm=is_warm)
        except PeerGone:
            self.close()
            return
        except ColdRange as cold:
            self._wait_until_warm(cold.piece)
            return
        self._last_progress_s = self._loop.time()
        if is_drained == self._is_waiting_to_send:
            self._is_waiting_to_send = not is_drained
            if is_drained:
                self._loop.remove_writer(self._socket.fileno())
            else:
                self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _note_unsent(self) -> None:
        """Count what is unsent, once the client is slower than the broker or answers wait for another."""
        if self.is_closed:
            return
        byte_count, file_count = self._send_queue.held()
        byte_count += self._line.memory_bytes
        file_count += self._line.file_count
        self._is_noted_as_unsent = byte_count > 0 or file_count > 0
        self._server.unsent.note(self, byte_count, file_count)

    def last_progress_s(self) -> float:
        """When the client was last seen to take something.

        The last send may be long ago, and the client still takes what the socket's buffer holds.
        """
        on_its_way = self._send_queue.on_its_way()
        if on_its_way != self._on_its_way:
            self._on_its_way = on_its_way
            self._last_progress_s = self._loop.time()
        return self._last_progress_s

    def _send_early(self) -> None:
        """Let a client that pipelines work on its first answers while the rest is handled."""
        if self._send_queue.pending_bytes and not self._is_waiting_to_send and self._warming is None:
            self._send()

    def _on_writable(self) -> None:
        self.last_active = self._loop.time()
        self._send()
        self._note_unsent()
        self._regulate_reading()

    def _wait_until_warm(self, piece: FileSlice) -> None:
        if self._is_waiting_to_send:
            self._is_waiting_to_send = False
            self._loop.remove_writer(self._socket.fileno())
        self._warming = self._loop.create_task(self._warm_and_send(piece))

    async def _warm_and_send(self, piece: FileSlice) -> None:
        """Read `piece` into the page cache, then go on sending. `piece` keeps its file open meanwhile."""
        try:
            await self._server.run_in_thread(lambda: warm(piece.file.fd, piece.position, piece.length))
        except OSError as error:
            self.close(f"a segment cannot be read: {error}")
        self._warming = None
        if not self.is_closed:
            self._send(is_warm=True)
            self._note_unsent()
            self._regulate_reading()

    def _regulate_reading(self) -> None:
        if self.is_closed:
            return
        if self._must_wait():
            if self._is_reading:
                self._is_reading = False
                self._loop.remove_reader(self._socket.fileno())
            return
        if not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
        if self._carried and self._large_view is None and holds_frame(self._carried):
            # A whole frame is left in `_carried`, and the socket will not announce it again.
            self._loop.call_soon(self._handle_carried)

    def _handle_carried(self) -> None:
        if self.is_closed or self._must_wait() or self._large_view is not None:
            return
        carried = memoryview(bytearray(self._carried))
        self._carried = b""
        self._handle_frames(carried, len(carried))
