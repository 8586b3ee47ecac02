"""A log directory of one broker fails while the cluster runs: other brokers lead, and the broker stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import klamm
from klamm.client.admin.types import PartitionDescription
from klamm.testing import Cluster
from tests.waiting import wait_until

TOPIC = "kept"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"min.insync.replicas": 2}) as cluster:
        yield cluster


def fail_disk(cluster: Cluster, broker_id: int) -> None:
    node = cluster.broker(broker_id).node
    assert node is not None
    (directory,) = node.log_dirs.directories

    async def fail() -> None:
        node.partitions.take_directory_offline(str(directory.path), OSError("the disk is broken"))

    cluster.broker(broker_id).run(fail())


@pytest.mark.parametrize("is_controller", [True, False], ids=["controller", "other broker"])
def test_leaders_move_off_a_disk_that_fails_and_the_broker_stays(
    cluster: Cluster, is_controller: bool
) -> None:
    with klamm.Admin(cluster.bootstrap) as admin, klamm.Producer(cluster.bootstrap, acks="all") as producer:
        controller = wait_until(lambda: admin.describe_cluster().controller_id, "there is a controller")
        broken = controller if is_controller else next(each for each in cluster.ids if each != controller)
        name = f"{TOPIC}-{is_controller}"
        replicas = [broken, *(each for each in cluster.ids if each != broken)]
        admin.create_topic(name, assignments={0: replicas})

        def partition() -> PartitionDescription:
            return admin.describe_topic(name).partitions[0]

        assert producer.send(name, b"before").result(30).offset == 0
        fail_disk(cluster, broken)
        assert producer.send(name, b"after").result(30).offset == 1
        seen = wait_until(
            lambda: partition() if tuple(partition().offline_replicas) == (broken,) else None,
            lambda: f"the replica is told as offline: {partition()}",
        )
        assert seen.leader != broken and set(seen.in_sync_replicas) == set(replicas) - {broken}
        assert {broker.broker_id for broker in admin.describe_cluster().brokers} == set(cluster.ids)
        cluster.restart(broken)
        wait_until(
            lambda: set(partition().in_sync_replicas) == set(replicas) and not partition().offline_replicas,
            lambda: f"the replica is back: {partition()}",
        )
