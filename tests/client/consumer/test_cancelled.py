"""A poll of the asyncio client that is cancelled loses nothing: what it would have returned comes again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence

import pytest

import klamm.aio
from klamm.client.consumer import consumer as consumer_module
from klamm.client.consumer.lease import Lease
from klamm.client.consumer.polling import Columns, make_columns
from klamm.testing import Broker
from tests.client.topics import make_topic, unique

PATIENCE_S = 30.0
COUNT = 10


class SlowColumns:
    """Makes columns in the poll's thread, when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.ended = threading.Event()

    def __call__(self, leases: Sequence[Lease], limit: int | None) -> Columns:
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        try:
            return make_columns(leases, limit)
        finally:
            self.ended.set()


@pytest.mark.parametrize("is_done_when_cancelled", [False, True])
async def test_columns(broker: Broker, monkeypatch: pytest.MonkeyPatch, is_done_when_cancelled: bool) -> None:
    topic, group = await asyncio.to_thread(make_topic, broker.bootstrap), unique("group")
    async with klamm.aio.Producer(broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number)
    async with (
        asyncio.timeout(PATIENCE_S),
        klamm.aio.Consumer(broker.bootstrap, group=group, topics=[topic], start="earliest") as consumer,
    ):
        slow = SlowColumns()
        monkeypatch.setattr(consumer_module, "make_columns", slow)
        poll = asyncio.create_task(consumer.poll_arrow(timeout=PATIENCE_S))
        await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
        if is_done_when_cancelled:
            slow.may_go_on.set()
            slow.ended.wait(PATIENCE_S)  # the result waits, and this task has not let go of the loop
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        slow.may_go_on.set()
        assert await asyncio.to_thread(slow.ended.wait, PATIENCE_S)
        monkeypatch.undo()
        batch = await consumer.poll_arrow(timeout=PATIENCE_S, max_records=COUNT - 1)
        assert batch.column("value").to_pylist() == [b"%d" % number for number in range(COUNT - 1)]
        assert await consumer.poll(timeout=PATIENCE_S), "the first nine are finished by this"
        poll = asyncio.create_task(consumer.poll(timeout=PATIENCE_S))
        await asyncio.sleep(0)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
    async with klamm.aio.Consumer(broker.bootstrap, group=group) as consumer:
        ((_, committed),) = (await consumer.committed([(topic, 0)])).items()
        assert committed.offset == COUNT


async def test_records(broker: Broker) -> None:
    """Cancelled at any moment, also when records have just come: none is skipped."""
    topic = await asyncio.to_thread(make_topic, broker.bootstrap)
    async with (
        asyncio.timeout(PATIENCE_S),
        klamm.aio.Producer(broker.bootstrap) as producer,
        klamm.aio.Consumer(broker.bootstrap, topics=[topic], start="earliest") as consumer,
    ):
        got: list[bytes | None] = []
        for number in range(COUNT):
            poll = asyncio.create_task(consumer.poll())
            await producer.send(topic, b"%d" % number)
            for _ in range(number):
                await asyncio.sleep(0)
            poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += [record.value for record in await poll]
        while len(got) < COUNT:
            got += [record.value for record in await consumer.poll(timeout=PATIENCE_S)]
    assert got == [b"%d" % number for number in range(COUNT)]
