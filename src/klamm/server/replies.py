"""The replies of one connection: they are completed in any order, and leave in the order of the requests.

A `ReplyInLine` is what a handler knows as its `Reply` (model/reply.py). A handler may return something else
than `LATER`, and here is the one place that makes a completed reply of it:

* a response message completes the reply at once;
* steps (apis/steps.py) are done by the line of all long requests (work.py), and their result goes on;
* a coroutine becomes a task, and its result goes on.

While steps or a coroutine of a request are at work, and while a large request has no answer, the reply holds
its connection: no further request of the connection is handled, so that effects happen in request order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from types import CoroutineType, GeneratorType
from typing import Any, Protocol

from klamm.apis.registry import LATER, NO_RESPONSE, CloseConnection
from klamm.apis.steps import Steps
from klamm.metrics.request_times import RequestTimes
from klamm.protocol.errors import MalformedMessage
from klamm.server.sending import SendQueue, held_by
from klamm.server.unsent import AnswerBytes, UnsentAnswers
from klamm.server.work import Job, WorkQueue

logger = logging.getLogger("klamm.server")


class ResponseFormat(Protocol):
    """Encodes the responses of one API key and version."""

    @property
    def key(self) -> int: ...

    @property
    def version(self) -> int: ...

    def frame(self, correlation_id: int, response: Any) -> list[Any]: ...

    def frame_in_steps(
        self, correlation_id: int, response: Any, count_bytes: Callable[[int], None]
    ) -> Steps[list[Any]]: ...


class LineOwner(Protocol):
    """The connection that a line of replies belongs to."""

    def on_answered(self) -> None:
        """A reply was completed, or no longer holds the connection, or its steps are over."""

    def on_failed(self, reason: str) -> None:
        """A reply will never be completed: the connection must be closed."""


class _Nobody:
    """Owns the line of a closed connection, so that line and connection do not keep each other."""

    def on_answered(self) -> None: ...

    def on_failed(self, reason: str) -> None: ...


class ReplyInLine:
    """The place in line of one reply, see `Reply` for what its public methods promise.

    A finished response is kept encoded: the bytes are smaller than the objects, and can be counted. An ended
    reply knows neither its line nor its work, so that no cycle is left to the garbage collector.
    """

    __slots__ = (
        "_format",
        "_is_large",
        "_line",
        "_reserved_files",
        "_work",
        "chunks",
        "correlation_id",
        "held",
        "is_holding",
        "on_drop",
        "started_s",
        "times",
    )

    def __init__(
        self, line: ReplyLine, format_: ResponseFormat | None, correlation_id: int, times: RequestTimes
    ) -> None:
        self._line: ReplyLine | None = line
        self._format = format_
        self.correlation_id = correlation_id
        self.chunks: list[Any] | None = None
        self.held: tuple[int, int, int] | None = None
        """(size, bytes in memory, files) of the chunks, once they wait for an earlier reply."""
        self.is_holding = False
        self.on_drop: Callable[[], None] | None = None
        self._is_large = False
        self._reserved_files = 0
        self._work: Job | asyncio.Task[None] | None = None
        self.times = times
        self.started_s = monotonic()

    @property
    def is_open(self) -> bool:
        return self._line is not None

    def complete(self, response: Any) -> None:
        """Go on with what a handler, or a part of one, returned."""
        line = self._line
        kind = type(response)
        if line is None:
            if kind is CoroutineType or kind is GeneratorType:
                response.close()
        elif kind is GeneratorType:
            self.do_steps(response)
        elif kind is CoroutineType:
            self._run(line, response)
        elif response is LATER:
            self._set_holding(line, self._is_large)
        elif response is NO_RESPONSE:
            self.complete_encoded([])
        else:
            assert self._format is not None
            try:
                chunks = self._format.frame(self.correlation_id, response)
            except Exception as error:
                self._fail_to_encode(error)
                return
            self.complete_encoded(chunks)

    def complete_encoded(self, chunks: list[Any]) -> None:
        line = self._line
        if line is not None:
            self.chunks = chunks
            self._end(line)
            line.take(self)

    def fail(self, error: BaseException) -> None:
        line = self._line
        if line is None:
            return
        if isinstance(error, CloseConnection | MalformedMessage):
            reason = str(error)
        else:
            logger.error("a handler failed; its client is disconnected", exc_info=error)
            reason = "internal error"
        line.owner.on_failed(reason)

    def reserve_files(self, wanted: int) -> int:
        line = self._line
        if line is None:
            return 0
        more = line.unsent.reserve_files(wanted - self._reserved_files)
        self._reserved_files += more
        return self._reserved_files

    def do_steps(self, steps: Steps[Any], *, is_large: bool = False) -> None:
        """Do `steps`, whose result is the answer or what a handler may return instead of it.

        The first run of a small request is done at once: nearly always it is the last one as well.
        """
        line = self._line
        assert line is not None
        self._is_large |= is_large
        self._set_holding(line, True)
        made = AnswerBytes(line.unsent)
        line.job_count += 1
        done = partial(self._on_steps_done, line)
        self._work = job = Job(self._answer_in_steps(steps, made), done, made)
        if not is_large:
            job.advance()
        if not job.is_over:
            line.work.add(job)

    def _answer_in_steps(self, steps: Steps[Any], made: AnswerBytes) -> Steps[tuple[bool, Any]]:
        """(True, the encoded answer), or (False, what a handler may return instead of an answer)."""
        result = yield from steps
        if result is NO_RESPONSE or result is LATER or type(result) in (CoroutineType, GeneratorType):
            return False, result
        assert self._format is not None
        return True, (yield from self._format.frame_in_steps(self.correlation_id, result, made.add))

    def _on_steps_done(self, line: ReplyLine, result: Any, error: Exception | None) -> None:
        """Also called if the steps themselves had the reply completed, by a group for example."""
        self._work = None
        line.job_count -= 1
        if error is not None:
            self.fail(error)
            return
        is_encoded, value = result
        if is_encoded:
            self.complete_encoded(value)
        else:
            self.complete(value)
        line.owner.on_answered()  # the frame of the request is not read any longer

    def _run(self, line: ReplyLine, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """Let a coroutine run to its end, also if the client leaves: cancelled, it might do half its work."""
        self._set_holding(line, True)
        self._work = task = asyncio.get_running_loop().create_task(self._await(coroutine))
        # A broker that stops may cancel the task before its first step: then nobody awaits the handler.
        task.add_done_callback(lambda _: coroutine.close())

    async def _await(self, coroutine: CoroutineType[Any, Any, Any]) -> None:
        try:
            result = await coroutine
        except Exception as error:
            self._work = None
            self.fail(error)
            return
        self._work = None
        self.complete(result)

    def _fail_to_encode(self, error: Exception) -> None:
        assert self._format is not None
        logger.error(
            "the answer of API key %d version %d cannot be written",
            self._format.key,
            self._format.version,
            exc_info=error,
        )
        self.fail(CloseConnection("internal error"))

    def _set_holding(self, line: ReplyLine, is_holding: bool) -> None:
        if is_holding != self.is_holding:
            self.is_holding = is_holding
            line.hold_count += 1 if is_holding else -1
            if not is_holding:
                line.owner.on_answered()

    def _end(self, line: ReplyLine) -> None:
        self._line = None
        self.on_drop = None
        if self.is_holding:
            self.is_holding = False
            line.hold_count -= 1
        if self._reserved_files:
            line.unsent.release_files(self._reserved_files)
            self._reserved_files = 0

    def drop(self, line: ReplyLine) -> None:
        """The connection is gone. Steps that are left are not done: each has a whole effect or none."""
        on_drop = self.on_drop
        self._end(line)
        if isinstance(self._work, Job):
            self._work.cancel()
            self._work = None
        if on_drop is not None:
            on_drop()

    def cancel_task(self) -> None:
        """The broker stops: a coroutine may not write once the logs are closed."""
        if isinstance(self._work, asyncio.Task):
            self._work.cancel()


class ReplyLine(deque[ReplyInLine]):
    """The replies of a connection that are not sent: the open ones, and finished ones that wait for them.

    The counters say what the finished ones hold.
    """

    __slots__ = (
        "_send_queue",
        "byte_count",
        "file_count",
        "hold_count",
        "job_count",
        "memory_bytes",
        "owner",
        "times",
        "unsent",
        "work",
    )

    def __init__(
        self,
        owner: LineOwner,
        send_queue: SendQueue,
        work: WorkQueue,
        unsent: UnsentAnswers,
        times: Sequence[RequestTimes],
    ) -> None:
        """`times` are those of each API key."""
        super().__init__()
        self.owner: LineOwner = owner
        self.work = work
        self.unsent = unsent
        self.times = times
        self._send_queue = send_queue
        self.byte_count = 0
        self.memory_bytes = 0
        self.file_count = 0
        self.hold_count = 0
        """Replies because of which no further request may be handled."""
        self.job_count = 0
        """Replies whose steps are at work and may read their request's frame."""

    def open(self, format_: ResponseFormat, correlation_id: int) -> ReplyInLine:
        """The reply to the next request."""
        reply = ReplyInLine(self, format_, correlation_id, self.times[format_.key])
        self.append(reply)
        return reply

    def open_encoded(self, api_key: int, correlation_id: int) -> ReplyInLine:
        """The same for a reply that will be completed with an encoded answer."""
        reply = ReplyInLine(self, None, correlation_id, self.times[api_key])
        self.append(reply)
        return reply

    def take(self, reply: ReplyInLine) -> None:
        """Queue a finished reply for sending, or keep it until all earlier ones are finished."""
        chunks = reply.chunks
        assert chunks is not None
        reply.times.note(monotonic() - reply.started_s)
        if self[0] is reply:
            self.popleft()
            for chunk in chunks:
                self._send_queue.put(chunk)
            if self and self[0].chunks is not None:
                self._take_ready()
        else:
            size = sum(map(len, chunks))
            memory_bytes, file_count = held_by(chunks)
            reply.held = (size, memory_bytes, file_count)
            self.byte_count += size
            self.memory_bytes += memory_bytes
            self.file_count += file_count
        self.owner.on_answered()

    def _take_ready(self) -> None:
        while self and (chunks := self[0].chunks) is not None:
            held = self.popleft().held
            assert held is not None
            self.byte_count -= held[0]
            self.memory_bytes -= held[1]
            self.file_count -= held[2]
            for chunk in chunks:
                self._send_queue.put(chunk)

    def abandon(self, *, is_stopping: bool) -> None:
        """Drop all replies, because the connection is closed."""
        self.owner = _Nobody()
        replies = tuple(self)
        self.clear()
        for reply in replies:
            if reply.chunks is None:
                reply.drop(self)
                if is_stopping:
                    reply.cancel_task()
