"""`klamm.Consumer`: the consumer for plain threads. Names, arguments and words are those of
`klamm.aio.Consumer`.

While records are buffered, and no rebalance is due, a poll takes and decodes them in the caller's thread,
without waking the loop. Callbacks of `subscribe` are called in the thread that polls.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from klamm.client.arguments import (
    PartitionLike,
    PartitionsLike,
    PartitionT,
    TimeLike,
    as_timeout,
    seconds_left,
)
from klamm.client.consumer.consumer import Consumer as AsyncConsumer
from klamm.client.consumer.consumer import ConsumerOptions
from klamm.client.consumer.engine import CLOSE_SECONDS, ConsumerEngine
from klamm.client.consumer.group.base_session import DRAIN, DRAIN_SHARE
from klamm.client.consumer.lease import Lease
from klamm.client.consumer.polling import Columns, Polling, make_columns, run_now
from klamm.client.consumer.start import Start
from klamm.client.consumer.subscription import Listener, Topics
from klamm.client.plain.callbacks import CallbackRunner
from klamm.client.plain.face import PlainFace, documented_by
from klamm.client.plain.runner import WAIT_SLICE_S, LoopThread
from klamm.client.plain.sessions import Session, Sessions
from klamm.client.results import CommittedOffset, OffsetAndTime, Record, TopicPartition
from klamm.config.client_config import Bootstrap, ConfigGiven

if TYPE_CHECKING:
    import pyarrow


class _News:
    """By this the loop tells the polling thread that there is something to return.

    It is a lock that is released when there is something. An Event consists of several locks, and costs
    several wake-ups.
    """

    __slots__ = ("_is_expected", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_expected = False

    def expect(self) -> None:
        """Call this before checking for something to return: `wait` then notices all that comes later."""
        self._lock.acquire(blocking=False)
        self._is_expected = True

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=seconds)
        self._is_expected = False

    def tell(self) -> bool:
        """On the loop: wake the thread. Returns True if the thread was waiting."""
        was_expected, self._is_expected = self._is_expected, False
        if self._lock.locked():  # only this method releases it
            self._lock.release()
        return was_expected


class BlockingWaits:
    """How the plain client waits: in the thread that polls, which the loop wakes. Never suspends."""

    def __init__(self, engine: ConsumerEngine, thread: LoopThread, callbacks: CallbackRunner) -> None:
        self._engine = engine
        self._thread = thread
        self._callbacks = callbacks
        self._news = _News()
        engine.on_news = self._news.tell

    async def give_way(self) -> None:
        """Do nothing: the loop runs in a thread of its own."""

    async def join(self, timeout: float | None) -> None:
        self._callbacks.run(self._thread, self._engine.join(timeout))

    async def news(self, timeout: float | None) -> None:
        self._thread.check_not_current()
        self._news.expect()
        engine = self._engine
        is_due = engine.is_rebalance_due or engine.is_leaving or engine.has_trouble
        if not is_due and not engine.records.has_news():
            self._news.wait(WAIT_SLICE_S if timeout is None else min(timeout, WAIT_SLICE_S))

    async def columns(self, leases: Sequence[Lease], limit: int | None) -> Columns:
        return make_columns(leases, limit)


@documented_by(AsyncConsumer)
class Consumer(PlainFace):
    """Reads records.

    `bootstrap` names one or more brokers ("host:port,host:port", or a list). With a `group` the partitions of
    the `topics` are shared with its other members; without one all of them are read. `start` says where to
    begin without a committed offset: "earliest", "latest" (the default), "none" (an error), a datetime, or a
    timedelta (that long ago). `config` is a mapping or a file with Kafka's names; options are in
    docs/CLIENT_CONFIGURATION.md. `ssl_context` replaces the ssl options.
    """

    _client: AsyncConsumer

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        group: str | None = None,
        topics: Topics | None = None,
        start: Start = None,
        config: ConfigGiven = None,
        ssl_context: ssl.SSLContext | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        client = AsyncConsumer(
            bootstrap,
            group=group,
            topics=topics,
            start=start,
            config=config,
            ssl_context=ssl_context,
            **options,
        )
        self._engine = client._engine
        self._records = self._engine.records
        self._callbacks = CallbackRunner()
        self._session: Session | None = None
        self._engine.call_listener = self._callbacks.call
        super().__init__(client)
        self._waits = BlockingWaits(self._engine, self._thread, self._callbacks)
        self._polling = Polling(self._engine, self._guard, self._waits)

    def close(self, timeout: float | None = None) -> None:
        seconds = as_timeout(timeout)
        if self._guard.forked:
            return
        self._thread.check_not_current()
        with self._closing:
            if self._guard.unusable:
                return
            whole = CLOSE_SECONDS if seconds is None else seconds
            deadline = monotonic() + whole
            try:
                self._leave_session(whole * DRAIN_SHARE)
                self._callbacks.run(self._thread, self._client.close(seconds_left(deadline)))
            finally:
                self._thread.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._guard.forked:  # a thread of the parent may have held the lock
            self._engine.finish_given()
        super().__exit__(kind, error, trace)

    # ---- which partitions

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        async def subscribe() -> None:
            self._client.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)

        self._run(subscribe())

    def unsubscribe(self) -> None:
        self._guard.check()
        self._leave_session()
        self._callbacks.run(self._thread, self._client.unsubscribe())

    def assign(self, *partitions: PartitionsLike) -> None:
        async def assign() -> None:
            self._client.assign(*partitions)

        self._run(assign())

    def assignment(self) -> set[TopicPartition]:
        return self._client.assignment()

    def subscription(self) -> set[str]:
        return self._client.subscription()

    # ---- records

    def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        return run_now(self._polling.poll(timeout, max_records))

    def poll_arrow(self, timeout: float | None = None, max_records: int | None = None) -> pyarrow.RecordBatch:
        return run_now(self._polling.poll_arrow(timeout, max_records))

    def __iter__(self) -> Iterator[Record]:
        while True:
            lease = run_now(self._polling.next_lease())
            try:
                for record in lease.iterator:
                    yield record
                    if lease.is_interrupted:
                        break
            except BaseException:
                self._records.leave(lease)
                raise
            self._records.finish(lease)

    def sessions(self, *, on_revoke: str = DRAIN, drain_timeout: float | None = None) -> Sessions:
        """The group's life as a loop: `for session in consumer.sessions()`, one round per rebalance.

        A session has a claim for each partition that is ours until the next rebalance, which ends them all.
        Workers finish the record they have, for `drain_timeout` seconds at most (by default most of
        max_poll_interval_ms). Then their loops end, or raise ClaimRevoked with `on_revoke="cancel"`.
        """
        self._guard.check()
        return Sessions(self, on_revoke, drain_timeout)

    def _leave_session(self, timeout: float | None = None) -> None:
        """Wait for the threads that work on records, before partitions are given up for good."""
        session = self._session
        if session is not None:
            seconds = session._drain_seconds
            session._wait_for_workers(seconds if timeout is None else min(seconds, timeout))

    # ---- commits

    def commit(
        self,
        offsets: Mapping[PartitionT, int | CommittedOffset] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        self._run(self._client.commit(offsets, wait=wait))

    def committed(self, *partitions: PartitionsLike) -> dict[TopicPartition, CommittedOffset]:
        return self._run(self._client.committed(*partitions))

    # ---- positions

    def position(self, partition: PartitionLike) -> int:
        return self._run(self._client.position(partition))

    def seek(self, partition: PartitionLike, offset: int) -> None:
        self._client.seek(partition, offset)

    def seek_to_beginning(self, *partitions: PartitionsLike) -> None:
        self._client.seek_to_beginning(*partitions)

    def seek_to_end(self, *partitions: PartitionsLike) -> None:
        self._client.seek_to_end(*partitions)

    def pause(self, *partitions: PartitionsLike) -> None:
        self._client.pause(*partitions)

    def resume(self, *partitions: PartitionsLike) -> None:
        self._client.resume(*partitions)

    def paused(self) -> set[TopicPartition]:
        return self._client.paused()

    # ---- what the cluster has

    def offsets_for_times(
        self, times: Mapping[PartitionT, TimeLike]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        return self._run(self._client.offsets_for_times(times))

    def beginning_offsets(self, *partitions: PartitionsLike) -> dict[TopicPartition, int]:
        return self._run(self._client.beginning_offsets(*partitions))

    def end_offsets(self, *partitions: PartitionsLike) -> dict[TopicPartition, int]:
        return self._run(self._client.end_offsets(*partitions))

    def lag(self, *partitions: PartitionsLike) -> dict[TopicPartition, int]:
        return self._run(self._client.lag(*partitions))

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        return self._run(self._client.partitions_for(topic, timeout))

    def topics(self) -> set[str]:
        return self._run(self._client.topics())
