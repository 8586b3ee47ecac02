"""The disk of a broker of a cluster is full: other brokers lead until it has room."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.admin.types import PartitionDescription
from klamm.model.errors import ErrorCode
from klamm.node import housekeeping
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.testing import Cluster
from klamm.testing.wire import WireConnection
from tests.faulty_disk import replace_below
from tests.waiting import wait_until

LAG_TIME_MAX_MS = 6_000
"""Twice in this time a leader proposes again that a replica joins the ISR, if the controller refused it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"min.insync.replicas": 1, "replica.lag.time.max.ms": LAG_TIME_MAX_MS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(housekeeping, "ROOM_INTERVAL_MS", 100)
        with Cluster(brokers=3, config=config) as cluster:
            yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[klamm.Admin]:
    with klamm.Admin(cluster.bootstrap) as admin:
        yield admin


class Disk:
    """The disk of one broker, or of several."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
        self.is_full = False
        self.error = errno.ENOSPC
        pwrite, statvfs = os.pwrite, os.statvfs

        def write(file: int, *arguments: Any) -> int:
            if self.is_full and os.readlink(f"/proc/self/fd/{file}").endswith(".log"):
                raise OSError(self.error, os.strerror(self.error))
            return pwrite(file, *arguments)

        def look(path: str) -> os.statvfs_result:
            found = statvfs(path)
            return os.statvfs_result([*found[:3], 0, 0, *found[5:]]) if self.is_full else found

        for directory in directories:
            replace_below(directory, monkeypatch, "pwrite", write)
            replace_below(directory, monkeypatch, "statvfs", look)


def disk_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *ids: int) -> Disk:
    return Disk(monkeypatch, *(cluster.data_dir / f"broker-{each}" for each in ids))


def partition_of(admin: klamm.Admin, topic: str) -> PartitionDescription:
    return admin.describe_topic(topic).partitions[0]


def is_whole(partition: PartitionDescription) -> bool:
    return set(partition.in_sync_replicas) == set(partition.replicas) and not partition.offline_replicas


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_another_replica_leads_until_there_is_room(
    cluster: Cluster, admin: klamm.Admin, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    topic = f"of-a-{role}"
    full, *others = cluster.ids
    replicas = [full, *others] if role == "leader" else [*others, full]
    admin.create_topic(topic, assignments={0: replicas})
    disk = disk_of(cluster, monkeypatch, full)
    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        assert producer.send(topic, b"before").result(30).offset == 0
        disk.is_full = True
        assert producer.send(topic, b"meanwhile").result(30).offset == 1
        found = wait_until(
            lambda: seen if (seen := partition_of(admin, topic)).offline_replicas else None,
            lambda: f"the replica is told as offline: {partition_of(admin, topic)}",
        )
        assert (found.leader, tuple(found.offline_replicas)) == (others[0], (full,))
        assert set(found.in_sync_replicas) == set(others)
        disk.is_full = False
        wait_until(lambda: is_whole(partition_of(admin, topic)), "the replica is in sync again")
        assert producer.send(topic, b"after").result(30).offset == 2


def test_the_last_member_of_an_isr_leads_on_and_is_read(
    cluster: Cluster, admin: klamm.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "on-one-disk"
    admin.create_topic(topic, assignments={0: list(cluster.ids)})
    disk = disk_of(cluster, monkeypatch, *cluster.ids)
    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        assert producer.send(topic, b"before").result(30).offset == 0
        disk.is_full = True
        sent = producer.send(topic, b"when there is room")
        wait_until(
            lambda: len(partition_of(admin, topic).in_sync_replicas) == 1, "all others have left the ISR"
        )
        assert partition_of(admin, topic).leader in partition_of(admin, topic).in_sync_replicas
        with klamm.Consumer(cluster.bootstrap, topics=[topic], start="earliest") as consumer:
            assert next(iter(consumer)).value == b"before"
        disk.is_full = False
        assert sent.result(60).offset == 1
    wait_until(lambda: is_whole(partition_of(admin, topic)), "all replicas are in sync again")


def test_a_disk_that_is_broken_is_not_used_again(
    admin: klamm.Admin, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with an error of its own may have room: then its replicas came back again and again."""
    topics = ["written", "not-written"]
    broken, *others = cluster.ids
    for topic in topics:
        admin.create_topic(topic, assignments={0: [broken, *others]})
    disk = disk_of(cluster, monkeypatch, broken)
    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        assert producer.send("written", b"before").result(30).offset == 0
        disk.is_full, disk.error = True, errno.EIO
        assert producer.send("written", b"meanwhile").result(30).offset == 1
        disk.is_full = False
        for topic in topics:
            wait_until(
                lambda topic=topic: tuple(partition_of(admin, topic).offline_replicas) == (broken,),
                "all replicas of the disk are offline",
            )
        node = cluster.broker(broken).node
        assert node is not None
        assert all(partition.is_offline for partition in node.partitions)
        cluster.restart(broken)
        wait_until(lambda: is_whole(partition_of(admin, "written")), "a restart takes the disk again")


def test_the_coordinator_of_a_group_is_named_by_a_broker_whose_own_replica_is_offline(
    cluster: Cluster, admin: klamm.Admin
) -> None:
    asked = cluster.ids[0]

    def coordinator() -> tuple[int, int]:
        with WireConnection(cluster.broker(asked).bootstrap) as connection:
            found = connection.call(FindCoordinatorRequest(coordinator_keys=["g"])).coordinators[0]
            return found.error_code, found.node_id

    wait_until(lambda: coordinator()[0] == ErrorCode.NONE, "the group has a coordinator")
    node = cluster.broker(asked).node
    assert node is not None
    topic = admin.describe_topic("__consumer_offsets")
    led_elsewhere = {each.partition: "a test" for each in topic.partitions if each.leader != asked}
    offline = node.partitions.offline
    places = {("__consumer_offsets", index): reason for index, reason in led_elsewhere.items()}
    before = coordinator()
    offline.unwritable.update(places)
    try:
        assert coordinator() == before
    finally:
        for place in places:
            offline.unwritable.pop(place, None)
