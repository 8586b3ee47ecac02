"""Who waits for a record and gives up leaves nothing behind, however often it is tried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.client.errors import ClientMisused, TimedOut
from klamm.client.plain import producer as plain
from klamm.client.producer import producer as aio
from klamm.client.producer.batches import Batch, Outcome

TIMES = 3


def batch_of_one() -> Batch:
    batch = Batch("orders", 0, (0,), 0, created=0.0, deadline=1.0)
    batch.add(None, b"value", 0, None, 10)
    return batch


def ranges(kind: Any, batch: Batch | None) -> Any:
    delivery = kind()
    if batch is not None:
        delivery.feed(batch)
        delivery.end_feed()
    return delivery


def test_a_record() -> None:
    batch = batch_of_one()
    delivery = plain.Delivery(batch, 0)
    for _ in range(TIMES):
        with pytest.raises(TimedOut, match=r"a record to orders timed out after 0\.01 s"):
            delivery.result(0.01)
    assert batch.waiters == []
    batch.outcome = Outcome(base_offset=7)
    assert delivery.result(0).offset == 7


def test_a_record_that_moved_meanwhile() -> None:
    batch, part = batch_of_one(), batch_of_one()
    delivery = plain.Delivery(batch, 0)
    ring = plain.Ring()
    delivery._add_waiter(ring)
    batch.move([(part, 0)])
    assert [waiter for _, waiter in part.waiters] == [ring]
    delivery._drop_waiter(ring)
    assert part.waiters == []


async def test_a_record_that_is_awaited() -> None:
    batch = batch_of_one()
    delivery = aio.Delivery(batch, 0)
    for _ in range(TIMES):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await delivery
    assert batch.waiters == []


@pytest.mark.parametrize("is_fed", [True, False], ids=["fed", "not fed"])
def test_columns(is_fed: bool) -> None:
    batch = batch_of_one()
    delivery = ranges(plain.RangesDelivery, batch if is_fed else None)
    for _ in range(TIMES):
        with pytest.raises(TimedOut, match=r"as columns timed out after 0\.01 s"):
            delivery.result(0.01)
    assert batch.waiters == [] and delivery._feed_waiters == []


@pytest.mark.parametrize("is_fed", [True, False], ids=["fed", "not fed"])
async def test_columns_that_are_awaited(is_fed: bool) -> None:
    batch = batch_of_one()
    delivery = ranges(aio.RangesDelivery, batch if is_fed else None)
    for _ in range(TIMES):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await delivery
    assert batch.waiters == [] and delivery._feed_waiters == []


@pytest.mark.parametrize("timeout", ["1", -1, float("nan"), True], ids=repr)
def test_times_that_are_none(timeout: Any) -> None:
    batch = batch_of_one()
    for delivery in (plain.Delivery(batch, 0), ranges(plain.RangesDelivery, batch)):
        with pytest.raises(ClientMisused, match=r"^timeout=.* is no time to wait. Give seconds, from 0 on"):
            delivery.result(timeout)
        with pytest.raises(ClientMisused, match="is no time to wait"):
            delivery.exception(timeout)
    assert batch.waiters == []
