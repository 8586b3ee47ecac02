"""A producer's memory is bounded, and whoever waits for room gets it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.client.errors import (
    BufferFull,
)
from tests.client.producer.scripted import (
    LIMIT_S,
    TOPIC,
    ScriptedTopic,
    numbers,
    producer_of,
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
