"""What a request names twice is answered once, or refused."""

from __future__ import annotations

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.protocol.messages.k61_describe_producers import DescribeProducersRequest, TopicRequest
from tests.abuse.calls import NAMES_PRODUCE_VERSION, batch_of, create_topic, end_offset
from tests.abuse.conftest import Abused


def test_two_batches_for_one_partition_are_refused_and_the_others_written(abused: Abused) -> None:
    with abused.connect() as connection:
        create_topic(connection, "produced-twice", partitions=2)
        data = [PartitionProduceData(index=index, records=batch_of(b"x")) for index in (0, 1, 0)]
        topics = [TopicProduceData(name="produced-twice", partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
        answer = connection.call(request, NAMES_PRODUCE_VERSION)
        codes = [each.error_code for each in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        assert [end_offset(connection, "produced-twice", partition=index) for index in (0, 1)] == [0, 1]


def test_offsets_of_a_partition_that_is_named_twice_are_refused(abused: Abused) -> None:
    with abused.connect() as connection:
        create_topic(connection, "listed-twice", partitions=2)
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 0)]
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="listed-twice", partitions=asked)]
        )
        partitions = connection.call(request).topics[0].partitions
        codes = [each.error_code for each in partitions]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_partitions_that_are_named_twice_are_answered_once(abused: Abused) -> None:
    with abused.connect() as connection:
        create_topic(connection, "asked-twice", partitions=2)
        epochs = [
            OffsetForLeaderTopic(
                topic="asked-twice",
                partitions=[OffsetForLeaderPartition(partition=index, leader_epoch=0) for index in (0, 1, 0)],
            )
        ] * 2
        deletions = [
            DeleteRecordsTopic(
                name="asked-twice",
                partitions=[DeleteRecordsPartition(partition_index=index, offset=0) for index in (0, 1, 0)],
            )
        ] * 2
        producers = [TopicRequest(name="asked-twice", partition_indexes=[0, 1, 0])] * 2
        for request in (
            OffsetForLeaderEpochRequest(topics=epochs),
            DeleteRecordsRequest(topics=deletions, timeout_ms=30_000),
            DescribeProducersRequest(topics=producers),
        ):
            (topic,) = connection.call(request).topics
            assert len(topic.partitions) == 2
            assert {each.error_code for each in topic.partitions} == {ErrorCode.NONE}
