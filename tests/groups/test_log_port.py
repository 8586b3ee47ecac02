"""The contract of `LogPort`, held by the fake of the tests and by the one over the partitions of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import pytest

from klamm.cluster.image import PartitionImage
from klamm.groups.log_port import LogPort
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.node.offsets_log import TOPIC, OffsetsLog
from klamm.testing.broker import Broker
from tests.groups.fakes import FakeLog, settle


class Log(Protocol):
    port: LogPort

    def run(self, test: Callable[[Log], Awaitable[None]]) -> None: ...

    async def begin_epoch(self) -> None:
        """Partition 0 is led on, in the next leader epoch."""


class OverFake:
    def __init__(self) -> None:
        self.log = FakeLog(partition_count=2)
        self.port: LogPort = self.log

    def run(self, test: Callable[[Log], Awaitable[None]]) -> None:
        async def go() -> None:
            await test(self)

        asyncio.run(go())

    async def begin_epoch(self) -> None:
        self.log.begin_epoch(0)


class OverBroker:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        assert broker.node is not None
        self.node = broker.node
        broker.run(self.node.cluster.ensure_offsets_topic())
        self.port: LogPort = OffsetsLog(self.node.cluster, self.node.partitions, self.node.clock)

    def run(self, test: Callable[[Log], Awaitable[None]]) -> None:
        async def go() -> None:
            await test(self)

        self.broker.run(go())

    async def begin_epoch(self) -> None:
        await self.node.cluster.raise_leader_epochs([TopicPartition(TOPIC, 0)])


@pytest.fixture(params=["fake", "broker"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    if request.param == "fake":
        yield OverFake()
        return
    with Broker(config={"offsets.topic.num.partitions": 2, "log.flush.interval.messages": 1}) as broker:
        yield OverBroker(broker)


async def read(port: LogPort, leader_epoch: int) -> list[tuple[bytes | None, bytes | None]]:
    return [record async for records in port.read_all(0, leader_epoch) for record in records]


async def fails(work: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await work()
    return error.value.code


def test_what_is_appended_is_committed_and_read(log: Log) -> None:
    async def test(log: Log) -> None:
        port = log.port
        epoch = port.leader_epoch(0)
        assert epoch is not None
        assert (port.partition_count, port.leader_epoch(2)) == (2, None)
        assert await read(port, epoch) == []
        await port.append(0, epoch, [(b"a", b"1"), (b"b", None)])
        await port.append(0, epoch, [(b"a", b"2")])
        await port.until_committed(0, epoch)
        assert await read(port, epoch) == [(b"a", b"1"), (b"b", None), (b"a", b"2")]

    log.run(test)


def test_only_the_epoch_that_is_led_is_served(log: Log) -> None:
    async def test(log: Log) -> None:
        port = log.port
        epoch = port.leader_epoch(0)
        assert epoch is not None
        await port.append(0, epoch, [(b"a", b"1")])
        await log.begin_epoch()
        assert port.leader_epoch(0) == epoch + 1
        for wrong in (epoch, epoch + 2):
            for ask in (
                lambda wrong=wrong: port.append(0, wrong, [(b"a", b"2")]),
                lambda wrong=wrong: port.until_committed(0, wrong),
                lambda wrong=wrong: read(port, wrong),
            ):
                assert await fails(ask) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await read(port, epoch + 1) == [(b"a", b"1")]
        await port.append(0, epoch + 1, [(b"a", b"3")])

    log.run(test)


def test_the_broker_waits_for_the_high_watermark_while_the_epoch_lasts() -> None:
    async def test(log: Log) -> None:
        assert isinstance(log, OverBroker)
        port, partition = log.port, log.node.partitions.get(TOPIC, 0)
        epoch = port.leader_epoch(0)
        assert epoch is not None
        await port.append(0, epoch, [(b"a", b"1")])
        for ends_by_commit in (True, False):
            partition.high_watermark = 0
            waiting = asyncio.ensure_future(port.until_committed(0, epoch))
            await settle()
            assert not waiting.done()
            assert await read(port, epoch) == []
            if ends_by_commit:
                await port.append(0, epoch, [(b"a", b"2")])
                await waiting
            else:
                await log.begin_epoch()
                assert await fails(lambda waiting=waiting: waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with Broker(config={"offsets.topic.num.partitions": 1}) as broker:
        OverBroker(broker).run(test)


def test_too_few_replicas_refuse_an_append_and_nothing_is_written() -> None:
    async def test(log: Log) -> None:
        assert isinstance(log, OverBroker)
        port, partition = log.port, log.node.partitions.get(TOPIC, 0)
        epoch = port.leader_epoch(0)
        assert epoch is not None
        partition.set_min_insync_replicas(2)
        partition.take_over(
            PartitionImage((1, 2), (1,), 1, partition.leader_epoch, partition.partition_epoch + 1)
        )
        with pytest.raises(KafkaError) as error:
            port.append(0, epoch, [(b"a", b"1")])
        assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.log_end_offset == 0
        partition.take_offline()
        assert port.leader_epoch(0) is None
        assert await fails(lambda: port.until_committed(0, epoch)) is ErrorCode.KAFKA_STORAGE_ERROR

    with Broker(config={"offsets.topic.num.partitions": 1}) as broker:
        OverBroker(broker).run(test)
