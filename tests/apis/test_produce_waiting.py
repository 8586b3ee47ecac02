"""Produces with acks=all to partitions whose other replicas are played by the test."""

from __future__ import annotations

import random
import re
import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from klamm.cluster.image import PartitionImage
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest
from klamm.records.builder import build_batch, number_records
from klamm.replication.partition import Partition
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.waiting import is_ready, wait_until

VERSION = 9
LEADER, FOLLOWER = 1, 2


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def give_role(partition: Partition, leader_id: int) -> None:
    """As the controller does, in the next leader epoch."""
    both = (LEADER, FOLLOWER)
    epoch = partition.leader_epoch + 1
    partition.take_over(PartitionImage(both, both, leader_id, epoch, partition.partition_epoch + 1))


class Replicated:
    """A topic of three partitions whose high watermarks the test raises, and a producer."""

    def __init__(self, broker: Broker, wire: WireConnection, name: str, **config: str) -> None:
        self._broker = broker
        self.wire = wire
        self.name = name
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=3, replication_factor=1, configs=configs)
        wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        for index in range(3):
            self.do(index, lambda partition: give_role(partition, LEADER))

    def do(self, index: int, work: Callable[[Partition], Any]) -> Any:
        """Call `work` with a partition, on the broker's loop."""

        async def run() -> Any:
            assert self._broker.node is not None
            return work(self._broker.node.partitions.get(self.name, index))

        return self._broker.run(run())

    def send(self, *partitions: int, acks: int = -1, timeout_ms: int = 60_000, **batch: int) -> None:
        records = number_records([(b"key", b"value")], 1)
        data = [
            PartitionProduceData(index=index, records=build_batch(records, **batch)) for index in partitions
        ]
        topic = TopicProduceData(name=self.name, partition_data=data)
        self.wire.send(ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic]), VERSION)

    def receive(self) -> list[tuple[ErrorCode, int]]:
        """Error code and base offset of each partition of the next answer."""
        partitions = self.wire.receive().responses[0].partition_responses
        return [(ErrorCode(each.error_code), each.base_offset) for each in partitions]

    def until_appended(self, index: int, end_offset: int) -> None:
        wait_until(
            lambda: self.do(index, lambda partition: partition.log.log_end_offset) >= end_offset,
            f"the log of partition {index} ends at {end_offset}",
        )

    def raise_high_watermark(self, index: int, offset: int) -> None:
        self.until_appended(index, offset)
        self.do(index, lambda partition: partition.on_follower_fetch(FOLLOWER, 7, offset, 0))

    def shortcuts(self) -> Any:
        """Those of the producer, which is the only client with some."""

        async def look() -> Any:
            assert self._broker.node is not None
            connections = self._broker.node.server._connections
            return next(each.shortcut for each in connections if each.shortcut is not None)

        return self._broker.run(look())


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Replicated]:
    with WireConnection(broker.bootstrap) as wire:
        yield Replicated(broker, wire, re.sub(r"\W", "-", request.node.name))


def test_an_answer_waits_for_the_high_watermark(topic: Replicated) -> None:
    for _ in range(10):  # the first two take the long way, the others the short one
        topic.send(0)
    topic.raise_high_watermark(0, 1)
    assert topic.receive() == [(ErrorCode.NONE, 0)]
    topic.raise_high_watermark(0, 9)
    assert [topic.receive() for _ in range(8)] == [[(ErrorCode.NONE, offset)] for offset in range(1, 9)]
    assert len(topic.shortcuts()) == 1
    topic.raise_high_watermark(0, 10)
    assert topic.receive() == [(ErrorCode.NONE, 9)]


def test_only_acks_all_waits(topic: Replicated) -> None:
    for offset in range(4):
        topic.send(0, acks=1)
        assert topic.receive() == [(ErrorCode.NONE, offset)]


