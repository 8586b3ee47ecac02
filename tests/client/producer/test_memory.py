"""A producer's memory is bounded, and whoever waits for room gets it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.client.errors import BufferFull, ClientClosed
from klamm.client.producer.batches import Waiter
from klamm.client.producer.engine import RoomQueue
from tests.client.producer.scripted import (
    LIMIT_S,
    TOPIC,
    ScriptedTopic,
    numbers,
    producer_of,
    written_but_silent,
)


async def test_a_fast_loop_and_a_slow_broker_stay_within_memory() -> None:
    async with ScriptedTopic() as topic:
        memory = 200_000
        async with producer_of(topic, buffer_memory=memory, batch_size=5000) as producer:

            def slow(script: ScriptedTopic, request: Any) -> Any:
                async def answer() -> Any:
                    await asyncio.sleep(0.002)
                    return script.write(request)

                return answer()

            topic.script = [slow] * 10_000
            refused = 0
            most = 0.0
            for number in range(6000):
                while True:
                    try:
                        producer.send(TOPIC, b"%d" % number)
                        break
                    except BufferFull:
                        refused += 1
                        most = max(most, producer.counters()["buffer_bytes"])
                        await producer.drain()
            await producer.flush()
            assert refused > 1 and most <= memory
            assert producer.counters()["buffer_bytes"] == 0
        assert topic.values() == numbers(6000)


async def test_nothing_lingers_while_others_wait_for_room() -> None:
    lingering = {"buffer_memory": 20_000, "linger_ms": 60_000, "max_request_size": 5000}
    async with ScriptedTopic() as topic, producer_of(topic, **lingering) as producer:
        with pytest.raises(BufferFull):
            while True:
                producer.send(TOPIC, bytes(100))
        async with asyncio.timeout(LIMIT_S):
            await producer.drain()


@pytest.mark.parametrize("size", [10, 900, 3000])
async def test_many_tasks_that_drain_before_they_send_all_find_room(size: int) -> None:
    """The last size is more than half of the memory: it is refused once, and waited for from then on."""
    small = {"buffer_memory": 5000, "max_request_size": 4000, "batch_size": 1000}
    async with ScriptedTopic() as topic, producer_of(topic, **small) as producer:
        if size > small["buffer_memory"] / 2:
            producer.send(TOPIC, bytes(size))
            with pytest.raises(BufferFull):
                producer.send(TOPIC, bytes(size))
        order: list[int] = []

        async def send(number: int) -> None:
            await producer.drain()
            producer.send(TOPIC, bytes(size))
            order.append(number)

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            for number in range(300):
                tasks.create_task(send(number))
        assert order == list(range(300)), "first come, first served"


@pytest.mark.parametrize("is_awaited", [False, True], ids=["sent", "delivered"])
async def test_tasks_that_drain_and_send_again_and_again_are_never_refused(is_awaited: bool) -> None:
    """There is room for three records. Some are delivered while other tasks are woken but did not run yet."""
    small = {"buffer_memory": 5000, "max_request_size": 1600, "batch_size": 0}
    async with ScriptedTopic() as topic, producer_of(topic, **small) as producer:

        async def send_often(number: int) -> None:
            for again in range(6):
                await producer.drain()
                delivery = producer.send(TOPIC, b"%d %d" % (number, again) + bytes(1400))
                if is_awaited:
                    await delivery

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(send_often(number))
        await producer.flush()
        assert producer.counters()["buffer_full"] == 0
        assert len(set(topic.values())) == 120


async def test_closing_ends_every_wait_for_room() -> None:
    small = {"buffer_memory": 2000, "max_request_size": 1000, "batch_size": 0}
    async with ScriptedTopic() as topic, producer_of(topic, **small) as producer:
        topic.script = [written_but_silent]
        lost = [producer.send(TOPIC, bytes(800)) for _ in range(2)]
        drains = [asyncio.create_task(producer.drain()) for _ in range(20)]
        await asyncio.sleep(0)
        assert not any(drain.done() for drain in drains)
        await producer.close(0)
        async with asyncio.timeout(LIMIT_S):
            ends = await asyncio.gather(*drains, return_exceptions=True)
        assert [type(end) for end in ends] == [ClientClosed] * 20
        assert all(isinstance(delivery.exception(), ClientClosed) for delivery in lost)


async def test_one_that_gives_up_draining_keeps_nobody_waiting() -> None:
    small = {"buffer_memory": 2000, "max_request_size": 1000, "batch_size": 0}
    async with ScriptedTopic() as topic, producer_of(topic, **small) as producer:
        asked, go_on = asyncio.Event(), asyncio.Event()

        def slow(script: ScriptedTopic, request: Any) -> Any:
            async def answer() -> Any:
                asked.set()
                await go_on.wait()
                return script.write(request)

            return answer()

        topic.script = [slow]
        producer.send(TOPIC, bytes(800))
        producer.send(TOPIC, bytes(800))
        await asked.wait()
        drains = [asyncio.create_task(producer.drain()) for _ in range(5)]
        await asyncio.sleep(0)
        for number in (0, 2):
            drains[number].cancel()
        await asyncio.sleep(0)
        assert not drains[1].done()
        go_on.set()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(drains[number] for number in (1, 3, 4)))


# ---- the queue for room


class Memory:
    """Has room for `free` records."""

    def __init__(self) -> None:
        self.free = 0
        self.asked: list[Waiter] = []
        self.queue = RoomQueue(lambda: self.free, lambda size: max(size, 1), self._ask)
        self.order: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []

    def _ask(self, waiter: Waiter, size: int) -> None:
        self.asked.append(waiter)

    def give(self, count: int) -> None:
        self.free += count
        asked, self.asked = self.asked, []
        for waiter in asked:
            waiter()

    async def send(self, name: Any, size: int = 0) -> None:
        await self.queue.wait(size)
        assert self.free >= max(size, 1), "refused"
        self.free -= 1
        self.order.append(name)

    async def start(self, *names: Any, size: int = 0) -> None:
        self.tasks += [asyncio.create_task(self.send(name, size)) for name in names]
        await asyncio.sleep(0)

    async def settle(self) -> int:
        """Let the tasks run for as long as one of them goes on; returns after how many iterations of the loop
        the last one did."""
        last = iterations = 0
        while iterations < last + 5:
            before = len(self.order)
            await asyncio.sleep(0)
            iterations += 1
            if len(self.order) > before:
                last = iterations
        return last


async def test_room_that_another_takes_first_is_waited_for_at_the_same_place() -> None:
    memory = Memory()
    await memory.start("first", "second")
    memory.give(1)
    memory.free -= 1  # by one that sends and does not wait
    await memory.start("third")
    await memory.settle()
    assert memory.order == [] and len(memory.asked) == 1
    memory.give(2)
    await memory.settle()
    assert memory.order == ["first", "second"]
    memory.give(1)
    await memory.settle()
    assert memory.order == ["first", "second", "third"] and not memory.queue.waiting


@pytest.mark.parametrize("is_woken", [False, True], ids=["waiting", "woken"])
async def test_cancelled_waiters_leave_their_room_to_the_next(is_woken: bool) -> None:
    memory = Memory()
    await memory.start(*range(6))
    if is_woken:
        memory.give(4)
    for number in (0, 1, 4):
        memory.tasks[number].cancel()
    if not is_woken:
        await memory.settle()
        memory.give(4)
    await memory.settle()
    assert memory.order == [2, 3, 5] and memory.free == 1
    assert not memory.queue.waiting and not memory.asked
    await memory.start("later")
    await memory.settle()
    assert memory.order[-1] == "later"


async def test_a_thousand_waiters_go_on_in_a_few_iterations_of_the_loop() -> None:
    memory = Memory()
    await memory.start(*range(1000))
    memory.give(999)
    assert await memory.settle() < 40
    assert memory.order == list(range(999)), "first come, first served"
    memory.give(1)
    await memory.settle()
    assert len(memory.order) == 1000


async def test_one_that_needs_less_does_not_go_on_before_the_first() -> None:
    memory = Memory()
    await memory.start("before")
    await memory.start("large", size=10)
    await memory.start("small")
    memory.give(1)
    await memory.settle()
    memory.give(10)  # two are woken now
    memory.free -= 1  # by one that sends and does not wait
    await memory.settle()
    assert memory.order == ["before"]
    memory.give(1)
    await memory.settle()
    assert memory.order == ["before", "large", "small"]


async def test_nobody_passes_one_that_waits_for_much_room() -> None:
    memory = Memory()
    await memory.start("large", size=10)
    memory.free = 9
    assert not memory.queue.may_pass()
    memory.give(1)  # the large one is woken
    assert not memory.queue.may_pass()
    memory.free += 1
    assert memory.queue.may_pass(), "there is room for both, so a loop that sends need not take turns"
    await memory.settle()
    assert memory.order == ["large"]
