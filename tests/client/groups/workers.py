"""Members of a group that work in sessions, for the tests of those; and short ways around them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import klamm.aio
from klamm.client.consumer.consumer import Consumer
from klamm.client.consumer.group.sessions import Claim, Session
from klamm.client.results import Record, TopicPartition

PATIENCE_SECONDS = 20.0

QUICK = {"heartbeat_interval_ms": 100, "session_timeout_ms": 6_000, "metadata_max_age_ms": 500}
"""A member that soon notices when the group changes."""


def new_consumer(bootstrap: str, group: str, topic: str, **options: Any) -> Consumer:
    return klamm.aio.Consumer(
        bootstrap,
        group=group,
        topics=[topic],
        start="earliest",
        **(QUICK | options),  # type: ignore[arg-type]
    )


async def send(bootstrap: str, topic: str, values: dict[int, list[bytes]]) -> None:
    """Send values to partitions, and wait until they are there."""
    async with klamm.aio.Producer(bootstrap) as producer:
        for delivery in [
            producer.send(topic, value, partition=partition)
            for partition, of_partition in values.items()
            for value in of_partition
        ]:
            await delivery


async def committed(bootstrap: str, group: str, topic: str, partitions: int = 1) -> dict[int, int]:
    async with klamm.aio.Consumer(bootstrap, group=group) as consumer:
        found = await consumer.committed([TopicPartition(topic, number) for number in range(partitions)])
    return {partition.partition: offset.offset for partition, offset in found.items()}


class Worker:
    """Takes part in sessions, one task per claim, and remembers what it saw."""

    def __init__(self, consumer: Consumer, **how: Any) -> None:
        self.consumer = consumer
        self.how = how
        self.sessions: list[Session] = []
        self.finished: list[Record] = []
        self.started: list[Record] = []
        self.cancelled: list[Record] = []
        self.gate = asyncio.Event()
        """Closed, workers stay with the record they have."""
        self.gate.set()

    @property
    def claimed(self) -> set[int]:
        return {claim.partition for claim in self.sessions[-1].claims} if self.sessions else set()

    async def run(self) -> None:
        async for session in self.consumer.sessions(**self.how):
            async with session, asyncio.TaskGroup() as tasks:
                self.sessions.append(session)
                for claim in session.claims:
                    tasks.create_task(self.work(claim))

    async def work(self, claim: Claim) -> None:
        async for record in claim:
            self.started.append(record)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(record)
                raise
            self.finished.append(record)

    def offsets(self, partition: int) -> list[int]:
        return [record.offset for record in self.finished if record.partition == partition]


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """The worker runs in a task, until the block ends; then its consumer is closed and all must be over."""
    async with worker.consumer:
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.gate.set()
            await worker.consumer.close()
            await asyncio.wait_for(task, PATIENCE_SECONDS)
