"""Names as long as the older versions allow: an answer that repeats them must still be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.k33_alter_configs import AlterConfigsRequest, AlterConfigsResource
from klamm.protocol.messages.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

LONGEST = "x" * 32_767


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def code_of(answer: Any) -> int:
    for name in ("responses", "results", "partition_responses"):
        if getattr(answer, name, None):
            return code_of(getattr(answer, name)[0])
    code: int = answer.error_code
    return code


@pytest.mark.parametrize(
    ("request_", "version", "code"),
    [
        (
            ProduceRequest(
                acks=-1,
                timeout_ms=1000,
                topic_data=[TopicProduceData(name=LONGEST, partition_data=[PartitionProduceData(index=0)])],
            ),
            8,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name=LONGEST)]),
            1,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=LONGEST, count=3)], timeout_ms=1000),
            1,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_names_it(broker: Broker, request_: Any, version: int, code: ErrorCode) -> None:
    with WireConnection(broker.bootstrap) as wire:
        assert code_of(wire.call(request_, version)) == code


def test_a_member_that_bears_it(broker: Broker) -> None:
    assert broker.node is not None
    broker.run(broker.node.cluster.ensure_offsets_topic())
    broker.run(broker.node.groups.wait_until_loaded([broker.node.groups.partition_for("g")]))
    with WireConnection(broker.bootstrap) as wire:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            group_instance_id=LONGEST,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        assert wire.call(request, 5).error_code == ErrorCode.NONE
