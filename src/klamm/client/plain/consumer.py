"""`klamm.Consumer`: the consumer for plain threads. Names, arguments and words are those of
`klamm.aio.Consumer`.

While something is buffered, and nothing else is due, a poll takes and decodes it in the caller's thread and
does not trouble the loop. Callbacks of `subscribe` are called in the thread that polls.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Unpack

from klamm.client.arguments import PartitionLike, PartitionT, TimeLike, as_count, as_timeout
from klamm.client.consumer.columns import empty_columns, read_columns
from klamm.client.consumer.consumer import Consumer as AsyncConsumer
from klamm.client.consumer.group.session_life import DRAIN
from klamm.client.consumer.options import ConsumerOptions
from klamm.client.consumer.partition_state import Reading
from klamm.client.consumer.start import Start
from klamm.client.consumer.subscription import Listener, Topics
from klamm.client.errors import ClientMisused
from klamm.client.plain.callbacks import CallbackRunner
from klamm.client.plain.face import PlainFace, documented_by
from klamm.client.plain.runner import WAIT_SLICE_S
from klamm.client.plain.sessions import Session, Sessions
from klamm.client.results import CommittedOffset, OffsetAndTime, Record, TopicPartition
from klamm.config.client_config import Bootstrap, ConfigGiven

if TYPE_CHECKING:
    import pyarrow


class _News:
    """How the loop tells the polling thread that there is something to return.

    A lock that is open when there is news: an Event is made of several, and costs several wake-ups.
    """

    __slots__ = ("_is_expected", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_expected = False

    def expect(self) -> None:
        """Before looking for what there is: nothing that comes after this is missed by `wait`."""
        self._lock.acquire(blocking=False)
        self._is_expected = True

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=seconds)
        self._is_expected = False

    def tell(self) -> bool:
        """On the loop: whether the thread was waiting."""
        was_expected, self._is_expected = self._is_expected, False
        if self._lock.locked():  # nobody else opens it
            self._lock.release()
        return was_expected


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
        self._polling = threading.Lock()
        self._session: Session | None = None
        self._news = _News()
        self._engine.call_listener = self._callbacks.call
        self._engine.on_news = self._news.tell
        super().__init__(client)

    def close(self) -> None:
        if self._guard.forked:
            return
        self._thread.check_not_current()
        with self._closing:
            if self._guard.unusable:
                return
            try:
                self._leave_session()
                self._callbacks.run(self._thread, self._client.close())
            finally:
                self._thread.close()

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

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        async def assign() -> None:
            self._client.assign(partitions)

        self._run(assign())

    def assignment(self) -> set[TopicPartition]:
        return self._client.assignment()

    def subscription(self) -> set[str]:
        return self._client.subscription()

    # ---- records

    def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        limit = self._engine.max_poll_records if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        self._enter()
        try:
            while True:
                self._begin(deadline)
                records = self._records.take(limit)
                if records:
                    self._engine.counters.records_received += len(records)
                    return records
                if not self._wait(deadline):
                    return []
        finally:
            self._polling.release()

    def poll_arrow(self, timeout: float | None = None, max_records: int | None = None) -> pyarrow.RecordBatch:
        limit = None if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        self._enter()
        try:
            while True:
                self._begin(deadline)
                batch = read_columns(self._records, limit)
                if batch is not None:
                    self._engine.counters.records_received += batch.num_rows
                    return batch
                if not self._wait(deadline):
                    return empty_columns()
        finally:
            self._polling.release()

    def __iter__(self) -> Iterator[Record]:
        while True:
            reading = self._next_reading()
            try:
                for record in reading.iterator:
                    reading.cursor = record
                    yield record
                    if reading.is_interrupted:
                        break
            finally:
                self._records.end_reading(reading)

    def _next_reading(self) -> Reading:
        self._enter()
        try:
            while True:
                self._begin(None)
                reading = self._records.read(self._engine.max_poll_records)
                if reading is not None:
                    self._engine.counters.records_received += len(reading.records)
                    return reading
                self._wait(None)
        finally:
            self._polling.release()

    def _enter(self) -> None:
        """One poll at a time: what is finished could not be told otherwise."""
        self._guard.check()
        self._engine.check_may_poll()
        if not self._polling.acquire(blocking=False):
            raise ClientMisused(
                "two polls of one consumer at once", advice="Poll in one thread, or make a consumer for each"
            )

    def _begin(self, deadline: float | None) -> None:
        """A turn of a poll begins: finish what was handed out, and take part in the group if that is due."""
        self._guard.check()
        engine = self._engine
        engine.begin_poll()
        while engine.is_rebalance_due:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            self._callbacks.run(self._thread, engine.join(left))
            if deadline is not None and monotonic() >= deadline:
                break

    def _wait(self, deadline: float | None) -> bool:
        """Wait for something to return; False when the time is over."""
        left = WAIT_SLICE_S if deadline is None else min(deadline - monotonic(), WAIT_SLICE_S)
        if left <= 0:
            return False
        self._thread.check_not_current()
        self._news.expect()
        engine = self._engine
        if not (self._records.has_news() or engine.is_rebalance_due or self._guard.unusable):
            self._news.wait(left)
        return True

    def sessions(self, *, on_revoke: str = DRAIN, drain_timeout: float | None = None) -> Sessions:
        """The group's life as a loop: `for session in consumer.sessions()`, one turn per rebalance.

        A session has a claim for each partition that is ours until the next rebalance, which ends them all.
        Workers finish the record they have, for `drain_timeout` seconds at most (by default most of
        max_poll_interval_ms). Then their loops end, or raise ClaimRevoked with `on_revoke="cancel"`.
        """
        self._guard.check()
        return Sessions(self, on_revoke, drain_timeout)

    def _leave_session(self) -> None:
        """Before partitions are given up for good: wait for the threads that work on records."""
        session = self._session
        if session is not None:
            session._drain(session._life.drain_seconds)

    # ---- commits

    def commit(
        self,
        offsets: Mapping[PartitionT, int | CommittedOffset] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        self._run(self._client.commit(offsets, wait=wait))

    def committed(
        self, partitions: Iterable[PartitionLike] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._run(self._client.committed(partitions))

    # ---- positions

    def position(self, partition: PartitionLike) -> int:
        return self._run(self._client.position(partition))

    def seek(self, partition: PartitionLike, offset: int) -> None:
        self._client.seek(partition, offset)

    def seek_to_beginning(self, *partitions: PartitionLike) -> None:
        self._client.seek_to_beginning(*partitions)

    def seek_to_end(self, *partitions: PartitionLike) -> None:
        self._client.seek_to_end(*partitions)

    def pause(self, *partitions: PartitionLike) -> None:
        self._client.pause(*partitions)

    def resume(self, *partitions: PartitionLike) -> None:
        self._client.resume(*partitions)

    def paused(self) -> set[TopicPartition]:
        return self._client.paused()

    # ---- what the cluster has

    def offsets_for_times(
        self, times: Mapping[PartitionT, TimeLike]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        return self._run(self._client.offsets_for_times(times))

    def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        return self._run(self._client.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        return self._run(self._client.end_offsets(partitions))

    def lag(self, *partitions: PartitionLike) -> dict[TopicPartition, int]:
        return self._run(self._client.lag(*partitions))

    def partitions_for(self, topic: str) -> set[int]:
        return self._run(self._client.partitions_for(topic))

    def topics(self) -> set[str]:
        return self._run(self._client.topics())
