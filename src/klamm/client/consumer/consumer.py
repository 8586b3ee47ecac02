"""`klamm.aio.Consumer`: reads the records of topics, alone or as a member of a group.

`klamm.Consumer` is the same for plain threads.

    async with Consumer("localhost:9092", group="billing", topics=["orders"], start="earliest") as consumer:
        async for record in consumer: ...

What is handed out is finished when the next is asked for: `poll` finishes what the poll before returned, and
in a loop every record finishes the one before it. Leaving `async with` without an exception finishes what was
handed out last. Automatic commits commit what is finished, nothing else.
Rebalances go forward only inside `poll` and iteration, never while the user works on what they returned.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from klamm.client.arguments import (
    PartitionLike,
    PartitionsLike,
    PartitionT,
    TimeLike,
    as_name,
    as_partition,
    as_timeout,
    given_partitions,
    time_ms,
)
from klamm.client.async_face import AsyncFace
from klamm.client.consumer.engine import CLOSE_SECONDS, ConsumerEngine
from klamm.client.consumer.group.base_session import DRAIN
from klamm.client.consumer.group.sessions import Sessions
from klamm.client.consumer.lease import Lease
from klamm.client.consumer.polling import Columns, Polling, make_columns
from klamm.client.consumer.positions import EARLIEST as AT_EARLIEST
from klamm.client.consumer.start import EARLIEST, LATEST, Start, StartPolicy, start_text
from klamm.client.consumer.subscription import Listener, Listeners, Topics
from klamm.client.errors import ClientMisused
from klamm.client.guard import ClientGuard
from klamm.client.options import ClientOptions
from klamm.client.results import CommittedOffset, OffsetAndTime, Record, TopicPartition
from klamm.config.client_config import Bootstrap, ClientConfig, ConfigGiven

if TYPE_CHECKING:
    import pyarrow

KIND = "consumer"
AT_LATEST = StartPolicy("latest")


class ConsumerOptions(ClientOptions, total=False):
    """Settings of a consumer; docs/CLIENT_CONFIGURATION.md says what they mean."""

    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    check_crcs: bool
    enable_auto_commit: bool
    exclude_internal_topics: bool
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str
    group_instance_id: str
    heartbeat_interval_ms: int
    isolation_level: str
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: str | Sequence[str]
    prefetch_max_bytes: int
    session_timeout_ms: int


class AwaitingWaits:
    """How the asyncio client waits: on its loop."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self.join = engine.join
        self.news = engine.wait_for_news

    async def give_way(self) -> None:
        await asyncio.sleep(0)

    async def columns(self, leases: Sequence[Lease], limit: int | None) -> Columns:
        # In a thread: the kernels let go of the interpreter, and the loop goes on fetching.
        return await asyncio.to_thread(make_columns, leases, limit)


