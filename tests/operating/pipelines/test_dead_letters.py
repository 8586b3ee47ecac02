from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import klamm
import klamm.aio
from klamm.operating.errors import CannotDo
from klamm.operating.pipelines.dead_letters import newest
from klamm.operating.pipelines.redriving import STOPPED, Redrives, Wanted, preview
from klamm.testing import Broker
from tests.client.topics import unique
from tests.pipelines.projects import make_project
from tests.waiting import wait_until

PATIENCE_S = 150.0
"""A redrive imports PySpark."""

ORDERS = """
    @source(topic="orders", schema="order INT")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"))
    def orders_table(orders):
        return orders
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def refused(pipeline: str, rule: str, offset: int = 7) -> list[tuple[str, bytes]]:
    """The headers of a dead-letter record."""
    told = {"rule": rule, "error": f"it broke {rule}", "pipeline": pipeline, "source": "orders"}
    place = {"topic": "orders", "partition": "0", "offset": str(offset), "content": "record"}
    return [(f"klamm.{name}", text.encode()) for name, text in {**told, **place}.items()]


async def test_the_newest_refused_records_of_a_pipeline_and_their_reasons(broker: Broker) -> None:
    topic = unique("dead")
    consumer = partial(klamm.Consumer, broker.bootstrap)
    async with klamm.aio.Admin(broker.bootstrap) as admin, klamm.aio.Producer(broker.bootstrap) as producer:
        await admin.create_topic(topic, 2, 1)
        for number in range(6):
            rule = "small" if number % 3 else "decode"
            headers = refused("one", rule, number)
            await producer.send(
                topic, b"<b>%d" % number, headers=headers, partition=0, timestamp=1000 + number
            )
        await producer.send(topic, b"another", headers=refused("two", "small"), partition=1)
        await producer.send(topic, b"no headers", partition=1)

        found = await newest(admin, consumer, topic, "one", most=3)
        assert [record.value for record in found.records] == ["<b>5", "<b>4", "<b>3"]
        first = found.records[0]
        assert (first.rule, first.error, first.source) == ("small", "it broke small", "orders")
        assert (first.topic, first.topic_partition, first.topic_offset) == ("orders", 0, 5)
        assert dict(found.rules) == {"small": 4, "decode": 2}
        assert (found.is_whole, found.total) == (True, 8)

        found = await newest(admin, consumer, topic, "one", "decode")
        assert [record.topic_offset for record in found.records] == [3, 0]


@pytest.fixture
def wanted(broker: Broker, tmp_path: Path) -> Wanted:
    make_project(tmp_path, ORDERS)
    with klamm.Admin(broker.bootstrap) as admin:
        if "orders" not in admin.list_topics():
            admin.create_topic("orders", 1)
    return Wanted(tmp_path, "orders_table", broker.bootstrap, "--yes")


async def test_a_redrive_is_a_process_whose_output_and_end_are_seen(wanted: Wanted) -> None:
    redrives = Redrives()
    assert redrives.latest(wanted.folder, wanted.pipeline) is None
    started = redrives.start(wanted)
    assert started.is_running and "--rule=--yes" in started.command
    with pytest.raises(CannotDo, match="is running"):
        redrives.start(wanted)

    def ended() -> bool:
        now = redrives.latest(wanted.folder, wanted.pipeline)
        return now is not None and not now.is_running

    await asyncio.to_thread(wait_until, ended, "the redrive ends", PATIENCE_S)
    done = redrives.latest(wanted.folder, wanted.pipeline)
    assert done is not None and done.status == 0, done
    redrives.start(wanted)
    await redrives.close()
    stopped = redrives.latest(wanted.folder, wanted.pipeline)
    assert stopped is not None and stopped.status == STOPPED


async def test_a_preview_says_what_would_be_done_or_why_that_is_not_known(wanted: Wanted) -> None:
    assert (await preview(wanted)).records == 0
    with pytest.raises(CannotDo, match="no pipeline called 'gone'"):
        await preview(replace(wanted, pipeline="gone"))
