"""What looking at a cluster costs its brokers, and what is shown of brokers that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.console.running import console_of
from tests.waiting import until, wait_until

import klamm
from klamm.console.watching.asking import Asking
from klamm.console.watching.collector import Collector
from klamm.testing import Broker, Cluster

TOPICS = 300
GROUPS = 250
PER_LOOK = 10
"""Requests of a look at one broker: brokers, topics, ends, starts, groups, two for their offsets, disks,
members, and one to spare."""


@pytest.fixture(scope="module")
def crowded(broker: Broker) -> Broker:
    """A broker with many topics and groups."""
    with klamm.Admin(broker.bootstrap) as admin:
        admin.create_topics([klamm.NewTopic(f"topic-{number}", 1) for number in range(TOPICS)])
        for number in range(GROUPS):
            admin.alter_group_offsets(f"group-{number}", {(f"topic-{number}", 0): 0})
    return broker


@asynccontextmanager
async def collector_of(bootstrap: str) -> AsyncIterator[Collector]:
    collector = Collector(Asking(bootstrap, {}))
    await collector.start()
    try:
        yield collector
    finally:
        await collector.close()


async def test_a_look_takes_few_requests_however_much_there_is_and_whoever_looks(crowded: Broker) -> None:
    async with collector_of(crowded.bootstrap) as collector:
        told: list[int] = []
        for number in range(10):
            collector.add_looker(lambda number=number: told.append(number))  # type: ignore[misc]
        await until(lambda: collector.picture is not None and len(collector.picture.groups) == GROUPS)
        await until(lambda: len(told) >= 10)
        before = collector.asking.counters()["requests"]
        await collector.look_again(60)
        assert collector.asking.counters()["requests"] - before <= PER_LOOK
        assert len(told) % 10 == 0 and len(told) >= 20, "each browser is told of each picture"
        assert len(collector.picture.topics) == TOPICS + 1  # type: ignore[union-attr]


async def test_nobody_looks_and_it_looks_seldom(crowded: Broker) -> None:
    async with collector_of(crowded.bootstrap) as collector:
        assert not collector.is_looked_at
        collector.add_looker(listener := (lambda: None))
        assert collector.is_looked_at
        collector.remove_looker(listener)
        collector.remove_looker(listener)  # a browser may go twice
        collector._looked_at_s -= 60
        assert not collector.is_looked_at


async def test_a_broker_that_hangs_keeps_its_values_and_is_said_to_be_silent() -> None:
    with Broker() as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", 2)
        async with collector_of(broker.bootstrap) as collector:
            collector.add_looker(lambda: None)
            await until(lambda: collector.picture is not None and "orders" in collector.picture.topics)
            await asyncio.to_thread(broker.pause)
            try:
                await collector.look_again(60)
                assert collector.picture is not None
                assert "orders" in collector.picture.topics
                assert collector.picture.problem, "no broker answers"
            finally:
                broker.resume()
            await collector.look_again(60)
            await until(lambda: collector.picture is not None and not collector.picture.problem)


def test_a_broker_that_is_gone_is_missed_and_nothing_vanishes(tmp_path: Path) -> None:
    with Cluster(3) as cluster, console_of(cluster.bootstrap, tmp_path) as console:
        with klamm.Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders", 6, 3)
        wait_until(lambda: console.ask("/api/v1/topics/orders")[0] == 200, "the topic is seen")
        cluster.stop_broker(3)
        wait_until(lambda: console.get("/overview")["brokers_gone"] == 1, "the broker is missed")
        found = console.get("/overview")["health"]["findings"]
        assert (found[0]["tone"], found[0]["text"]) == ("broken", "broker 3 is not in the cluster")
        wait_until(lambda: console.get("/topics/orders")["under_replicated"] == 6, "replicas are missed")
        row = next(one for one in console.get("/brokers") if one["id"] == 3)
        assert row["is_gone"] and row["replicas"] >= 6
        cluster.start_broker(3)
        wait_until(lambda: console.get("/overview")["health"]["findings"] == [], "it is back")


def test_a_console_without_a_broker_says_so_and_goes_on_when_there_is_one(tmp_path: Path) -> None:
    broker = Broker().start()
    port = broker.port
    broker.stop()
    with console_of(f"127.0.0.1:{port}", tmp_path) as console:
        status, answer = console.ask("/api/v1/overview")
        assert status == 503 and f"127.0.0.1:{port}" in answer["error"]
        with Broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}, data_dir=broker.data_dir):
            wait_until(lambda: console.ask("/api/v1/overview")[0] == 200, "the broker is found")
