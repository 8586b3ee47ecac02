"""A client may not produce to an internal topic; the broker goes on writing the state of groups there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.cluster.image import OFFSETS_TOPIC
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.records.builder import build_batch, number_records
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with WireConnection(broker.bootstrap) as wire:
            found = wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
            assert found.coordinators[0].error_code == ErrorCode.NONE
        yield broker


def produce(wire: WireConnection, version: int, partition: int = 0) -> int:
    """The error code of a produce to the topic of committed offsets."""
    data = [
        PartitionProduceData(index=partition, records=build_batch(number_records([(b"k", b"v")], NOW_MS)))
    ]
    if version >= 13:
        metadata = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS_TOPIC)]))
        topic = TopicProduceData(topic_id=metadata.topics[0].topic_id, partition_data=data)
    else:
        topic = TopicProduceData(name=OFFSETS_TOPIC, partition_data=data)
    answer = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), version)
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_client_is_refused(broker: Broker, version: int) -> None:
    with WireConnection(broker.bootstrap) as wire:
        # Several in a row: a repeated produce may take the short way, which must not be open to it.
        codes = {produce(wire, version) for _ in range(4)}
    assert codes == {ErrorCode.INVALID_TOPIC_EXCEPTION}


def test_a_partition_that_does_not_exist_is_unknown(broker: Broker) -> None:
    with WireConnection(broker.bootstrap) as wire:
        assert produce(wire, 11, partition=9_999) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_admin_client_of_brokers_may(broker: Broker) -> None:
    with WireConnection(broker.bootstrap, client_id="__admin_client") as wire:
        assert produce(wire, 11) == ErrorCode.NONE


def test_the_broker_goes_on_writing_there(broker: Broker) -> None:
    with WireConnection(broker.bootstrap) as wire:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        position = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[position])],
        )
        answer = wire.call(commit, 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
