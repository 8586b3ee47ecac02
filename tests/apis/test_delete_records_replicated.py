"""DeleteRecords in a cluster: the answer waits for the replicas on all living brokers."""

from __future__ import annotations

import klamm
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.testing import Cluster
from klamm.testing.wire import WireConnection

TOPIC = "shortened"


def delete(cluster: Cluster, leader: int, offset: int, timeout_ms: int = 30_000) -> tuple[ErrorCode, int]:
    """The error code, and the low watermark that is told."""
    asked = DeleteRecordsTopic(
        name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    with WireConnection(cluster.address(leader)) as wire:
        answer = wire.call(DeleteRecordsRequest(topics=[asked], timeout_ms=timeout_ms), 2)
    (result,) = answer.topics[0].partitions
    return ErrorCode(result.error_code), result.low_watermark


def log_starts(cluster: Cluster) -> list[int]:
    nodes = [cluster.broker(broker_id).node for broker_id in cluster.running]
    return [node.partitions.get(TOPIC, 0).log.log_start_offset for node in nodes if node is not None]


def test_records_are_deleted_on_all_living_replicas_before_the_answer() -> None:
    with Cluster(brokers=3) as cluster:
        with klamm.Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, 3)
            leader = admin.describe_topic(TOPIC).partitions[0].leader
            controller = admin.describe_cluster().controller_id
        assert leader is not None
        follower = next(each for each in cluster.ids if each not in (leader, controller))
        with klamm.Producer(cluster.bootstrap, acks="all") as producer:
            for _ in range(5):
                producer.send(TOPIC, b"value").result(30)
        assert delete(cluster, leader, 3) == (ErrorCode.NONE, 3)
        assert log_starts(cluster) == [3, 3, 3]
        cluster.partition(leader, follower)
        assert delete(cluster, leader, 4, timeout_ms=300) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        cluster.kill(follower)
        assert delete(cluster, leader, 5) == (ErrorCode.NONE, 5), "nobody waits for the dead"
        assert log_starts(cluster) == [5, 5]
