"""Looks at the cluster, once for all browsers.

While somebody looks at the console, a look follows the other after a few seconds; else once a minute, so that
charts have a history. Each kind of question has its own least interval. A kind that takes long is asked less
often: it may take a twentieth of the time.

A broker that does not answer keeps nobody waiting longer than one answer may take. What it told last stays in
the picture, and the picture says since when it is silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from klamm.client.admin.types import (
    ClusterDescription,
    GroupDescription,
    GroupListing,
    LogDirectory,
    TopicDescription,
)
from klamm.client.errors import ClientError
from klamm.client.results import TopicPartition
from klamm.console.watching import history as series
from klamm.console.watching.asking import EARLIEST, LATEST, Asking
from klamm.console.watching.history import History
from klamm.console.watching.pace import WINDOW_POINTS, pace
from klamm.console.watching.picture import (
    EMPTY,
    BrokerState,
    GroupState,
    Picture,
    consumers_of,
    lag_of,
    led_and_held,
    sizes_by_partition,
    summed_topics,
)

QUICK_S = 5.0
SLOW_S = 60.0
LOOKED_AT_S = 15.0
"""How long a request of the JSON API counts as somebody who looks."""
MOST_SHARE = 0.05
"""The most of the time that questions of one kind may take."""
STARTS_S = 30.0
DISKS_S = 30.0
MEMBERS_S = 10.0

Value = TypeVar("Value")
logger = logging.getLogger("klamm.console")


class Interval:
    """When a kind of question is due: after its least interval, and later if the last one took long."""

    def __init__(self, least_s: float = 0.0) -> None:
        self._least_s = least_s
        self._due_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def done(self, began_s: float, ended_s: float) -> None:
        self._due_s = began_s + max(self._least_s, (ended_s - began_s) / MOST_SHARE)

    def hasten(self) -> None:
        self._due_s = 0.0


class Collector:
    """Keeps the newest picture and the history. Runs on one event loop."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.history = History()
        self.picture: Picture | None = None
        self.problem = ""
        """Why there is no picture yet."""
        self.accompany: Callable[[], Awaitable[None]] | None = None
        """Looks at something else each time, and does not take long."""
        self._listeners: list[Callable[[], None]] = []
        self._lookers = 0
        self._looked_at_s = -LOOKED_AT_S
        self._is_hasty = False
        """Whether the next look is to ask for everything."""
        self._looks_begun = 0
        self._looks_done = 0
        self._wake = asyncio.Event()
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        # What brokers told last.
        self._topics: Mapping[str, TopicDescription] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._directories: dict[int, list[LogDirectory]] = {}
        self._listed: dict[int, list[GroupListing]] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._described: dict[str, GroupDescription] = {}
        self._answered_ms: dict[int, int] = {}
        self._silent_since_ms: dict[int, int] = {}
        self._took_ms: dict[int, float] = {}
        self._before: tuple[float, Mapping[str, int], Mapping[str, int]] | None = None
        self._intervals = {
            "topics": Interval(),
            "starts": Interval(STARTS_S),
            "disks": Interval(DISKS_S),
            "members": Interval(MEMBERS_S),
            "groups": Interval(),
        }

    # ---- life

    async def start(self) -> None:
        await self.asking.start()
        self._task = asyncio.create_task(self._run(), name="collector")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.asking.close()

    # ---- those who look

    def add_looker(self, listener: Callable[[], None]) -> None:
        """Somebody looks until `remove_looker`; `listener` is told of each new picture."""
        self._listeners.append(listener)
        self._lookers += 1
        self.touch()

    def remove_looker(self, listener: Callable[[], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._lookers -= 1

    def touch(self) -> None:
        """Somebody has looked now."""
        was_idle = not self.is_looked_at
        self._looked_at_s = _now_s()
        if was_idle:
            self._wake.set()

    @property
    def is_looked_at(self) -> bool:
        return self._lookers > 0 or _now_s() - self._looked_at_s < LOOKED_AT_S

    async def seen(self, timeout_s: float) -> Picture | None:
        """The picture; waits for the first one, or None if there is none within the time."""
        self.touch()
        await self._wait_until(lambda: self.picture is not None, timeout_s)
        return self.picture

    async def look_again(self, timeout_s: float = QUICK_S) -> None:
        """Look now, as something was changed, and return when it is in the picture.

        A look that is under way may have asked before the change, so the next one is waited for."""
        self._is_hasty = True
        self._wake.set()
        wanted = self._looks_begun + 1
        await self._wait_until(lambda: self._looks_done >= wanted, timeout_s)

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(condition)

    # ---- looking

    async def _run(self) -> None:
        while True:
            began_s = _now_s()
            self._wake.clear()
            self._looks_begun += 1
            if self._is_hasty:
                self._is_hasty = False
                for interval in self._intervals.values():
                    interval.hasten()
            await self._look_safely()
            if self.accompany is not None:
                await self.accompany()
            self._looks_done = self._looks_begun
            async with self._news:
                self._news.notify_all()
            for listener in list(self._listeners):
                try:
                    listener()
                except Exception:  # one page must not end the looking for all
                    logger.exception("a page could not show the new picture")
            await self._pause(began_s)

    async def _pause(self, began_s: float) -> None:
        """Until the next look: soon while somebody looks, or is about to."""
        while True:
            now_s = _now_s()
            wait_s = (QUICK_S if self.is_looked_at else SLOW_S) - (now_s - began_s)
            if self._wake.is_set() or wait_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _look_safely(self) -> None:
        try:
            await self._look()
            self.problem = ""
        except (ClientError, OSError) as error:
            self.problem = str(error)
            if self.picture is not None:
                self.picture = replace(self.picture, problem=self.problem)
        except Exception as error:
            logger.exception("the cluster could not be looked at")
            self.problem = f"the console failed: {error!r}"
            if self.picture is not None:
                self.picture = replace(self.picture, problem=self.problem)

    async def _look(self) -> None:
        cluster = await self.asking.cluster()
        brokers = [one.broker_id for one in cluster.brokers if not one.fenced]
        await self._now_and_then("topics", self._look_at_topics)
        await self._look_at_ends(brokers)
        await self._now_and_then("groups", lambda: self._look_at_groups(brokers))
        if self.picture is None:
            self._publish(cluster)  # disks can wait: the first page is shown at once
            async with self._news:
                self._news.notify_all()
        await self._now_and_then("starts", lambda: self._look_at_starts(brokers))
        await self._now_and_then("members", lambda: self._look_at_members(brokers))
        await self._now_and_then("disks", lambda: self._look_at_disks(brokers))
        self._publish(cluster)
        self._remember()

    async def _now_and_then(self, kind: str, look: Callable[[], Awaitable[None]]) -> None:
        interval = self._intervals[kind]
        began_s = _now_s()
        if interval.is_due(began_s):
            await look()
            interval.done(began_s, _now_s())

    async def _look_at_topics(self) -> None:
        self._topics = await self.asking.topics()

    async def _look_at_ends(self, brokers: Sequence[int]) -> None:
        self._ends = await self._offsets_at(brokers, self._ends, LATEST)

    async def _look_at_starts(self, brokers: Sequence[int]) -> None:
        self._starts = await self._offsets_at(brokers, self._starts, EARLIEST)

    async def _offsets_at(
        self, brokers: Sequence[int], before: Mapping[TopicPartition, int], at: int
    ) -> dict[TopicPartition, int]:
        """The offsets of all partitions; those of silent leaders as they were before."""
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        found: dict[TopicPartition, int] = {}
        for name, topic in self._topics.items():
            for one in topic.partitions:
                partition = TopicPartition(name, one.partition)
                if partition in before:
                    found[partition] = before[partition]
                if one.leader is not None and one.leader in brokers:
                    led[one.leader].append(partition)
        answers = await self._ask_all(list(led), lambda broker: self.asking.offsets(broker, led[broker], at))
        for answer in answers.values():
            found.update(answer)
        return found

    async def _look_at_groups(self, brokers: Sequence[int]) -> None:
        self._listed.update(await self._ask_all(brokers, self.asking.groups))
        names = {
            broker: [one.group for one in listed if one.type in ("", "classic", "consumer")]
            for broker, listed in self._listed.items()
            if broker in brokers
        }
        asked = [broker for broker, listed in names.items() if listed]
        answers = await self._ask_all(asked, lambda broker: self.asking.committed(broker, names[broker]))
        there = {one.group for listed in self._listed.values() for one in listed}
        offsets = {group: one for group, one in self._offsets.items() if group in there}
        for answer in answers.values():
            offsets.update(answer)
        self._offsets = offsets

    async def _look_at_members(self, brokers: Sequence[int]) -> None:
        names = {
            broker: [one.group for one in listed if one.state != EMPTY and one.type in ("", "classic")]
            for broker, listed in self._listed.items()
            if broker in brokers
        }
        asked = [broker for broker, listed in names.items() if listed]
        answers = await self._ask_all(asked, lambda broker: self.asking.described(broker, names[broker]))
        described = dict(self._described)
        for answer in answers.values():
            described.update(answer)
        there = {one.group for listed in self._listed.values() for one in listed}
        self._described = {group: one for group, one in described.items() if group in there}

    async def _look_at_disks(self, brokers: Sequence[int]) -> None:
        self._directories.update(await self._ask_all(brokers, self.asking.log_directories))

    async def _ask_all(
        self, brokers: Sequence[int], ask: Callable[[int], Awaitable[Value]]
    ) -> dict[int, Value]:
        """The answers of those brokers that answered."""
        answers = await asyncio.gather(*(self._ask(broker, ask) for broker in brokers))
        return {broker: answer[0] for broker, answer in zip(brokers, answers, strict=True) if answer}

    async def _ask(self, broker: int, ask: Callable[[int], Awaitable[Value]]) -> tuple[Value] | None:
        asked_ms = _now_ms()
        began_s = _now_s()
        try:
            answer = await ask(broker)
        except ClientError as error:
            logger.debug("broker %d: %s", broker, error)
            self._silent_since_ms.setdefault(broker, self._answered_ms.get(broker, asked_ms))
            return None
        self._answered_ms[broker] = _now_ms()
        took_ms = (_now_s() - began_s) * 1000
        self._took_ms[broker] = max(took_ms, self._took_ms.get(broker, 0.0))
        self._silent_since_ms.pop(broker, None)
        return (answer,)

    # ---- what follows from the answers

    def _publish(self, cluster: ClusterDescription) -> None:
        groups = self._groups()
        sizes = sizes_by_partition(self._directories)
        self.picture = Picture(
            _now_ms(),
            cluster.cluster_id,
            cluster.controller_id,
            self._brokers(cluster),
            self._topics,
            summed_topics(self._topics, self._ends, self._starts, sizes, groups),
            self._ends,
            self._starts,
            sizes,
            groups,
            consumers=consumers_of(groups),
        )

    def _brokers(self, cluster: ClusterDescription) -> dict[int, BrokerState]:
        led, held = led_and_held(self._topics)
        there = {one.broker_id: one for one in cluster.brokers}
        found = {}
        for broker in sorted({*there, *held}):
            one = there.get(broker)
            directories = self._directories.get(broker)
            found[broker] = BrokerState(
                broker,
                f"{one.host}:{one.port}" if one else "",
                one.rack if one else None,
                broker == cluster.controller_id,
                one is None or one.fenced,
                self._silent_since_ms.get(broker) if one else self._answered_ms.get(broker),
                led[broker],
                held[broker],
                tuple(directories) if directories is not None else None,
            )
        return found

    def _groups(self) -> dict[str, GroupState]:
        found = {}
        now_ms = _now_ms()
        for broker, listed in self._listed.items():
            for one in listed:
                offsets = self._offsets.get(one.group, {})
                lag = lag_of(offsets, self._ends)
                before = self.history.tail(series.lag(one.group), WINDOW_POINTS) if lag else []
                described = self._described.get(one.group)
                is_empty = one.state == EMPTY
                found[one.group] = GroupState(
                    one.group,
                    one.state,
                    one.type or "classic",
                    one.protocol_type,
                    broker,
                    offsets,
                    lag,
                    () if is_empty else described.members if described else None,
                    described.strategy if described and not is_empty else "",
                    pace([*before, (now_ms, lag)] if lag is not None else before, lag),
                )
        return found

    def _remember(self) -> None:
        """Add the rates since the last look, and the lags, to the history."""
        picture = self.picture
        assert picture is not None
        now_s = _now_s()
        written: dict[str, int] = defaultdict(int)
        for partition, end in self._ends.items():
            written[partition.topic] += end
        read = {name: sum(group.offsets.values()) for name, group in picture.groups.items()}
        values: dict[str, float] = {
            series.lag(name): group.lag for name, group in picture.groups.items() if group.lag is not None
        }
        values[series.ALL_LAG] = sum(values.values())
        for broker in picture.brokers.values():
            if broker.size_bytes is not None:
                values[series.size(broker.id)] = broker.size_bytes
        values.update({series.answer_time(broker): took for broker, took in self._took_ms.items()})
        self._took_ms = {}
        if self._before is not None:
            before_s, written_before, read_before = self._before
            passed_s = max(now_s - before_s, 0.001)
            rates_in = _rates(written, written_before, passed_s)
            rates_out = _rates(read, read_before, passed_s)
            internal = {name for name, topic in picture.topics.items() if topic.is_internal}
            values[series.ALL_PRODUCED] = sum(rate for name, rate in rates_in.items() if name not in internal)
            values[series.ALL_CONSUMED] = sum(rates_out.values())
            values.update({series.produced(name): rate for name, rate in rates_in.items()})
            values.update({series.consumed(name): rate for name, rate in rates_out.items()})
        self._before = (now_s, written, read)
        self.history.add(picture.taken_ms, values)


def _rates(now: Mapping[str, int], before: Mapping[str, int], passed_s: float) -> dict[str, float]:
    return {
        name: max(0.0, (count - before[name]) / passed_s) for name, count in now.items() if name in before
    }


def _now_s() -> float:
    return time.monotonic()


def _now_ms() -> int:
    return int(time.time() * 1000)