def test_answers_keep_the_order_of_their_requests(topic: Replicated) -> None:
    """Whatever order partitions are committed in, with answers at once between those that wait."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    ends = [0, 0, 0]
    sent: list[tuple[int, int]] = []
    for _ in range(60):
        index = chance.randrange(3)
        topic.send(index, acks=chance.choice((1, -1)))
        sent.append((index, ends[index]))
        ends[index] += 1
    order = chance.sample(range(3), 3)
    for index in order:
        topic.raise_high_watermark(index, ends[index])
    assert [topic.receive() for _ in sent] == [[(ErrorCode.NONE, offset)] for _, offset in sent], seed
    assert len(topic.shortcuts()) >= 3, seed


def test_a_request_of_several_partitions_waits_for_all_of_them(topic: Replicated) -> None:
    topic.send(0, 1, 2)
    topic.send(0)
    topic.raise_high_watermark(0, 2)
    topic.raise_high_watermark(2, 1)
    topic.until_appended(1, 1)
    topic.do(1, lambda partition: partition.take_offline())
    refused = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert topic.receive() == [(ErrorCode.NONE, 0), refused, (ErrorCode.NONE, 0)]
    assert topic.receive() == [(ErrorCode.NONE, 1)]


def test_a_produce_that_waits_too_long_is_told_so(topic: Replicated) -> None:
    for _ in range(4):
        topic.send(0, timeout_ms=1)
        assert topic.receive() == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert len(topic.shortcuts()) == 1


@pytest.mark.parametrize("count", [1, 5])
def test_lost_leadership_refuses_what_waits_and_ends_the_shortcut(topic: Replicated, count: int) -> None:
    for _ in range(count):
        topic.send(0)
    topic.until_appended(0, count)

    topic.do(0, lambda partition: give_role(partition, FOLLOWER))
    refused = [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert [topic.receive() for _ in range(count)] == [refused] * count
    topic.send(0)
    assert topic.receive() == refused
    topic.do(0, lambda partition: give_role(partition, LEADER))
    for offset in range(count, count + 4):
        topic.send(0)
        topic.raise_high_watermark(0, offset + 1)
        assert topic.receive() == [(ErrorCode.NONE, offset)]
    assert topic.shortcuts()._last.leader_epoch == 3


def test_a_deleted_topic_refuses_what_waits(topic: Replicated, broker: Broker) -> None:
    topic.send(0)
    topic.until_appended(0, 1)
    with WireConnection(broker.bootstrap) as admin:
        admin.call(DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=10_000), 5)
    assert topic.receive() == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


def test_an_fsync_and_the_replicas_are_awaited_both(broker: Broker) -> None:
    with WireConnection(broker.bootstrap) as wire:
        topic = Replicated(broker, wire, "flushed", **{"flush.messages": "1"})
        topic.send(0)
        wait_until(lambda: topic.do(0, lambda partition: partition.log.recovery_point) == 1, "an fsync")
        assert not is_ready(wire.socket, select.POLLIN, 0.0)
        topic.raise_high_watermark(0, 1)
        assert topic.receive() == [(ErrorCode.NONE, 0)]


def test_clients_that_leave_are_forgotten(topic: Replicated, broker: Broker) -> None:
    with WireConnection(broker.bootstrap) as leaving:
        other = topic.wire
        topic.wire = leaving
        for _ in range(5):
            topic.send(0)
        topic.until_appended(0, 5)
        topic.wire = other
    wait_until(lambda: topic.do(0, lambda partition: len(partition.waiting_produces)) == 0, "nobody waits")
    topic.send(0)
    topic.raise_high_watermark(0, 6)
    assert topic.receive() == [(ErrorCode.NONE, 5)]


def test_an_isr_that_shrinks_while_a_batch_is_opened_refuses_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireConnection(broker.bootstrap) as wire:
        settings = {"compression.type": "gzip", "min.insync.replicas": "2"}
        topic = Replicated(broker, wire, "opened", **settings)
        assert broker.node is not None
        partitions = broker.node.partitions
        open_batch = partitions.open_batch

        async def shrink_meanwhile(*arguments: Any) -> bytearray:
            partition = partitions.get("opened", 0)
            partition.take_over(
                PartitionImage(
                    (LEADER, FOLLOWER),
                    (LEADER,),
                    LEADER,
                    partition.leader_epoch,
                    partition.partition_epoch + 1,
                )
            )
            return await open_batch(*arguments)

        monkeypatch.setattr(partitions, "open_batch", shrink_meanwhile)
        topic.send(0)
        assert topic.receive() == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
        assert topic.do(0, lambda partition: partition.log.log_end_offset) == 0


@pytest.mark.parametrize("written_before", [0, 3])
def test_batches_behind_a_refused_one_are_not_taken_for_a_gap(topic: Replicated, written_before: int) -> None:
    """The broker comes to lead between two batches on the way: both are refused, and both come again. A
    producer of which the log knows nothing yet may not begin with the second, either."""

    def send(sequence: int) -> None:
        topic.send(0, acks=1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    def outcome(sequence: int) -> tuple[ErrorCode, int]:
        send(sequence)
        return topic.receive()[0]

    for sequence in range(written_before):
        assert outcome(sequence) == (ErrorCode.NONE, sequence)
    topic.do(0, lambda partition: give_role(partition, FOLLOWER))
    assert outcome(written_before) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    topic.do(0, lambda partition: give_role(partition, LEADER))
    for behind in (1, 2):
        assert outcome(written_before + behind) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    for sequence in range(written_before, written_before + 3):
        assert outcome(sequence) == (ErrorCode.NONE, sequence)
    assert outcome(written_before + 9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
