"""Stopping in good order, and what must be the same afterwards."""

from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.abuse.calls import batch_of, create_topic, produce, read_all, values_of
from tests.faults.checks import (
    check_disk,
    check_gapless,
    check_producer,
    committed_offset,
    make_coordinator,
    read_numbers,
)
from tests.faults.load import Committer, IdempotentProducer, Partition, SimpleProducer

TOPIC_RESOURCE = 2
RECOVERY = "was not closed cleanly"


def topic_ids(connection: WireConnection, *names: str) -> dict[str, tuple[bytes, int, int]]:
    """By name: id, error code and number of partitions."""
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    return {
        topic.name: (topic.topic_id, topic.error_code, len(topic.partitions))
        for topic in connection.call(asked).topics
    }


def setting(connection: WireConnection, topic: str, name: str) -> str:
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name]
    )
    (result,) = connection.call(DescribeConfigsRequest(resources=[resource])).results
    value: str = result.configs[0].value
    return value


def new_producer_id(connection: WireConnection) -> int:
    answer = connection.call(InitProducerIdRequest(transactional_id=None))
    assert answer.error_code == ErrorCode.NONE
    producer_id: int = answer.producer_id
    return producer_id


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_all_is_as_it_was(broker: BrokerProcess, ending: str) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "kept", partitions=3, configs={"retention.ms": 123_456_789})
        produce(connection, "kept", batch_of(b"one", b"two"))
        ids_before = topic_ids(connection, "kept")
        cluster_before = connection.call(MetadataRequest(topics=[])).cluster_id
        make_coordinator(connection, "group")
        Committer(broker.bootstrap, "committer", "group", Partition("kept", 1)).work_once(connection)
    getattr(broker, ending)()
    broker.start()
    assert broker.log().count(RECOVERY) == (1 if ending == "kill" else 0)
    with WireConnection(broker.bootstrap) as connection:
        assert topic_ids(connection, "kept") == ids_before
        assert connection.call(MetadataRequest(topics=[])).cluster_id == cluster_before
        assert setting(connection, "kept", "retention.ms") == "123456789"
        assert produce(connection, "kept", batch_of(b"three")).base_offset == 2
        assert values_of(read_all(connection, "kept")) == [b"one", b"two", b"three"]
        assert committed_offset(connection, "group", Partition("kept", 1)) == 0


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_retried_batch_is_known_after_a_restart(broker: BrokerProcess, ending: str) -> None:
    """The answer was lost with the broker; the producer sends again and must not write twice."""
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "retried")
        producer_id = new_producer_id(connection)

        def batch(sequence: int) -> bytearray:
            return batch_of(
                b"%d" % sequence, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
            )

        offsets = [produce(connection, "retried", batch(sequence)).base_offset for sequence in range(7)]
    getattr(broker, ending)()
    broker.start()
    with WireConnection(broker.bootstrap) as connection:
        for sequence in range(2, 7):
            answer = produce(connection, "retried", batch(sequence))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, offsets[sequence])
        assert produce(connection, "retried", batch(9)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(connection, "retried", batch(7)).base_offset == 7
        assert values_of(read_all(connection, "retried")) == [b"%d" % number for number in range(8)]


def test_producer_ids_are_never_given_twice(broker: BrokerProcess) -> None:
    given: list[int] = []
    for ending in ("stop", "kill", "stop", "kill"):
        with WireConnection(broker.bootstrap) as connection:
            given += [new_producer_id(connection) for _ in range(5)]
        getattr(broker, ending)()
        broker.start()
    assert len(set(given)) == len(given)


def test_what_was_deleted_does_not_come_back(broker: BrokerProcess) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "gone")
        create_topic(connection, "shortened")
        for name in ("gone", "shortened"):
            produce(connection, name, batch_of(b"a", b"b", b"c"))
        asked = DeleteRecordsPartition(partition_index=0, offset=2)
        connection.call(
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="shortened", partitions=[asked])], timeout_ms=10_000
            )
        )
        connection.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=10_000))
    broker.kill()
    broker.start()
    with WireConnection(broker.bootstrap) as connection:
        (_, code, _) = topic_ids(connection, "gone")["gone"]
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert values_of(read_all(connection, "shortened", offset=2)) == [b"c"]
        # The name is free, and nothing of the old topic is in the new one.
        create_topic(connection, "gone")
        assert produce(connection, "gone", batch_of(b"new")).base_offset == 0
    broker.stop()
    check_disk(broker.data_dir)
    broker.start()


def test_a_pause_is_not_a_death(broker: BrokerProcess) -> None:
    """SIGSTOP under load until clients give up waiting, then SIGCONT: everybody goes on, nothing is lost."""
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "paused", partitions=2)
    loads = [
        SimpleProducer(broker.bootstrap, "simple", Partition("paused", 0), 100),
        IdempotentProducer(broker.bootstrap, "idempotent", Partition("paused", 1), 100),
    ]
    for load in loads:
        load.answer_timeout_s = 2.0
        load.start()
    for load in loads:
        load.wait_for_more(100)
    with (
        broker.paused(),
        pytest.raises(TimeoutError),
        WireConnection(broker.bootstrap, timeout_s=2.5) as connection,
    ):
        connection.call(MetadataRequest(topics=[]))
    for load in loads:
        load.wait_for_more(100)
    for load in loads:
        load.finish()
    with WireConnection(broker.bootstrap) as connection:
        for load in loads:
            read = read_numbers(connection, load.partition)[load.name]
            check_producer(load.name, read, load.acknowledged)
        check_gapless("idempotent", read)
