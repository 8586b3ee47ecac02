"""`claim.poll_arrow` that brings nothing: the claim has nothing in work, and nobody waits for its worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest

import klamm
from klamm.client.consumer import consumer as aio_module
from klamm.client.consumer.lease import Lease
from klamm.client.consumer.polling import Columns, make_columns
from klamm.client.plain import consumer as plain_module
from tests.client.groups.conftest import NewTopic
from tests.client.groups.workers import QUICK, new_consumer, send
from tests.client.topics import unique
from tests.waiting import PATIENCE_S, until, wait_until


class EmptyColumns:
    """Makes columns without rows when it is let, as of a fetch that holds only markers."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, leases: Sequence[Lease], limit: int | None) -> Columns:
        made = make_columns(leases, limit)
        assert made.batch is not None
        if leases:
            self.begun.set()
            assert self.may_go_on.wait(PATIENCE_S)
        return Columns(made.batch.slice(0, 0), made.next_offsets)


async def test_a_claim_that_only_waits_is_not_busy(
    klamm_bootstrap: str, klamm_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the session takes the worker for stuck, and leaves the group."""
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: [b"marker"]})
    empty = EmptyColumns()
    empty.may_go_on.set()
    monkeypatch.setattr(aio_module, "make_columns", empty)
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        session = await anext(consumer.sessions())
        async with session:
            (claim,) = session.claims
            worker = asyncio.create_task(claim.poll_arrow())
            await asyncio.to_thread(empty.begun.wait, PATIENCE_S)
            await until(lambda: session._waiters, "it waits for records")
            assert not claim._reader.is_busy
        await worker


async def test_a_claim_whose_poll_was_cancelled_is_not_busy(
    klamm_bootstrap: str, klamm_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = klamm_topic(1), unique("group")
    await send(klamm_bootstrap, topic, {0: [b"record"]})
    empty = EmptyColumns()
    monkeypatch.setattr(aio_module, "make_columns", empty)
    async with new_consumer(klamm_bootstrap, group, topic) as consumer:
        session = await anext(consumer.sessions())
        async with session:
            (claim,) = session.claims
            worker = asyncio.create_task(claim.poll_arrow())
            await asyncio.to_thread(empty.begun.wait, PATIENCE_S)
            worker.cancel()
            await asyncio.wait([worker])
            assert not claim._reader.is_busy
            empty.may_go_on.set()
            monkeypatch.undo()
            assert (await claim.poll_arrow(timeout=PATIENCE_S)).num_rows == 1, "nothing is lost"


def test_a_session_that_ends_meanwhile_does_not_wait_in_vain(
    klamm_bootstrap: str,
    klamm_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group = klamm_topic(1), unique("group")
    asyncio.run(send(klamm_bootstrap, topic, {0: [b"marker"]}))
    empty = EmptyColumns()
    monkeypatch.setattr(plain_module, "make_columns", empty)
    with (
        caplog.at_level(logging.WARNING),
        klamm.Consumer(klamm_bootstrap, group=group, topics=[topic], start="earliest", **QUICK) as consumer,
    ):
        session = next(consumer.sessions(drain_timeout=10))
        is_left = threading.Event()

        def let_go() -> None:
            wait_until(lambda: session.ended, "the session ends")
            empty.may_go_on.set()
            is_left.wait(PATIENCE_S)  # a thread that lives on: only its return can tell the session

        def work() -> None:
            assert session.claims[0].poll_arrow().num_rows == 0
            is_left.wait(PATIENCE_S)

        threads = [threading.Thread(target=each) for each in (let_go, work)]
        with session:
            for thread in threads:
                thread.start()
            assert empty.begun.wait(PATIENCE_S)
        is_left.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert "workers had not finished" not in caplog.text
