"""While the metadata store or the disk fails, requests are answered with an error; no client is cut off."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from klamm.coordination.store import Unavailable
from klamm.model.errors import ErrorCode
from klamm.protocol.messages import k19_create_topics as m19
from klamm.protocol.messages import k20_delete_topics as m20
from klamm.protocol.messages import k21_delete_records as m21
from klamm.protocol.messages import k33_alter_configs as m33
from klamm.protocol.messages import k37_create_partitions as m37
from klamm.protocol.messages import k44_incremental_alter_configs as m44
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.protocol.schema import Message
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

TOPIC = 2

NEED_THE_STORE: dict[str, Message] = {
    "InitProducerId": InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
    "CreateTopics": m19.CreateTopicsRequest(
        topics=[m19.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b")]
    ),
    "DeleteTopics": m20.DeleteTopicsRequest(topics=[m20.DeleteTopicState(name="known")]),
    "CreatePartitions": m37.CreatePartitionsRequest(
        topics=[m37.CreatePartitionsTopic(name="known", count=5, assignments=None)]
    ),
    "Metadata": MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True),
    "FindCoordinator": FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
    "AlterConfigs": m33.AlterConfigsRequest(
        resources=[m33.AlterConfigsResource(resource_type=TOPIC, resource_name="known")]
    ),
    "IncrementalAlterConfigs": m44.IncrementalAlterConfigsRequest(
        resources=[
            m44.AlterConfigsResource(
                resource_type=TOPIC,
                resource_name="known",
                configs=[m44.AlterableConfig(name="retention.ms", config_operation=0, value="5")],
            )
        ]
    ),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with WireConnection(broker.bootstrap) as wire:
            topic = m19.CreatableTopic(name="known", num_partitions=1, replication_factor=1)
            wire.call(m19.CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        yield broker


@pytest.fixture
def _no_store(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> Any:
        raise Unavailable("no answer")

    def unavailable(*_: object) -> Awaitable[Any]:
        return fail()

    assert broker.node is not None
    for name in ("get", "list", "txn"):
        monkeypatch.setattr(broker.node._store, name, unavailable)


LISTS = ("topics", "responses", "results", "coordinators")


def codes_in(response: Any) -> list[int]:
    """The error code of each element of the answer, or of the answer itself."""
    elements = next((getattr(response, name) for name in LISTS if hasattr(response, name)), [response])
    return [each.error_code for each in elements]


@pytest.mark.usefixtures("_no_store")
@pytest.mark.parametrize("name", NEED_THE_STORE)
def test_a_store_that_does_not_answer(broker: Broker, name: str) -> None:
    with WireConnection(broker.bootstrap) as wire:
        for _ in range(2):  # the second finds a broker that does not know what its store holds
            codes = codes_in(wire.call(NEED_THE_STORE[name]))
            assert codes and all(ErrorCode(code).retriable for code in codes)


def test_a_disk_that_takes_no_new_log_start(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert broker.node is not None
    monkeypatch.setattr(broker.node.log_dirs, "write_log_start_checkpoints", full)
    partitions = [m21.DeleteRecordsPartition(partition_index=index, offset=0) for index in (0, 7)]
    topics = [m21.DeleteRecordsTopic(name="known", partitions=partitions)]
    with WireConnection(broker.bootstrap) as wire:
        (topic,) = wire.call(m21.DeleteRecordsRequest(topics=topics, timeout_ms=1000)).topics
    assert [each.error_code for each in topic.partitions] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
