"""A log in memory that brokers may share, and a clock that tests move, for the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count

from klamm.config.broker_config import BrokerConfig
from klamm.groups.coordinator import GroupCoordinator, JoinRequest
from klamm.groups.events import JoinResult, Subscription, Sync, SyncResult
from klamm.groups.offsets import CommittedOffset
from klamm.groups.records import KeyValue
from klamm.model.errors import ErrorCode, KafkaError
from tests.groups.scenario import subscription


class FakeReplicas:
    """Partitions as lists, and how much of each is committed."""

    def __init__(self, partition_count: int) -> None:
        self.partitions: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(partition_count)]
        self.high_watermarks = [0] * partition_count
        self.leader_epochs = [0] * partition_count


class FakeLog:
    """The partitions as one broker sees them.

    While `gate` is closed, what is appended is not committed. `refusal` is raised by appends, `loss` by those
    who wait for a commit. While `load_gate` is closed, loads wait; `load_error` makes them fail.
    """

    def __init__(self, partition_count: int = 3, replicas: FakeReplicas | None = None) -> None:
        self.partition_count = partition_count
        self.replicas = replicas or FakeReplicas(partition_count)
        self.led = set(range(partition_count)) if replicas is None else set()
        self.batches: list[list[KeyValue]] = []
        self.refusal: KafkaError | None = None
        self.loss: KafkaError | None = None
        self.load_error: Exception | None = None
        self.load_attempts = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.load_gate = asyncio.Event()
        self.load_gate.set()

    def leader_epoch(self, partition: int) -> int | None:
        is_led = partition in self.led and partition < self.partition_count
        return self.replicas.leader_epochs[partition] if is_led else None

    def _check_epoch(self, partition: int, leader_epoch: int) -> None:
        if self.leader_epoch(partition) != leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def append(self, partition: int, leader_epoch: int, records: list[KeyValue]) -> Awaitable[None]:
        self._check_epoch(partition, leader_epoch)
        self.batches.append(records)
        if self.refusal is not None:
            raise self.refusal
        self.replicas.partitions[partition].extend(records)
        return self._committed(partition, leader_epoch, len(self.replicas.partitions[partition]))

    async def _committed(self, partition: int, leader_epoch: int, end_offset: int) -> None:
        await self.gate.wait()
        if self.loss is not None:
            raise self.loss
        self._check_epoch(partition, leader_epoch)
        high_watermarks = self.replicas.high_watermarks
        high_watermarks[partition] = max(high_watermarks[partition], end_offset)

    async def until_committed(self, partition: int, leader_epoch: int) -> None:
        self._check_epoch(partition, leader_epoch)
        await self._committed(partition, leader_epoch, len(self.replicas.partitions[partition]))

    async def read_all(
        self, partition: int, leader_epoch: int
    ) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        self._check_epoch(partition, leader_epoch)
        self.load_attempts += 1
        await self.load_gate.wait()
        records = self.replicas.partitions[partition][: self.replicas.high_watermarks[partition]]
        for start in range(0, len(records), 7):
            yield records[start : start + 7]
            if self.load_error is not None:
                break
        if self.load_error is not None:
            raise self.load_error

    def compact(self) -> None:
        """As the cleaner leaves a partition in the end: the last record of each key, and no tombstones."""
        for partition, records in enumerate(self.replicas.partitions):
            last = {record[0]: record for record in records}
            kept = [record for record in records if last[record[0]] is record and record[1] is not None]
            records[:] = kept
            self.replicas.high_watermarks[partition] = len(kept)

    def begin_epoch(self, partition: int, *, truncate: bool = False) -> None:
        """Lead the partition in a new epoch. With `truncate`, what is not committed is lost on the way."""
        if truncate:
            del self.replicas.partitions[partition][self.replicas.high_watermarks[partition] :]
        self.replicas.leader_epochs[partition] += 1
        self.led.add(partition)


class FakeTimer:
    def __init__(self, when_ms: int, callback: Callable[[], None]) -> None:
        self.when_ms = when_ms
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeTime:
    """Wall clock and timers at once."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000
        self._timers: list[FakeTimer] = []

    def now_ms(self) -> int:
        return self.time_ms

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(when_ms, callback)
        self._timers.append(timer)
        return timer

    @property
    def pending(self) -> list[FakeTimer]:
        return [timer for timer in self._timers if not timer.is_cancelled]

    async def advance(self, amount_ms: int) -> None:
        await settle()
        end_ms = self.time_ms + amount_ms
        while due := [timer for timer in self.pending if timer.when_ms <= end_ms]:
            timer = min(due, key=lambda each: each.when_ms)
            self._timers.remove(timer)
            self.time_ms = max(self.time_ms, timer.when_ms)
            timer.callback()
            await settle()
        self.time_ms = end_ms


async def settle() -> None:
    """Let everything that can run without further events run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def turns_until(condition: Callable[[], object]) -> None:
    """Let everything run turn by turn, until the condition holds for the first time."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("a thousand turns of the loop, and the condition does not hold")


_UNIQUE_IDS = count()
"""One count for all brokers: a member that moves must not meet another one of its name."""


class Coordination:
    """A coordinator on fakes, and short ways to talk to it."""

    def __init__(self, log: FakeLog | None = None, time: FakeTime | None = None, **config: str) -> None:
        self.log = log or FakeLog()
        self.time = time or FakeTime()
        settings = {"group.initial.rebalance.delay.ms": "0"}
        settings.update({name.replace("_", "."): value for name, value in config.items()})
        self.config = BrokerConfig(settings)
        self.coordinator = self._new()

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(self.log, self.time, self.config, self.time, _UNIQUE_IDS.__next__)

    async def start(self) -> None:
        self.coordinator.start()
        await settle()

    async def restart(self) -> None:
        self.coordinator.stop()
        await settle()
        self.coordinator = self._new()
        await self.start()

    def join(self, group_id: str = "g", member_id: str = "", **changes: object) -> asyncio.Future[JoinResult]:
        request = JoinRequest(
            group_id=group_id,
            member_id=member_id,
            instance_id=None,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(Subscription("range", subscription("t")),),
            requires_known_member_id=False,
            can_skip_assignment=False,
        )
        joined: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self.coordinator.join(request._replace(**changes), joined.set_result)  # type: ignore[arg-type]
        return joined

    async def joined(self, group_id: str = "g", **changes: object) -> JoinResult:
        """A group of one member, stable, with the assignment `x`."""
        result = await self.join(group_id, **changes)
        synced = await self.sync(group_id, result, {result.member_id: b"x"})
        assert synced.assignment == b"x", synced
        return result

    def sync(
        self, group_id: str, joined: JoinResult, assignments: dict[str, bytes]
    ) -> asyncio.Future[SyncResult]:
        sync = Sync(joined.member_id, None, joined.generation, None, None, assignments)
        synced: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self.coordinator.sync(group_id, sync, synced.set_result)
        return synced

    def committed(self, offset: int, **changes: object) -> CommittedOffset:
        committed = CommittedOffset(offset, 5, "note", self.time.time_ms)
        return committed._replace(**changes)  # type: ignore[arg-type]