class Consumer(AsyncFace):
    """Reads records.

    `bootstrap` names one or more brokers ("host:port,host:port", or a list). With a `group` the partitions of
    the `topics` are shared with its other members; without one all of them are read. `start` says where to
    begin without a committed offset: "earliest", "latest" (the default), "none" (an error), a datetime, or a
    timedelta (that long ago). `config` is a mapping or a file with Kafka's names; options are in
    docs/CLIENT_CONFIGURATION.md. `ssl_context` replaces the ssl options.
    """

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
        given: dict[str, object] = dict(options)
        if group is not None:
            given["group_id"] = group
        if start is not None:
            given["auto_offset_reset"] = start_text(start)
        self._engine = ConsumerEngine(ClientConfig(KIND, bootstrap, config, given), ssl_context)
        self._guard = ClientGuard(KIND, self._engine.client_id)
        self._closing = asyncio.Lock()
        self._waits = AwaitingWaits(self._engine)
        self._polling = Polling(self._engine, self._guard, self._waits)
        if topics is not None:
            self._engine.subscribe(topics, Listeners())

    # ---- life

    async def start(self) -> None:
        """Begin. `async with` does it, and so does the first call that waits for something."""
        self._guard.check_on_loop()
        if not self._guard.started:
            self._guard.started = True
            await self._engine.start()

    async def close(self, timeout: float | None = None) -> None:
        """Wait for the workers of a session, commit what is finished (with automatic commits), leave the
        group, and end all connections: in `timeout` seconds altogether (5 by default). What is not done by
        then is left undone, and the log says so: the next owner of the partitions reads again what is not
        committed, and the group notices after `session_timeout_ms` that this member is gone.

        Idempotent; every other call raises ClientClosed afterwards.
        """
        seconds = as_timeout(timeout)
        if self._guard.forked:
            return
        if not self._guard.unusable:
            self._guard.check_on_loop()
        async with self._closing:
            if self._guard.unusable:
                return
            deadline = monotonic() + (CLOSE_SECONDS if seconds is None else seconds)
            try:
                if self._guard.started:
                    await self._engine.farewell(deadline)
            finally:
                self._guard.begin_close()
                await self._engine.close(deadline)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._guard.forked:  # a thread of the parent may have held the lock
            self._engine.finish_given()
        await self.close()

    def counters(self) -> dict[str, float]:
        """The counters of this client so far, by name."""
        counters = self._engine.counters
        counters.prefetched_bytes = self._engine.positions.buffered_bytes
        return counters.as_dict()

    # ---- which partitions

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics: a name, several, or a pattern (`re.compile`) that a whole name must match.

        Replaces what was subscribed to before. The callbacks get a set of partitions, inside a poll;
        `on_lost` is for partitions that are somebody else's already (by default it is `on_revoked`).
        """
        self._guard.check()
        self._engine.subscribe(topics, Listeners(on_assigned, on_revoked, on_lost))

    async def unsubscribe(self) -> None:
        """Read nothing any more: commit what is finished (with automatic commits) and leave the group."""
        await self.start()
        await self._engine.unsubscribe()

    def assign(self, *partitions: PartitionsLike) -> None:
        """Read exactly these partitions, whatever others do. Those that stay keep their position. Here and
        in the other methods partitions are given one by one or as one list."""
        self._guard.check()
        chosen = given_partitions(partitions)
        if chosen is None:
            raise ClientMisused(
                "assign() was called without partitions", advice="To read nothing, give an empty list"
            )
        self._engine.assign(chosen)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        self._guard.check()
        return self._engine.positions.assignment()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to; those that a pattern matches, as far as is known."""
        self._guard.check()
        return set(self._engine.subscribed_topics())

    # ---- records

    async def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        """The next records, at most `max_records` (max_poll_records by default).

        Waits until there is one, or `timeout` seconds are over: then the list is empty. 0 does not wait.
        """
        await self.start()
        return await self._polling.poll(timeout, max_records)

    async def poll_arrow(
        self, timeout: float | None = None, max_records: int | None = None
    ) -> pyarrow.RecordBatch:
        """As `poll`, but the records come as columns: a pyarrow RecordBatch, empty when the time is over.

        Without `max_records` it is all that is buffered, up to some megabytes. Needs klamm[arrow].
        """
        await self.start()
        return await self._polling.poll_arrow(timeout, max_records)

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record]:
        await self.start()
        while True:
            lease = await self._polling.next_lease()
            try:
                for record in lease.iterator:
                    yield record
                    if lease.is_interrupted:
                        break
            except BaseException:
                self._engine.records.leave(lease)
                raise
            self._engine.records.finish(lease)

    def sessions(self, *, on_revoke: str = DRAIN, drain_timeout: float | None = None) -> Sessions:
        """The group's life as a loop: `async for session in consumer.sessions()`, one round per rebalance.

        A session has a claim for each partition that is ours until the next rebalance, which ends them all.
        With `on_revoke="drain"` workers finish the record they have, for `drain_timeout` seconds at most (by
        default most of max_poll_interval_ms); with "cancel" their tasks are cancelled.
        """
        self._guard.check()
        return Sessions(self._engine, self._waits, on_revoke, drain_timeout, self.start)

    # ---- commits

    async def commit(
        self,
        offsets: Mapping[PartitionT, int | CommittedOffset] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Commit `offsets`, each that of the next record to read; by default everything handed out so far.

        With `wait=False` it is done in the background, and only the log says when it fails.
        """
        await self.start()
        _, commits = self._engine.need_group("commit()")
        chosen = self._engine.positions.positions() if offsets is None else _as_offsets(offsets)
        if not wait:
            commits.commit_later(chosen)
        elif chosen:
            await commits.commit(chosen)

    async def committed(self, *partitions: PartitionsLike) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed for these partitions, by default those that are assigned. Partitions
        without a committed offset are not in it."""
        await self.start()
        return dict(await self._engine.committed(self._given_or_assigned(partitions)))

    # ---- positions

    async def position(self, partition: PartitionLike) -> int:
        """The offset of the next record to be handed out of a partition."""
        await self.start()
        return await self._engine.position(as_partition(partition))

    def seek(self, partition: PartitionLike, offset: int) -> None:
        """Go on at `offset`. What was fetched ahead of the partition is dropped."""
        self._guard.check()
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ClientMisused(
                f"{offset!r} is not a valid offset",
                advice="Give a number from 0 on, or use seek_to_end()",
            )
        self._engine.positions.seek(as_partition(partition), offset)

    def seek_to_beginning(self, *partitions: PartitionsLike) -> None:
        """Go on with the oldest records of these partitions, or of all that are assigned."""
        self._reset(partitions, AT_EARLIEST)

    def seek_to_end(self, *partitions: PartitionsLike) -> None:
        """Go on with what comes from now on, in these partitions or in all that are assigned."""
        self._reset(partitions, AT_LATEST)

    def _reset(self, partitions: tuple[PartitionsLike, ...], policy: StartPolicy) -> None:
        self._guard.check()
        for partition in self._engine.assigned_of(given_partitions(partitions)):
            self._engine.positions.reset(partition, policy)

    def pause(self, *partitions: PartitionsLike) -> None:
        """Hand out nothing of these partitions, or of all that are assigned, until `resume`. They stay
        assigned, with their position and what was fetched."""
        self._guard.check()
        self._engine.positions.pause(self._engine.assigned_of(given_partitions(partitions)))

    def resume(self, *partitions: PartitionsLike) -> None:
        """Go on with partitions that were paused, or with all of them."""
        self._guard.check()
        self._engine.positions.resume(self._engine.assigned_of(given_partitions(partitions)))

    def paused(self) -> set[TopicPartition]:
        """The assigned partitions that are paused."""
        self._guard.check()
        return self._engine.positions.paused()

    # ---- what the cluster has

    async def offsets_for_times(
        self, times: Mapping[PartitionT, TimeLike]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record at or after a time, for each partition; None where there is none."""
        await self.start()
        asked = {as_partition(partition): time_ms(time) for partition, time in times.items()}
        found = await self._list_offsets(asked)
        return {partition: one if one.offset >= 0 else None for partition, one in found.items()}

    async def beginning_offsets(self, *partitions: PartitionsLike) -> dict[TopicPartition, int]:
        """The offset of the oldest record of each of these partitions, or of all that are assigned."""
        await self.start()
        found = await self._list_offsets(dict.fromkeys(self._given_or_assigned(partitions), EARLIEST))
        return {partition: one.offset for partition, one in found.items()}

    async def end_offsets(self, *partitions: PartitionsLike) -> dict[TopicPartition, int]:
        """Where each of these partitions ends, or all that are assigned: the offset that the next record will
        get. With read_committed, where the first open transaction begins."""
        await self.start()
        found = await self._list_offsets(dict.fromkeys(self._given_or_assigned(partitions), LATEST))
        return {partition: one.offset for partition, one in found.items()}

    async def lag(self, *partitions: PartitionsLike) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the end, of these partitions or of all that are
        assigned."""
        await self.start()
        chosen = self._engine.assigned_of(given_partitions(partitions))
        positions = {partition: await self._engine.position(partition) for partition in chosen}
        ends = await self.end_offsets(chosen)
        return {partition: max(0, ends[partition] - position) for partition, position in positions.items()}

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partitions of a topic, from 0 on. UnknownTopic if it does not exist."""
        await self.start()
        name, seconds = as_name(topic, "topic"), as_timeout(timeout)
        limit = self._engine.timeout_seconds if seconds is None else seconds
        return await self._engine.partitions_of(name, limit)

    async def topics(self) -> set[str]:
        """All topics there are, internal ones left out unless exclude_internal_topics is off."""
        await self.start()
        return await self._engine.all_topics()

    def _given_or_assigned(self, partitions: tuple[PartitionsLike, ...]) -> Collection[TopicPartition]:
        given = given_partitions(partitions)
        return self._engine.positions.assignment() if given is None else given

    async def _list_offsets(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        if not asked:
            return {}
        return await self._engine.lookup.list_offsets(asked, self._engine.timeout_seconds)


def _as_offsets(
    offsets: Mapping[PartitionT, int | CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    if not isinstance(offsets, Mapping):
        raise ClientMisused(
            f"{type(offsets).__name__} is not a mapping of offsets to commit",
            advice='Give a dict: {("topic", 0): 7}',
        )
    chosen = {}
    for partition, offset in offsets.items():
        committed = CommittedOffset(offset) if isinstance(offset, int) else offset
        if not isinstance(committed, CommittedOffset) or committed.offset < 0:
            raise ClientMisused(
                f"{offset!r} is not a valid offset to commit",
                advice="Give a number from 0 on, or a CommittedOffset",
            )
        chosen[as_partition(partition)] = committed
    return chosen
