"""The groups of one __consumer_offsets partition in one leader epoch: durable state, timers, writes.

A shard is loaded once, from the log, and serves until its epoch is over or it has lost track of the log
(writer.py). Then it resigns: everything that is parked is answered with NOT_COORDINATOR, and a new shard is
loaded if the partition is led here. Sessions start again with the new shard. A rebalance that was under way
is forgotten: the group is in the generation of the last assignment that is committed, and its members join
again.

A group lives as a state machine while it has, or may get, members; one that only has offsets is an entry of
the table. Every living group has at most one timer, at its next deadline as last looked at. Heartbeats only
move deadlines further away, so they do not touch the timer: when it fires too early it is set again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from klamm.groups.events import Answered, GroupSettings, GroupState, JoinResult, Persist, SyncResult, Token
from klamm.groups.group import Group
from klamm.groups.log_port import LedPartition
from klamm.groups.offsets import OffsetTable
from klamm.groups.records import KeyValue, group_record
from klamm.groups.table import GroupEntry, GroupTable
from klamm.groups.timers import TimerHandle, Timers
from klamm.groups.writer import MOST_AT_ONCE, PartitionWriter
from klamm.model.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)
_REPLAYS_BETWEEN_PAUSES = 500
"""Loading gives way to other work of the event loop after this many records: about five milliseconds."""


class WallClock(Protocol):
    def now_ms(self) -> int: ...


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState


class ObservedGroup(NamedTuple):
    """For reading only."""

    group_id: str
    member_count: int
    offsets: OffsetTable


class _Timer(NamedTuple):
    deadline_ms: int
    handle: TimerHandle


class Shard:
    def __init__(
        self,
        led: LedPartition,
        clock: WallClock,
        timers: Timers,
        settings: GroupSettings,
        on_lost: Callable[[Shard], None],
    ) -> None:
        """`on_lost` is called when the shard can no longer be served from: it must be replaced."""
        self.led = led
        self.table = GroupTable()
        self.writer = PartitionWriter(
            led,
            lambda key, value: self.table.replay(key, value),
            lambda: on_lost(self),
            timers,
            settings.commit_timeout_ms,
        )
        self.is_loaded = False
        self.is_resigned = False
        self._clock = clock
        self._timers = timers
        self._settings = settings
        self._on_lost = on_lost
        self._groups: dict[str, Group] = {}
        self._group_timers: dict[str, _Timer] = {}
        self._parked: dict[Token, Callable[[Any], None]] = {}
        """The joins and syncs that wait, each with what takes its result."""
        self._next_token = 0
        self._deletions: set[asyncio.Task[ErrorCode]] = set()
        """They end when the writer is closed."""

    @property
    def partition(self) -> int:
        return self.led.partition

    @property
    def is_serving(self) -> bool:
        """True if the shard is loaded and its leader epoch goes on."""
        return self.is_loaded and not self.is_resigned and self.led.is_led

    async def load(self) -> None:
        """Replay the log. If this fails, the shard is as before and can be loaded again."""
        table = GroupTable()
        replayed = 0
        async for records in self.led.read_all():
            for key, value in records:
                table.replay(key, value)
                replayed += 1
                if replayed % _REPLAYS_BETWEEN_PAUSES == 0:
                    await asyncio.sleep(0)
        if self.is_resigned:
            return
        self.table = table
        for group_id in table:
            entry = table.get(group_id)
            if entry is not None and entry.snapshot is not None and entry.snapshot.members:
                self._revive(group_id)
        self.is_loaded = True
        if replayed:
            _LOGGER.info("loaded __consumer_offsets-%d: %d records", self.partition, replayed)

    def resign(self) -> None:
        """The leader epoch is over, this broker stops, or the shard has lost track of the log."""
        self.is_resigned = True
        self.writer.close()
        for group in list(self._groups.values()):
            group.die(ErrorCode.NOT_COORDINATOR)
            self.perform(group)
        self._groups.clear()

    # Groups

    def find(self, group_id: str) -> Group | None:
        group = self._groups.get(group_id)
        if group is None and self.table.get(group_id) is not None:
            return self._revive(group_id)
        return group

    def peek(self, group_id: str) -> Group | None:
        """As `find`, for reading only: a group that only has a table entry gets no state machine."""
        group = self._groups.get(group_id)
        entry = self.table.get(group_id)
        return self._restored(group_id, entry) if group is None and entry is not None else group

    def find_or_create(self, group_id: str) -> Group:
        group = self.find(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._settings)
        return group

    def group_ids(self) -> Iterator[str]:
        """The groups there are when the iteration begins, each once. Groups may change while it goes on."""
        living, stored = self._groups.copy(), iter(self.table)
        yield from living
        yield from (group_id for group_id in stored if group_id not in living)

    def observe(self) -> Iterator[ObservedGroup]:
        """The groups as they are when each has its turn."""
        for group_id in self.group_ids():
            group, entry = self._groups.get(group_id), self.table.get(group_id)
            if group is not None and group.state is GroupState.DEAD:
                continue
            if group is not None or entry is not None:
                member_count = 0 if group is None else len(group.members)
                yield ObservedGroup(group_id, member_count, OffsetTable() if entry is None else entry.offsets)

    def listed(self, group_id: str) -> ListedGroup | None:
        """None if there is no such group. For one without a state machine the table entry is enough."""
        group = self._groups.get(group_id)
        if group is not None:
            is_dead = group.state is GroupState.DEAD
            return None if is_dead else ListedGroup(group_id, group.protocol_type or "", group.state)
        entry = self.table.get(group_id)
        if entry is None:
            return None
        protocol_type = "" if entry.snapshot is None else entry.snapshot.protocol_type
        return ListedGroup(group_id, protocol_type, GroupState.EMPTY)

    def _revive(self, group_id: str) -> Group:
        entry = self.table.get(group_id)
        assert entry is not None
        group = self._restored(group_id, entry)
        self._groups[group_id] = group
        self.perform(group)
        return group

    def _restored(self, group_id: str, entry: GroupEntry) -> Group:
        if entry.snapshot is None:
            return Group(group_id, self._settings)
        return Group.restore(entry.snapshot, self._settings, self._timers.now_ms())

    def delete(self, group_id: str, check: Callable[[Group], None]) -> asyncio.Task[ErrorCode]:
        """Delete a group, unless `check` raises an error when all earlier writes are done.

        While the deletion is being written, the group is Dead. Afterwards the group is what the log says,
        whether the deletion succeeded or failed. The tombstones of very many offsets are several writes, that
        of the group in the last one. No commit is accepted meanwhile; one that was accepted before, and is
        written between two of them, is deleted too.
        """
        deletion = asyncio.ensure_future(self._delete(group_id, check))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        return deletion

    async def _delete(self, group_id: str, check: Callable[[Group], None]) -> ErrorCode:
        is_checked = False

        def build() -> tuple[list[KeyValue], bool]:
            nonlocal is_checked
            if not is_checked:
                group = self.find(group_id)
                if group is None:
                    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
                check(group)
                group.die(ErrorCode.UNKNOWN_MEMBER_ID)
                self.perform(group)
                is_checked = True
            return self.table.deletion_of(group_id, MOST_AT_ONCE)

        code = await self.writer.write_in_pieces(build)
        group = self._groups.get(group_id)
        if is_checked and group is not None and group.state is GroupState.DEAD:
            del self._groups[group_id]
        return code

    # Effects

    def park_join(self, answer: Callable[[JoinResult], None]) -> Token:
        """A token for a join: `answer` gets the result when the group has one."""
        return self._park(answer)

    def park_sync(self, answer: Callable[[SyncResult], None]) -> Token:
        return self._park(answer)

    def _park(self, answer: Callable[[Any], None]) -> Token:
        self._next_token += 1
        token = Token(self._next_token)
        self._parked[token] = answer
        return token

    def perform(self, group: Group) -> asyncio.Future[ErrorCode] | None:
        """Carry out the effects of the group; returns its last write, if there was one."""
        last_write = None
        for effect in group.take_effects():
            if isinstance(effect, Answered):
                self._parked.pop(effect.token)(effect.result)
            else:
                last_write = self._persist(group, effect)
        if group.is_untouched and self.table.get(group.group_id) is None:
            self._groups.pop(group.group_id, None)
        self._set_timer(group)
        return last_write

    def _persist(self, group: Group, effect: Persist) -> asyncio.Future[ErrorCode]:
        snapshot = effect.snapshot._replace(state_timestamp_ms=self._clock.now_ms())
        outcome = self.writer.write([group_record(snapshot)])

        def finish(done: asyncio.Future[ErrorCode]) -> None:
            code = done.result()
            now_ms = self._timers.now_ms()
            if code is ErrorCode.NONE:
                group.persisted(effect.ticket, now_ms)
            else:
                group.persist_failed(effect.ticket, code, now_ms)
            self.perform(group)

        outcome.add_done_callback(finish)
        return outcome

    # Timers

    def _set_timer(self, group: Group) -> None:
        deadline_ms = group.next_deadline_ms()
        timer = self._group_timers.get(group.group_id)
        if timer is not None:
            if deadline_ms is not None and timer.deadline_ms <= deadline_ms:
                return
            timer.handle.cancel()
            del self._group_timers[group.group_id]
        if deadline_ms is not None:
            handle = self._timers.call_at(deadline_ms, lambda: self._on_timer(group))
            self._group_timers[group.group_id] = _Timer(deadline_ms, handle)

    def _on_timer(self, group: Group) -> None:
        self._group_timers.pop(group.group_id, None)
        if not self.led.is_led:
            # Nothing may be answered any more; whoever leads now has timers of its own.
            self._on_lost(self)
            return
        if group.state is not GroupState.DEAD:
            group.on_time(self._timers.now_ms())
        self.perform(group)
