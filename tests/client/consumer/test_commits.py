"""The order of commits, whoever asks for them, at a coordinator that takes its time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest

import klamm
from klamm.client.consumer.commits import Commits, Offsets
from klamm.client.consumer.engine import ConsumerEngine
from klamm.client.consumer.group.coordinator import GroupCoordinator
from klamm.client.consumer.lease import Lease, Place
from klamm.client.consumer.positions import Positions
from klamm.client.consumer.subscription import Listeners
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.config.client_config import ClientConfig
from klamm.testing import Broker
from tests.client.faces import Face
from tests.client.topics import make_topic, unique

PARTITION = TopicPartition("t", 0)
LIMIT_S = 20.0
LEFT = -1
"""Stands for the moment when the group was left, among the offsets that were committed."""


class SlowGroup:
    """Takes commits one by one, each when `answer` is set."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.answer = asyncio.Event()

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        self.begun.append(offsets[PARTITION].offset)
        await self.answer.wait()

    async def leave(self, timeout: float) -> None:
        self.begun.append(LEFT)


def commits_of(group: SlowGroup, positions: Positions, **more: Any) -> Commits:
    return Commits(
        cast("GroupCoordinator", group),
        positions,
        client_id="c",
        interval_seconds=more.get("interval_seconds"),
        timeout_seconds=LIMIT_S,
    )


def engine_of(group: SlowGroup) -> tuple[ConsumerEngine, Commits]:
    """An engine that is never started, and commits nothing by itself."""
    config = ClientConfig("consumer", "localhost:9092", None, {"group_id": "g", "enable_auto_commit": False})
    engine = ConsumerEngine(config, None)
    engine.commits = commits_of(group, engine.positions)
    engine.group = cast("GroupCoordinator", group)
    return engine, engine.commits


def at(offset: int) -> dict[TopicPartition, CommittedOffset]:
    return {PARTITION: CommittedOffset(offset)}


async def turns() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_commit_is_not_overtaken_by_older_ones_that_nobody_waits_for() -> None:
    group = SlowGroup()
    commits = commits_of(group, Positions(threading.Lock()))
    commits.commit_later(at(10))
    await turns()
    commits.commit_later(at(20))
    last = asyncio.create_task(commits.commit(at(30)))
    await turns()
    group.answer.set()
    async with asyncio.timeout(LIMIT_S):
        await last
        await commits.close(time.monotonic() + LIMIT_S)
    assert group.begun[0] == 10 and group.begun[-1] == 30


async def test_what_is_finished_does_not_take_back_what_is_being_committed_by_hand() -> None:
    group = SlowGroup()
    positions = Positions(threading.Lock())
    positions.assign([PARTITION])
    positions.seek(PARTITION, 20)
    state = positions.get(PARTITION)
    positions.leases[state] = Lease(state, Place(15, 0))  # five records are in work
    commits = commits_of(group, positions, interval_seconds=3600.0)
    by_hand = asyncio.create_task(commits.commit(at(20)))
    await turns()
    automatic = asyncio.create_task(commits.commit_finished())
    await turns()
    group.answer.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(by_hand, automatic)
    assert group.begun == [20]


async def test_commits_that_nobody_waits_for_are_waited_for_before_partitions_are_given_up() -> None:
    group = SlowGroup()
    commits = commits_of(group, Positions(threading.Lock()))
    commits.commit_later(at(10))
    await turns()
    commits.commit_later(at(20))
    settled = asyncio.create_task(commits.wait_for_later())
    await turns()
    assert not settled.done()
    group.answer.set()
    async with asyncio.timeout(LIMIT_S):
        await settled
    assert group.begun == [10, 20]


async def test_a_consumer_that_closes_leaves_after_all_its_commits() -> None:
    group = SlowGroup()
    engine, commits = engine_of(group)
    engine.subscribe("t", Listeners())
    commits.commit_later(at(10))
    await turns()
    commits.commit_later(at(20))
    farewell = asyncio.create_task(engine.farewell(time.monotonic() + LIMIT_S))
    await turns()
    group.answer.set()
    async with asyncio.timeout(LIMIT_S):
        await farewell
    assert group.begun == [10, 20, LEFT]


def test_a_topic_that_is_gone_holds_up_nothing(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    with face.consumer(broker.bootstrap, group=unique("group"), enable_auto_commit=False) as consumer:
        started = time.monotonic()
        with pytest.raises(klamm.UnknownTopic):
            consumer.commit({(topic, 0): 3, (unique("gone"), 0): 5})
        assert time.monotonic() - started < LIMIT_S, "less than default_api_timeout_ms"
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)].offset == 3
