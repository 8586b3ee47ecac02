"""A produce to several partitions whose acknowledgements wait for the disk."""

from __future__ import annotations

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.records.builder import build_batch, number_records
from klamm.testing import Broker
from klamm.testing.wire import WireConnection


def test_a_failed_flush_is_the_failure_of_its_partition_only() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        setting = CreatableTopicConfig(name="flush.messages", value="1")
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, configs=[setting])
        wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        assert broker.node is not None
        # Its flush begins with writing down the leader epochs, which cannot be done there.
        broker.node.partitions.get("t", 0).log.epochs.directory = str(broker.data_dir / "missing")
        batches = [
            PartitionProduceData(index=index, records=build_batch(number_records([(b"key", b"value")], 1)))
            for index in range(2)
        ]
        data = [TopicProduceData(name="t", partition_data=batches)]
        answer = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data), 9)
        codes = [each.error_code for each in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
