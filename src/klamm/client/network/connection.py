"""One connection to one broker: requests out, answers in, many under way at once.

What always holds:
* Answers come in the order of the requests, and each carries its request's correlation id; anything else ends
  the connection.
* Every future that `send` returned ends: with the answer, with TimedOut, or with a ConnectionFailed that
  names the request. One timer per connection checks all deadlines.
* A waiter with a short time-out does not end the connection: the answer may still come. But if a broker has
  not answered a request for request.timeout.ms, it counts as gone, and the connection ends.
* While the login is renewed, requests are delayed, and then sent in their order.
* Everything runs on the loop, with one exception: other threads may write prepared requests (`send_here`). So
  the list of requests under way, and the bytes to write, change only under `lock`; no waiter is called under
  it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from klamm.client.counters import ClientCounters
from klamm.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionFailed,
    TimedOut,
)
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.connection_errors import (
    error_for_broken_protocol,
    error_for_lost_connection,
    error_for_other_protocol,
)
from klamm.client.network.receiving import FrameReceiver
from klamm.client.network.requests import AnswerWaiter, CommonVersions, PendingRequest, PreparedRequest
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.headers import encode_request_frame, parse_response_header
from klamm.protocol.messages.k18_api_versions import ApiVersionsResponse
from klamm.protocol.schema import Message

MAX_LOGIN_FRAME_BYTES = 1024 * 1024
"""The largest answer before the login is done: an unknown server cannot make us allocate more memory."""

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""The largest answer: five times the default of fetch.max.bytes. The first bytes of other protocols, read as
a size, are larger."""

MAX_IN_FLIGHT_REQUESTS = 1000
"""With so many requests under way `drained` waits; brokers buffer about as many."""

WRITE_BUFFER_BYTES = 4 * 1024 * 1024
"""Bytes that may wait for the socket before `drained` waits: some requests of the largest default size."""

LONGEST_THROTTLE_SECONDS = 60.0
"""The longest pause a broker may ask for: quotas ask for seconds, only a damaged answer for weeks."""

_MOST_CORRELATION_ID = 2**31 - 1


