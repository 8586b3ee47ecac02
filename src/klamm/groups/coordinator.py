"""The group coordinator: finds the group of a request, and answers once the change is committed.

A group belongs to the partition of __consumer_offsets that its name hashes to; the broker that leads the
partition coordinates the group. Every partition led here is a shard (shard.py), loaded from its log first
(loading.py). A shard belongs to one leader epoch; in a new epoch it is replaced by a new one, also if this
broker leads on. Every request compares the epoch, so none is answered from a shard whose epoch is over.
All state changes happen on the event loop, one at a time, so that the operations of a group are ordered;
what they write is ordered by the shard's writer, and their answers wait for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import mul
from typing import NamedTuple

from klamm.config.broker_config import BrokerConfig
from klamm.groups.cleanup import OffsetCleanup
from klamm.groups.events import (
    GroupSettings,
    GroupState,
    Join,
    JoinResult,
    Leaver,
    Subscription,
    Sync,
    SyncResult,
)
from klamm.groups.group import Group
from klamm.groups.loading import Loader
from klamm.groups.log_port import LedPartition, LogPort
from klamm.groups.offsets import CommittedOffset, OffsetTable, expired_partitions
from klamm.groups.records import KeyValue, offset_record, offset_tombstone
from klamm.groups.shard import ListedGroup, ObservedGroup, Shard, WallClock
from klamm.groups.timers import LoopTimers, TimerHandle, Timers
from klamm.groups.writer import MOST_AT_ONCE
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition

_MAX_NAME_LENGTH = 249
"""Characters of a client id that go into a member id. Every member must be able to decode all member ids."""
_OFFSETS_BETWEEN_PAUSES = 2_000
"""The search for expired offsets gives way to other work after it has looked at this many."""
_COST_OF_A_GROUP = 10
"""The offsets that could be looked at in the time that a group without any takes."""
_HASHED_AT_ONCE = 256
"""Characters of a name that are hashed by one sum, which is ten times as fast as one after the other: a
request may name many groups with 32 KB each."""
_POWERS_OF_31 = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(_HASHED_AT_ONCE)))


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Subscription, ...]
    requires_known_member_id: bool
    can_skip_assignment: bool


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


class GroupCoordinator:
    def __init__(
        self,
        log_port: LogPort,
        clock: WallClock,
        config: BrokerConfig,
        timers: Timers | None = None,
        new_unique_id: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self._log_port = log_port
        self._clock = clock
        self._timers: Timers = timers or LoopTimers()
        self._new_unique_id = new_unique_id
        self._settings = GroupSettings(
            initial_rebalance_delay_ms=config.int_("group.initial.rebalance.delay.ms"),
            max_size=config.int_("group.max.size"),
            min_session_timeout_ms=config.int_("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int_("group.max.session.timeout.ms"),
            commit_timeout_ms=config.int_("offsets.commit.timeout.ms"),
        )
        self._retention_ms = config.int_("offsets.retention.minutes") * 60_000
        self._expiry_interval_ms = config.int_("offsets.retention.check.interval.ms")
        self._max_metadata_length = config.int_("offset.metadata.max.bytes")
        self._shards: dict[int, Shard] = {}
        self._is_stopped = False
        self._loader = Loader(self._timers, lambda shard: self._cleanup.on_loaded(shard.partition))
        self._expiry_timer: TimerHandle | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._cleanup = OffsetCleanup(self._led_shards, clock)

    # Life

    def start(self) -> None:
        """Begin to load the partitions led here; requests are answered with LOAD_IN_PROGRESS meanwhile."""
        self.update_leadership()
        self._schedule_expiry()

    def stop(self) -> None:
        """Answer every parked request with NOT_COORDINATOR, and drop all groups."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self._cleanup.stop()
        self._is_stopped = True
        self.update_leadership()

    def update_leadership(self) -> None:
        """Load the partitions that this broker leads by now, and drop those whose leader epoch is over.

        To be called whenever leaders or leader epochs of __consumer_offsets have changed, so that parked
        requests are answered at once.
        """
        for partition in sorted({*range(self._log_port.partition_count), *self._shards}):
            self._follow(partition)

    def _follow(self, partition: int) -> None:
        leader_epoch = None if self._is_stopped else self._log_port.leader_epoch(partition)
        shard = self._shards.get(partition)
        if shard is not None and shard.led.leader_epoch != leader_epoch:
            self._resign(shard)
        if leader_epoch is not None and partition not in self._shards:
            led = LedPartition(self._log_port, partition, leader_epoch)
            shard = Shard(led, self._clock, self._timers, self._settings, self._replace)
            self._shards[partition] = shard
            self._loader.start(shard)

    def _replace(self, shard: Shard) -> None:
        """Load the partition again, if it is led here: the shard has lost track of the log."""
        if not shard.is_resigned:
            self._resign(shard)
            self._follow(shard.partition)

    def _resign(self, shard: Shard) -> None:
        del self._shards[shard.partition]
        self._loader.cancel(shard)
        shard.resign()

    def _led_shards(self) -> dict[int, Shard]:
        self.update_leadership()
        return self._shards

    def partition_for(self, group_id: str) -> int:
        """The partition of __consumer_offsets that holds the group. Raises a KafkaError without the topic."""
        partition_count = self._log_port.partition_count
        if not partition_count:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "__consumer_offsets does not exist yet; try again"
            )
        return abs_java_hash(group_id) % partition_count

    def is_loaded(self, partition: int) -> bool:
        """True if this broker answers requests about the groups of a partition of __consumer_offsets."""
        shard = self._shards.get(partition)
        return shard is not None and shard.is_serving

    async def wait_until_loaded(self, partitions: Collection[int]) -> None:
        """Wait a moment for partitions that are to be led here; `is_loaded` says which are by then.

        The cluster's image may have __consumer_offsets while its logs are still being made.
        """
        self.update_leadership()
        await self._loader.wait_until_loaded(partitions, self.is_loaded)

    def _shard(self, group_id: str) -> Shard:
        partition = self.partition_for(group_id) if self._log_port.partition_count > 0 else None
        if partition is None or self._log_port.leader_epoch(partition) is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "another broker coordinates this group; look it up")
        shard = self._shards.get(partition)
        if shard is None or not shard.is_serving:
            self._follow(partition)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group is being loaded; try again")
        return shard

    def _named_shard(self, group_id: str) -> Shard:
        """The shard of a group that may have members. The group with the empty name may have offsets only."""
        if group_id == "":
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group must have a name")
        return self._shard(group_id)

    # Members

    def join(self, request: JoinRequest, answer: Callable[[JoinResult], None]) -> None:
        """`answer` gets the result when the group has one, perhaps before this returns.

        Raises KafkaError when the request is refused before it reaches a group.
        """
        shard = self._named_shard(request.group_id)
        limits = self._settings
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.member_id == "":
            group = shard.find_or_create(request.group_id)
        else:
            group = _known(shard.find(request.group_id), ErrorCode.UNKNOWN_MEMBER_ID)
        rebalance_timeout_ms = request.rebalance_timeout_ms
        token = shard.park_join(answer)
        join = Join(
            member_id=request.member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            # JoinGroup v0 has one timeout for both.
            rebalance_timeout_ms=rebalance_timeout_ms
            if rebalance_timeout_ms >= 0
            else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            new_member_id=self._new_member_id(request.instance_id or request.client_id),
            requires_known_member_id=request.requires_known_member_id,
            can_skip_assignment=request.can_skip_assignment,
        )
        group.join(join, token, self._timers.now_ms())
        shard.perform(group)

    def _new_member_id(self, name: str) -> str:
        return f"{name[:_MAX_NAME_LENGTH]}-{self._new_unique_id()}"

    def sync(self, group_id: str, request: Sync, answer: Callable[[SyncResult], None]) -> None:
        shard = self._named_shard(group_id)
        group = _known(shard.find(group_id), ErrorCode.UNKNOWN_MEMBER_ID)
        token = shard.park_sync(answer)
        group.sync(request, token, self._timers.now_ms())
        shard.perform(group)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = _known(self._named_shard(group_id).find(group_id), ErrorCode.UNKNOWN_MEMBER_ID)
        return group.heartbeat(member_id, instance_id, generation, self._timers.now_ms())

    async def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ErrorCode]:
        shard = self._named_shard(group_id)
        group = _known(shard.find(group_id), ErrorCode.UNKNOWN_MEMBER_ID)
        errors = group.leave(leavers, self._timers.now_ms())
        write = shard.perform(group)
        if write is not None:
            await asyncio.shield(write)
            if not shard.is_serving:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, "the group has moved; look up its coordinator")
        # The members have left, even if the record that the group is empty could not be written. After a load
        # without that record their sessions end.
        return errors

    # Offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        unknown_group_error: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
    ) -> dict[TopicPartition, ErrorCode]:
        """An error code for each offset. Raises KafkaError when none of them may be committed."""
        shard = self._shard(group_id)
        group = shard.peek(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(unknown_group_error)
        else:
            error = group.commit_error(member_id, instance_id, generation, self._timers.now_ms())
            if error is not None:
                raise KafkaError(error)
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[KeyValue] = []
        for place, committed in offsets.items():
            if len(committed.metadata) > self._max_metadata_length:
                results[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                results[place] = ErrorCode.NONE
                records.append(offset_record(group_id, place.topic, place.partition, committed))
        if records:
            code = await shard.writer.write(records)
            if code is not ErrorCode.NONE:
                raise KafkaError(code)
        return results

    def offsets_of(self, group_id: str) -> OffsetTable:
        """The committed offsets of a group, for reading only; an unknown group has none."""
        entry = self._shard(group_id).table.get(group_id)
        return OffsetTable() if entry is None else entry.offsets

    async def delete_offsets(
        self, group_id: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """An error code for each partition. Raises KafkaError when the group refuses the whole request."""
        shard = self._named_shard(group_id)
        results: dict[TopicPartition, ErrorCode] = {}

        def build() -> list[KeyValue]:
            group = _known(shard.peek(group_id), ErrorCode.GROUP_ID_NOT_FOUND)
            if group.state is GroupState.DEAD:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            if group.members and not group.is_consumer_group:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
            records = []
            entry = shard.table.get(group_id)
            subscribed = group.subscribed_topics()
            for place in places:
                if subscribed is None or place.topic in subscribed:
                    results[place] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                    continue
                results[place] = ErrorCode.NONE
                if entry is not None and entry.offsets.get(*place) is not None:
                    records.append(offset_tombstone(group_id, *place))
            return records

        code = await shard.writer.write_built(build)
        if code is not ErrorCode.NONE:
            raise KafkaError(code)
        return results

    def on_topics_deleted(self, topic_ids: Mapping[str, bytes]) -> None:
        """Delete, in the background, the offsets that groups have committed for topics that were deleted."""
        self._cleanup.start(topic_ids)

    # Administration

    def describe(self, group_id: str) -> GroupDescription | None:
        group = self._shard(group_id).peek(group_id)
        if group is None or group.state is GroupState.DEAD:
            return None
        is_stable = group.state is GroupState.STABLE
        name = group.protocol_name if is_stable else None
        return GroupDescription(
            group_id=group_id,
            state=group.state,
            protocol_type=group.protocol_type or "",
            protocol_name=name or "",
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata_for(name),
                    assignment=member.assignment if is_stable else b"",
                )
                for member in group.members
            ),
        )

    def list_groups(self) -> Iterator[ListedGroup]:
        """The groups, one after the other; they may change between two of them.

        Raises KafkaError while a partition is being loaded, because its groups are not known yet, and when a
        leader epoch ends before all groups of its partition are listed: the rest is known to another shard.
        """
        shards = list(self._led_shards().values())
        if not all(shard.is_serving for shard in shards):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for shard in shards:
            for group_id in shard.group_ids():
                if not shard.is_serving:
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                listed = shard.listed(group_id)
                if listed is not None:
                    yield listed

    def observe(self) -> Iterator[ObservedGroup]:
        """The groups that this broker coordinates, without those of partitions that are being loaded."""
        for shard in list(self._led_shards().values()):
            if shard.is_serving:
                yield from shard.observe()

    async def delete_group(self, group_id: str) -> ErrorCode:
        shard = self._shard(group_id)
        if shard.peek(group_id) is None:
            # A deletion is a task and waits for writes: too much for each of 50,000 names that nobody knows.
            return ErrorCode.GROUP_ID_NOT_FOUND

        def check(group: Group) -> None:
            if group.state is GroupState.DEAD:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            if group.state is not GroupState.EMPTY:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

        return await asyncio.shield(shard.delete(group_id, check))

    # Expiry

    def _schedule_expiry(self) -> None:
        when_ms = self._timers.now_ms() + self._expiry_interval_ms
        self._expiry_timer = self._timers.call_at(when_ms, self._on_expiry_timer)

    def _on_expiry_timer(self) -> None:
        if self._expiry is None or self._expiry.done():
            self._expiry = asyncio.ensure_future(self.expire_offsets())
        self._schedule_expiry()

    async def expire_offsets(self) -> None:
        """Delete expired offsets, and groups that have neither members nor offsets left."""
        looked_at = 0
        for shard in list(self._led_shards().values()):
            for group_id in shard.group_ids():
                if not shard.is_serving:
                    break
                expired, nothing_left = self._expired(shard, group_id)
                if nothing_left:
                    await asyncio.shield(shard.delete(group_id, partial(self._check_nothing_left, shard)))
                elif expired:
                    await self._delete_expired(shard, group_id)
                entry = shard.table.get(group_id)
                looked_at += _COST_OF_A_GROUP + (0 if entry is None else len(entry.offsets))
                if looked_at >= _OFFSETS_BETWEEN_PAUSES:
                    looked_at = 0
                    await asyncio.sleep(0)

    async def _delete_expired(self, shard: Shard, group_id: str) -> None:
        def build() -> tuple[list[KeyValue], bool]:
            expired, _ = self._expired(shard, group_id)
            tombstones = [offset_tombstone(group_id, *place) for place in expired[:MOST_AT_ONCE]]
            return tombstones, len(expired) <= MOST_AT_ONCE

        await shard.writer.write_in_pieces(build)

    def _expired(self, shard: Shard, group_id: str) -> tuple[list[TopicPartition], bool]:
        """The group's expired offsets, and whether the group is empty without them."""
        group = shard.peek(group_id)
        if group is None:
            return [], False
        entry = shard.table.get(group_id)
        if entry is None:
            return [], group.is_vacant
        expired = expired_partitions(
            entry.offsets, group, entry.state_timestamp_ms, self._clock.now_ms(), self._retention_ms
        )
        return expired, group.is_vacant and len(expired) == len(entry.offsets)

    def _check_nothing_left(self, shard: Shard, group: Group) -> None:
        if not self._expired(shard, group.group_id)[1]:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)


def _known(group: Group | None, error: ErrorCode) -> Group:
    if group is None:
        raise KafkaError(error)
    return group


def abs_java_hash(text: str) -> int:
    """The absolute value of Java's String.hashCode, where that of the smallest number counts as 0."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for start in range(0, len(units), _HASHED_AT_ONCE):
        block = units[start : start + _HASHED_AT_ONCE]
        shift = pow(31, len(block), 1 << 32)
        value = (value * shift + sum(map(mul, block, _POWERS_OF_31[-len(block) :]))) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0
    return value if value < 0x80000000 else 0x100000000 - value
