"""Sessions and claims for plain threads: as in `consumer/group/sessions.py`, with threads for tasks.

    for session in consumer.sessions():
        with session, ThreadPoolExecutor(len(session.claims) or 1) as workers:
            for claim in session.claims:
                workers.submit(work, claim)               # for record in claim: ...

Python cannot cancel a thread. So a worker finishes its record in any case. Then its loop over the claim ends;
with on_revoke="cancel" the loop raises ClaimRevoked instead, so that the code after the loop does not run. A
worker with long work per record can check `claim.ended` itself. The `with` block waits for workers that have
a record, `drain_timeout` seconds at most, and swallows ClaimRevoked.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from klamm.client.consumer.group.base_session import (
    CANCEL,
    BaseClaim,
    BaseSession,
    drain_seconds,
    next_round,
)
from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.consumer.group.offsets import listed
from klamm.client.consumer.polling import run_now
from klamm.client.errors import ClaimRevoked, ClientClosed
from klamm.client.results import Record

if TYPE_CHECKING:
    import pyarrow

    from klamm.client.plain.consumer import Consumer

FAILED_SECONDS = 5.0
"""How long to wait for other workers when an error ends the session: the worker that failed may be among
them, and will never finish its record."""


class Claim(BaseClaim):
    """One partition within a session: `for record in claim`, in one thread. Ends when it is revoked."""

    _session: Session
    _worker: threading.Thread | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """The next record; the one before is finished."""
        with self._moving:
            record = self._reader.next_at_hand()
        if record is None:
            record = run_now(self._next_record())
            if record is None:
                raise StopIteration
        return record

    def poll(self, max_records: int | None = None, timeout: float | None = None) -> list[Record]:
        """Several records at once; those before are finished. Nothing when the claim has ended, or when
        `timeout` seconds are over: `while records := claim.poll(): ...`"""
        return run_now(self._poll(max_records, timeout))

    def poll_arrow(self, max_records: int | None = None, timeout: float | None = None) -> pyarrow.RecordBatch:
        """As `poll`, but the records come as columns: `while (batch := claim.poll_arrow()).num_rows: ...`

        Without `max_records` it is all that is buffered, up to some megabytes. Needs klamm[arrow].
        """
        return run_now(self._poll_arrow(max_records, timeout))

    def commit(self) -> None:
        """Commit what is finished of this partition, and wait for that."""
        self._session._consumer._run(self._session._commit((self,)))

    def _worker_came_back(self) -> None:
        self._worker = threading.current_thread()
        self._session._tell_returned()

    def _is_over(self) -> bool:
        """True if the claim has ended; with on_revoke="cancel" it raises ClaimRevoked instead."""
        if self.ended and self._session._is_cancelling:
            raise ClaimRevoked(
                f"{self.topic_partition} was revoked, or the session was left",
                advice="Records that were not finished are handed out again, to this member or to another",
            )
        return self.ended

    def _is_busy_elsewhere(self) -> bool:
        """True if another thread, which is alive, works on a record of this claim."""
        worker = self._worker
        return (
            self._reader.is_busy
            and worker is not None
            and worker.is_alive()
            and worker is not threading.current_thread()
        )


class Session(BaseSession):
    """One round of a group's life: the partitions that this member has until the next rebalance.

    `claims` has one for each. Work on them inside of `with session`, which ends when they have ended.
    """

    def __init__(self, consumer: Consumer, drain_seconds: float, is_cancelling: bool) -> None:
        super().__init__(consumer._engine, consumer._waits, drain_seconds)
        self._consumer = consumer
        self._is_cancelling = is_cancelling
        self._returned = threading.Condition()
        self.claims: tuple[Claim, ...] = tuple(Claim(self, reader) for reader in self._readers)

    def commit(self) -> None:
        """Commit what is finished of all claims, and wait for that."""
        self._consumer._run(self._commit(self.claims))

    def __enter__(self) -> Self:
        try:
            self._consumer._run(self._enter_on_loop())
        except ClientClosed:
            # Another thread closed the consumer after the loop had returned this session: nothing is handed
            # out, and the loop ends.
            self._is_entered = True
            self._end()
        else:
            self._consumer._session = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Wait for workers that have a record, then end. Swallows the ClaimRevoked of this session."""
        is_ours = isinstance(error, ClaimRevoked) and self._is_cancelling
        try:
            self._wait_for_workers(self._drain_seconds if error is None or is_ours else FAILED_SECONDS)
        finally:
            if self._consumer._session is self:
                self._consumer._session = None
                with contextlib.suppress(ClientClosed):  # closing the consumer ended the session as well
                    self._consumer._run(self._exit())
        return is_ours

    # ---- inside

    async def _enter_on_loop(self) -> None:
        self._enter()

    async def _end_on_loop(self) -> None:
        self._end()

    def _wait_for_workers(self, seconds: float) -> None:
        """Hand out no more records, wait for the other threads, and put back records that are not
        finished."""
        if not self._is_over:
            with contextlib.suppress(ClientClosed):
                self._consumer._run(self._end_on_loop())
        with self._returned:
            is_drained = self._returned.wait_for(
                lambda: not any(claim._is_busy_elsewhere() for claim in self.claims), seconds
            )
        if not is_drained:
            busy = listed([claim.topic_partition for claim in self.claims if claim._is_busy_elsewhere()])
            self._logger.warning(
                "workers had not finished after %g s; their records are handed out again: %s", seconds, busy
            )
        for claim in self.claims:
            claim._put_back()

    def _tell_returned(self) -> None:
        if self._is_over:
            with self._returned:
                self._returned.notify_all()

    async def _wait_for_news(self, reader: ClaimReader, timeout: float | None) -> None:
        """Blocks the worker's thread."""
        self._consumer._thread.run(self._news_of(reader, timeout))


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
