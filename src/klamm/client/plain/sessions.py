"""Sessions and claims for plain threads: as in `consumer/group/sessions.py`, with threads for tasks.

    for session in consumer.sessions():
        with session, ThreadPoolExecutor(len(session.claims) or 1) as workers:
            for claim in session.claims:
                workers.submit(work, claim)               # for record in claim: ...

Python cannot cancel a thread. So in both ways a worker finishes the record it has; then its loop ends, or,
with on_revoke="cancel", the loop raises ClaimRevoked, so that what comes after it is not run. Long work may
look at `claim.ended` itself. The `with` waits for workers with a record in work, `drain_timeout` seconds at
most, and swallows ClaimRevoked.
"""

from __future__ import annotations

import contextlib
import threading
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from klamm.client.arguments import as_count, as_timeout
from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.consumer.group.session_faces import ClaimFace, SessionFace
from klamm.client.consumer.group.session_life import CANCEL, SessionLife, drain_seconds
from klamm.client.consumer.group.sessions import next_round
from klamm.client.errors import ClaimRevoked, ClientClosed
from klamm.client.results import Record

if TYPE_CHECKING:
    from klamm.client.plain.consumer import Consumer

FAILED_SECONDS = 5.0
"""How long other workers are waited for when the session is left by an error: the one that failed may be
among them, and will never finish its record."""


class Claim(ClaimFace):
    """One partition within a session: `for record in claim`, in one thread. Ends when it is revoked."""

    def __init__(self, session: Session, reader: ClaimReader) -> None:
        super().__init__(reader)
        self._session = session
        self._lock = threading.Lock()
        """Held while the reader moves: whoever leaves the session settles it from another thread."""
        self._worker: threading.Thread | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """The next record; the one before is finished."""
        with self._lock:
            record = self._reader.next_at_hand()
        while record is None:
            record = self._next_run()
        return record

    def poll(self, max_records: int | None = None, timeout: float | None = None) -> list[Record]:
        """Several records at once; those before are finished. Nothing when the claim has ended, or when
        `timeout` seconds are over: `while records := claim.poll(): ...`"""
        limit = None if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        while True:
            with self._lock:
                self._come_back()
                records = self._reader.take(limit)
            self._session._count(len(records))
            left = None if deadline is None else deadline - monotonic()
            if records or self._is_over() or (left is not None and left <= 0):
                return records
            self._session._wait_for_news(self._reader, left)

    def commit(self) -> None:
        """Commit what is finished of this partition, and wait for that."""
        self._session._consumer._run(self._session._commit((self,)))

    def _next_run(self) -> Record | None:
        with self._lock:
            self._come_back()
            self._session._count(self._reader.read())
            record = self._reader.next_at_hand()
        if record is None:
            if self._is_over():
                raise StopIteration
            self._session._wait_for_news(self._reader, None)
        return record

    def _come_back(self) -> None:
        """The worker asks for more: what it had is finished."""
        self._session._life.check_entered()
        self._reader.finish()
        self._worker = threading.current_thread()
        self._session._tell_returned()

    def _is_over(self) -> bool:
        """Whether this is the end; with on_revoke="cancel" the end is an error."""
        if self.ended and self._session._is_cancelling:
            raise ClaimRevoked(
                f"{self.topic_partition} is taken away, or the session was left",
                advice="What was not finished is handed out again, here or elsewhere",
            )
        return self.ended

    def _is_busy_elsewhere(self) -> bool:
        """Whether another thread, which lives, has something of this claim in work."""
        worker = self._worker
        return (
            self._reader.is_busy
            and worker is not None
            and worker.is_alive()
            and worker is not threading.current_thread()
        )

    def _settle(self) -> None:
        with self._lock:
            self._reader.settle()


class Session(SessionFace):
    """One round of a group's life: the partitions that this member has until the next rebalance.

    `claims` has one for each. Work on them inside of `with session`, which ends when they have ended.
    """

    def __init__(self, consumer: Consumer, drain_seconds: float, is_cancelling: bool) -> None:
        engine = consumer._engine
        life = SessionLife(engine, drain_seconds, on_overtime=_nothing, on_close=_nothing_to_wait_for)
        super().__init__(engine, life)
        self._consumer = consumer
        self._is_cancelling = is_cancelling
        self._returned = threading.Condition()
        self.claims: tuple[Claim, ...] = tuple(Claim(self, reader) for reader in life.readers)

    def commit(self) -> None:
        """Commit what is finished of all claims, and wait for that."""
        self._consumer._run(self._commit(self.claims))

    def __enter__(self) -> Self:
        try:
            self._consumer._run(self._enter())
        except ClientClosed:
            # Another thread closed the consumer since the loop handed this one out. Nothing comes of it, and
            # the loop ends.
            self._life.is_entered = True
            self._life.end()
        else:
            self._consumer._session = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Wait for workers that are with a record, then end. Swallows ClaimRevoked, when it is ours."""
        is_ours = isinstance(error, ClaimRevoked) and self._is_cancelling
        try:
            self._drain(self._life.drain_seconds if error is None or is_ours else FAILED_SECONDS)
        finally:
            if self._consumer._session is self:
                self._consumer._session = None
                with contextlib.suppress(ClientClosed):  # closing it ended the session as well
                    self._consumer._run(self._life.exit())
        return is_ours

    # ---- inside

    async def _enter(self) -> None:
        self._life.enter()

    async def _end(self) -> None:
        self._life.end()

    def _drain(self, seconds: float) -> None:
        """Hand out nothing more, wait for the other threads, and put back what is not finished."""
        if not self._life.is_over:
            with contextlib.suppress(ClientClosed):
                self._consumer._run(self._end())
        with self._returned:
            self._returned.wait_for(
                lambda: not any(claim._is_busy_elsewhere() for claim in self.claims), seconds
            )
        for claim in self.claims:
            claim._settle()

    def _tell_returned(self) -> None:
        if self._life.is_over:
            with self._returned:
                self._returned.notify_all()

    def _wait_for_news(self, reader: ClaimReader, timeout: float | None) -> None:
        self._consumer._thread.run(self._life.wait_for_news(reader, timeout))


class Sessions:
    """The sessions of a consumer, one after the other, until it is closed."""

    def __init__(self, consumer: Consumer, on_revoke: str, drain_timeout: float | None) -> None:
        self._consumer = consumer
        self._drain_seconds = drain_seconds(consumer._engine, on_revoke, drain_timeout)
        self._is_cancelling = on_revoke == CANCEL
        self._has_begun = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Session:
        """Take part in the rebalance that is due, or wait for one if the session before was left early."""
        consumer = self._consumer
        if consumer._engine.is_leaving:
            raise StopIteration
        consumer._guard.check()
        try:
            is_there = consumer._callbacks.run(
                consumer._thread, next_round(consumer._engine, self._has_begun)
            )
        except ClientClosed:  # by another thread, just now
            is_there = False
        if not is_there:
            raise StopIteration
        self._has_begun = True
        return Session(consumer, self._drain_seconds, self._is_cancelling)


def _nothing() -> None:
    """Threads cannot be stopped from outside."""


async def _nothing_to_wait_for() -> None:
    """The plain consumer waits for its threads before it closes the client inside it."""
