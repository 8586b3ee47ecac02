"""Who waits for a record and gives up leaves nothing behind, however often it is tried."""

from __future__ import annotations

import asyncio
import concurrent.futures
from functools import partial
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
        with pytest.raises(
            ClientMisused, match=r"^timeout=.* is not a time to wait. Give seconds, from 0 on"
        ):
            delivery.result(timeout)
        with pytest.raises(ClientMisused, match="is not a time to wait"):
            delivery.exception(timeout)
    assert batch.waiters == []


# ---- what Python waits with


async def test_asyncio_waits_for_deliveries() -> None:
    first, second = batch_of_one(), batch_of_one()
    deliveries = [aio.Delivery(first, 0), aio.Delivery(second, 0), ranges(aio.RangesDelivery, second)]
    done, pending = await asyncio.wait(deliveries, timeout=0.01)
    assert not done and pending == set(deliveries)
    assert first.waiters == [] and second.waiters == []
    waiting = asyncio.create_task(asyncio.wait(deliveries, return_when=asyncio.FIRST_COMPLETED))
    await asyncio.sleep(0)
    settle(first, Outcome(base_offset=3))
    done, pending = await waiting
    assert done == {deliveries[0]} and pending == set(deliveries[1:])
    assert second.waiters == []
    waiting = asyncio.create_task(asyncio.wait(deliveries, return_when=asyncio.FIRST_EXCEPTION))
    await asyncio.sleep(0)
    settle(second, Outcome(error=ClientMisused("no")))
    done, pending = await waiting
    assert done == set(deliveries) and not pending
    assert not deliveries[0].cancelled()


async def test_asyncio_takes_deliveries_as_they_complete() -> None:
    first, second = batch_of_one(), batch_of_one()
    settle(second, Outcome(base_offset=7))
    completed = asyncio.as_completed([aio.Delivery(first, 0), aio.Delivery(second, 0)])
    assert (await next(completed)).offset == 7
    settle(first, Outcome(base_offset=5))
    assert (await next(completed)).offset == 5


def test_callbacks_can_be_taken_back() -> None:
    batch = batch_of_one()
    told: list[Any] = []
    for delivery in (plain.Delivery(batch, 0), ranges(plain.RangesDelivery, batch)):
        delivery.add_done_callback(told.append)
        delivery.add_done_callback(told.append)
        delivery.add_done_callback(print)
        assert delivery.remove_done_callback(told.append) == 2
        assert delivery.remove_done_callback(told.append) == 0
        assert delivery.remove_done_callback(print) == 1
    fed_later = plain.RangesDelivery()
    fed_later.add_done_callback(told.append)
    assert fed_later.remove_done_callback(told.append) == 1
    assert batch.waiters == [] and fed_later._feed_waiters == []


@pytest.mark.parametrize(
    "wait", [concurrent.futures.wait, lambda one: list(concurrent.futures.as_completed(one))]
)
def test_what_concurrent_futures_cannot_wait_for_says_what_to_do(wait: Any) -> None:
    batch = batch_of_one()
    for delivery in (plain.Delivery(batch, 0), ranges(plain.RangesDelivery, batch), aio.Delivery(batch, 0)):
        with pytest.raises(
            ClientMisused, match=r"concurrent\.futures cannot wait for it.*result\(\) of each"
        ):
            wait([delivery])


async def test_a_plain_delivery_tells_asyncio_what_to_use_instead_of_hanging() -> None:
    """It would hang: a callback on the client's thread does not wake the loop."""
    batch = batch_of_one()
    for delivery in (plain.Delivery(batch, 0), ranges(plain.RangesDelivery, batch)):
        with pytest.raises(ClientMisused, match=r"asyncio\.wait cannot wait for it.*klamm\.aio\.Producer"):
            await asyncio.wait([delivery], timeout=0.01)
        delivery.add_done_callback(partial(asyncio.get_running_loop().call_soon_threadsafe, print))


def settle(batch: Batch, outcome: Outcome) -> None:
    """As the ledger and the sender do."""
    batch.outcome = outcome
    for _, waiter in batch.take_waiters():
        waiter()