class BrokerConnection(asyncio.BufferedProtocol):
    """Made by `opening.open_connection`, which also negotiates versions and logs in."""

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        request_timeout: float,
        counters: ClientCounters,
    ) -> None:
        self.address = address
        self.node_id = address.node_id
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.last_used = self._loop.time()
        self._client_id = client_id
        self._request_timeout = request_timeout
        self._counters = counters
        self.lock = threading.RLock()
        self._transport: asyncio.Transport | None = None
        self._direct_socket: socket.socket | None = None
        """A second descriptor of the socket, for `send_here`."""
        self._unwritten = b""
        """The rest of a request that another thread could not write completely; it is written before all
        else."""
        self._receiver = FrameReceiver(MAX_LOGIN_FRAME_BYTES)
        self._in_flight: deque[PendingRequest] = deque()
        self._delayed: deque[tuple[PendingRequest | None, Sequence[Any]]] | None = None
        """Requests that wait until the login is renewed; None while it stands."""
        self._correlation_id = 0
        self._versions = CommonVersions()
        self._is_paused = False
        self.is_retired = False
        """True if no more requests are to be sent on this connection."""
        self._throttled_until = 0.0
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failure: ClientError | None = None
        self._has_answered = False
        """True if the server has sent a valid answer."""
        self._is_trusted = False
        """True if the server has answered a request other than ApiVersions and SaslHandshake."""
        self.renewal: asyncio.Task[None] | None = None
        """The task that renews the login; it ends with the connection."""
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the socket is closed."""

    # ---- for callers

    @property
    def in_flight(self) -> int:
        """Requests without an answer yet."""
        return len(self._in_flight) + (len(self._delayed) if self._delayed else 0)

    @property
    def writable(self) -> bool:
        """True if `drained` would return at once."""
        return self._is_writable_at(self._loop.time() if self._throttled_until else 0.0)

    def _is_writable_at(self, now: float) -> bool:
        return not (
            self.closed
            or self._is_paused
            or self.in_flight >= MAX_IN_FLIGHT_REQUESTS
            or self._throttled_until > now
        )

    @property
    def is_suspect(self) -> bool:
        """True if the oldest request under way has timed out without an answer."""
        return bool(self._in_flight) and self._in_flight[0].waiter.done()

    def longest_wait(self, now: float) -> tuple[str, float] | None:
        """The name of the oldest request under way, and for how many seconds it has waited."""
        if not self._in_flight:
            return None
        return ApiKey(self._in_flight[0].api_key).title, now - self._in_flight[0].sent_at

    def version(self, api_key: int, max_version: int | None = None) -> int:
        """The newest version of a request that both sides know; UnsupportedRequest if there is none."""
        return self._versions.newest(api_key, max_version, self.address)

    def supports(self, api_key: int, version: int = 0) -> bool:
        """True if the broker supports a request in `version` or a newer one that we know."""
        return self._versions.reaches(api_key, version)

    def takes(self, api_key: int, version: int) -> bool:
        """True if the broker supports a request in exactly this version."""
        return self._versions.has(api_key, version)

    def send(self, request: Message, version: int, timeout: float | None = None) -> asyncio.Future[Any]:
        """Write a request; the future ends in its decoded answer or a typed error.

        Raises ConnectionFailed when the connection has ended. Does not wait: look at `writable`.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send_to(future, request, version, timeout)
        return future

    def send_to(
        self, waiter: AnswerWaiter, request: Message, version: int, timeout: float | None = None
    ) -> None:
        """As `send`. `waiter` is told at once, where a future calls back in the next iteration of the
        loop."""
        with self.lock:
            pending, chunks = self._prepare(waiter, request, version, timeout)
            self._begin(pending, chunks)

    def send_prepared(
        self, waiter: AnswerWaiter, prepared: PreparedRequest, records: bytearray | memoryview
    ) -> None:
        """As `send_to`, for a request that is made already except for its records."""
        with self.lock:
            if self.closed:
                raise self._ended(f"{ApiKey(prepared.api_key).title} cannot be sent")
            pending, frame = self._prepare_frame(waiter, prepared, records, self._loop.time())
            if self._timer is None or pending.deadline < self._timer_at:
                self._arm(pending.deadline)
            self._begin(pending, (frame,))

    def send_without_answer(self, request: Message, version: int) -> None:
        """Write a request that the broker does not answer: a Produce with acks=0."""
        with self.lock:
            self._check_open(request)
            self._begin(None, self._encode(request, version))

    async def drained(self) -> None:
        """Wait until more requests may be sent. Raises ConnectionFailed if the connection ends meanwhile."""
        # The clock is read once in a round: else a pause could end between the look and setting its timer.
        while not self._is_writable_at(now := self._loop.time()):
            if self.closed:
                raise self._ended("nothing more can be sent")
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            pause = self._throttled_until - now
            timer = self._loop.call_later(pause, self._wake_drained) if pause > 0 else None
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()

    def close(self, reason: ClientError | None = None) -> None:
        """End the connection: waiters get ConnectionFailed. Bytes that are written already are still sent."""
        self._end(reason or ClientClosed("the client was closed"))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once, without sending the rest of what was written."""
        self._end(ClientClosed("the client was closed"))
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Close the connection after the last answer; no more requests are to be sent on it."""
        self.is_retired = True
        if not self.in_flight:
            self.close()

    # ---- for opening and login

    def learn_versions(self, response: ApiVersionsResponse) -> None:
        self._versions.learn(response)

    def allow_large_answers(self) -> None:
        """The login is done, so this is a broker: allow answers of up to MAX_FRAME_BYTES."""
        self._receiver.max_frame_bytes = MAX_FRAME_BYTES

    def delay_requests(self) -> None:
        """Delay all further requests until `send_delayed`. Requests under way are still answered."""
        with self.lock:
            if self._delayed is None:
                self._delayed = deque()

    def send_delayed(self) -> None:
        with self.lock:
            delayed, self._delayed = self._delayed, None
            for pending, chunks in delayed or ():
                self._begin(pending, chunks)

    def send_first(self, request: Message, version: int, timeout: float) -> asyncio.Future[Any]:
        """Write a request ahead of those that are delayed."""
        future: asyncio.Future[Any] = self._loop.create_future()
        with self.lock:
            pending, chunks = self._prepare(future, request, version, timeout)
            self._in_flight.append(pending)
            self._write(chunks)
        return future

    # ---- requests that another thread writes

    def open_direct_socket(self) -> None:
        """On the loop: let other threads send prepared requests too. With TLS they cannot."""
        transport = self._transport
        if self._direct_socket is not None or transport is None or self.closed:
            return
        if transport.get_extra_info("sslcontext") is None:
            own = transport.get_extra_info("socket")
            # A second descriptor: the transport may close its own, whose number may then be another file's.
            self._direct_socket = socket.socket(own.family, own.type, own.proto, fileno=os.dup(own.fileno()))

    def may_send_here(self, now: float) -> bool:
        """Whether `send_here` can be done, under the lock: nothing waits to be written, or is delayed, and
        the timer that looks after deadlines, which only the loop can set, rings early enough."""
        return (
            self._direct_socket is not None
            and self._transport is not None
            and self._timer is not None
            and self._timer_at <= now + self._request_timeout
            and self._delayed is None
            and not self.is_retired
            and not self._unwritten
            and not self._transport.get_write_buffer_size()
            and self.writable
        )

    def send_here(
        self, waiter: AnswerWaiter, prepared: PreparedRequest, records: bytearray | memoryview, now: float
    ) -> None:
        """As `send_prepared`, from any thread: writes at once. Under the lock, when `may_send_here`.

        `now` is time.monotonic(): the loop's own clock stands still while it waits.
        """
        assert self._direct_socket is not None
        pending, frame = self._prepare_frame(waiter, prepared, records, now)
        self._in_flight.append(pending)
        self._counters.bytes_out += len(frame)
        try:
            written = self._direct_socket.send(frame)
        except BlockingIOError:
            written = 0
        except OSError:
            return  # the loop gets the same error, and ends the connection
        if written < len(frame):
            self._unwritten = frame[written:]
            self._loop.call_soon_threadsafe(self._write_rest)

    def _write_rest(self) -> None:
        with self.lock:
            self._write([])

    # ---- sending

    def _begin(self, pending: PendingRequest | None, chunks: Sequence[Any]) -> None:
        if self._delayed is not None:
            self._delayed.append((pending, chunks))
            return
        if pending is not None:
            self._in_flight.append(pending)
        self._write(chunks)

    def _prepare_frame(
        self, waiter: AnswerWaiter, prepared: PreparedRequest, records: bytearray | memoryview, now: float
    ) -> tuple[PendingRequest, bytes]:
        correlation_id = self._correlation_id = (self._correlation_id + 1) & _MOST_CORRELATION_ID
        timeout = self._request_timeout
        pending = PendingRequest(
            prepared.api_key, prepared.version, correlation_id, waiter, now, timeout, timeout, prepared
        )
        self.last_used = now
        self._counters.requests += 1
        return pending, prepared.frame(correlation_id, records)

    def _prepare(
        self, waiter: AnswerWaiter, request: Message, version: int, timeout: float | None
    ) -> tuple[PendingRequest, list[Any]]:
        self._check_open(request)
        chunks = self._encode(request, version)
        assert request.__api_key__ is not None
        now = self._loop.time()
        pending = PendingRequest(
            request.__api_key__,
            version,
            self._correlation_id,
            waiter,
            now,
            self._request_timeout if timeout is None else timeout,
            self._request_timeout,
        )
        self.last_used = now
        self._counters.requests += 1
        if self._timer is None or pending.deadline < self._timer_at:
            self._arm(pending.deadline)
        return pending, chunks

    def _encode(self, request: Message, version: int) -> list[Any]:
        assert request.__api_key__ is not None
        self._correlation_id = (self._correlation_id + 1) & _MOST_CORRELATION_ID
        return encode_request_frame(
            request.__api_key__, version, self._correlation_id, self._client_id, request
        )

    def _write(self, chunks: Sequence[Any]) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        if len(chunks) == 1 and not self._unwritten:
            chunk = chunks[0]
            self._counters.bytes_out += len(chunk)
            transport.write(chunk)
            return
        self._counters.bytes_out += sum(map(len, chunks))
        if self._unwritten:
            chunks = [self._unwritten, *chunks]
            self._unwritten = b""
        if chunks:
            transport.writelines(chunks)

    def _check_open(self, request: Message) -> None:
        if self.closed:
            assert request.__api_key__ is not None
            raise self._ended(f"{ApiKey(request.__api_key__).title} cannot be sent")

    # ---- the socket's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self._counters.bytes_in += nbytes
        try:
            for frame in self._receiver.received(nbytes):
                self._answer(frame)
        except MalformedMessage as error:
            self._stranger(str(error))
        if self._drain_waiters and self.writable:
            self._wake_drained()
        if self.is_retired and not self.in_flight and not self.closed:
            self.close()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._wake_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            if self.in_flight:
                self._counters.connections_lost += 1
            self._end(
                error_for_lost_connection(
                    self.address, exc, is_trusted=self._is_trusted, has_answered=self._has_answered
                )
            )
        if self.renewal is not None:
            self.renewal.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    # ---- answers

    def _answer(self, frame: memoryview) -> None:
        if self.closed:
            return
        if not self._in_flight:
            raise MalformedMessage(f"{len(frame)} bytes came without a request")
        pending = self._in_flight[0]
        if pending.prepared is not None and not pending.waiter.done():
            response = pending.prepared.read(pending.correlation_id, frame)
            if response is not None:
                self._in_flight.popleft()
                self._is_trusted = True
                self._counters.request_seconds += self._loop.time() - pending.sent_at
                pending.waiter.set_result(response)
                return
        correlation_id, offset = parse_response_header(pending.api_key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise MalformedMessage(
                f"the answer to request {pending.correlation_id} carries the id {correlation_id}"
            )
        version = pending.version
        if pending.api_key == ApiKey.API_VERSIONS and frame[offset : offset + 2] == _UNSUPPORTED:
            version = 0  # the only answer that comes in another version than the request's
        if pending.waiter.done():
            response = None  # its waiter gave up
        else:
            response, _ = decode(_response_class(pending.api_key), version, frame, offset)
        self._in_flight.popleft()
        self._has_answered = True
        if pending.api_key not in _BEFORE_TRUST:
            self._is_trusted = True
        if response is None:
            return
        now = self._loop.time()
        self._counters.request_seconds += now - pending.sent_at
        if pending.api_key in _THROTTLED and response.throttle_time_ms > 0:
            self._throttle(response.throttle_time_ms / 1000, now)
        pending.waiter.set_result(response)

    def _throttle(self, seconds: float, now: float) -> None:
        seconds = min(seconds, LONGEST_THROTTLE_SECONDS)
        self._counters.throttled_seconds += seconds
        self._throttled_until = max(self._throttled_until, now + seconds)

    def _stranger(self, problem: str) -> None:
        """The bytes that came are not a valid answer: end the connection."""
        if self._has_answered:
            self._end(error_for_broken_protocol(self.address, problem))
        else:
            self._end(error_for_other_protocol(self.address, self._receiver.first_bytes))
        if self._transport is not None:
            self._transport.abort()

    # ---- deadlines

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        """Time out the waiters whose deadline is over; end the connection if an answer is missing for too
        long."""
        now = self._loop.time()
        earliest = 0.0
        dead: PendingRequest | None = None
        with self.lock:
            self._timer = None
            waiting = self._waiting()
        for pending in waiting:
            due = pending.dead_at
            if not pending.waiter.done():
                if pending.deadline <= now:
                    self._counters.requests_failed += 1
                    pending.waiter.set_exception(self._timed_out(pending, now))
                else:
                    due = pending.deadline
            if due <= now:
                dead = dead or pending
            elif not earliest or due < earliest:
                earliest = due
        if dead is not None:
            self._counters.connections_lost += 1
            self._end(
                ConnectionFailed(
                    f"{self.address} did not answer {ApiKey(dead.api_key).title} within "
                    f"{dead.dead_at - dead.sent_at:g} s"
                )
            )
            if self._transport is not None:
                self._transport.abort()
        elif earliest:
            self._arm(earliest)

    def _timed_out(self, pending: PendingRequest, now: float) -> TimedOut:
        ahead = self._in_flight[0] if self._in_flight else pending
        cause = None
        if ahead is not pending:
            cause = ConnectionFailed(f"{ApiKey(ahead.api_key).title} before it has no answer either")
        return TimedOut(
            f"{ApiKey(pending.api_key).title} to {self.address}",
            now - pending.sent_at,
            cause=cause,
        )

    # ---- the end

    def _end(self, failure: ClientError) -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self._failure = failure
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._direct_socket is not None:
                self._direct_socket.close()
                self._direct_socket = None
            waiting = self._waiting()
            self._in_flight.clear()
            self._delayed = None
        for pending in waiting:
            if not pending.waiter.done():
                self._counters.requests_failed += 1
                pending.waiter.set_exception(self._ended(f"{ApiKey(pending.api_key).title} has no answer"))
        self._wake_drained()
        if self._transport is None and not self.gone.done():
            self.gone.set_result(None)

    def _waiting(self) -> list[PendingRequest]:
        """All requests without an answer. Under the lock."""
        return [*self._in_flight, *(pending for pending, _ in self._delayed or () if pending is not None)]

    def _ended(self, what: str) -> ClientError:
        """The error for one waiter: an exception of its own, which names its request."""
        failure = self._failure
        assert failure is not None
        cls = type(failure) if isinstance(failure, ConnectionFailed) else ConnectionFailed
        error = cls(f"{what}: {failure.message}", advice=failure.advice)
        error.retriable = failure.retriable if isinstance(failure, ConnectionFailed) else True
        return error

    def _wake_drained(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")

_THROTTLED = frozenset(key.value for key, spec in API_VERSIONS.items() if not spec.is_inter_broker) - {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
}
"""The requests whose answers have a throttle time."""


_BEFORE_TRUST = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE})
"""The requests that every listener answers, also to clients that must log in first."""


@cache
def _response_class(api_key: int) -> type[Any]:
    return API_VERSIONS[ApiKey(api_key)].response
