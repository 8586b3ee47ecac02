"""The coordinator of a group moves: its members stay members, and what they commit stays committed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from klamm.client.results import TopicPartition
from tests.client.behaviour.members import Member, share
from tests.client.cluster.places import BROKERS, FAILOVER_PATIENCE_S, Place
from tests.client.cluster.traffic import Traffic
from tests.client.faces import Face
from tests.waiting import wait_until

PARTITIONS = 4
RECORDS = 20
"""In each partition, each time."""


class Group:
    """Two members that share a topic, and a producer that fills it."""

    def __init__(self, face: Face, place: Place) -> None:
        self.place = place
        self.topic = place.new_topic(*[[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]])
        self.name = self.topic
        self.partitions = {TopicPartition(self.topic, index) for index in range(PARTITIONS)}
        self.offsets = place.offsets_partition(self.name)
        self._producer = face.producer(**place.at())
        options: dict[str, Any] = {"heartbeat_interval_ms": 200, "enable_auto_commit": False}
        self.members = [
            Member(
                face.consumer(**place.at(), group=self.name, topics=[self.topic], start="earliest", **options)
            )
            for _ in range(2)
        ]
        self._sent = 0

    def __enter__(self) -> Group:
        share(self.members, self.partitions)
        return self

    def __exit__(self, *exception: object) -> None:
        for member in self.members:
            member.stop()

    def fill(self) -> None:
        for number in range(self._sent, self._sent + RECORDS):
            for partition in self.partitions:
                self._producer.send(self.topic, b"%d" % number, partition=partition.partition)
        self._producer.flush()
        self._sent += RECORDS

    def read_and_commit(self) -> None:
        """Wait until the members have read all records; then each commits its positions."""
        goal = self._sent * PARTITIONS

        def is_read() -> bool:
            for member in self.members:
                member._checked(True)
            return sum(len(member.records) for member in self.members) >= goal

        wait_until(is_read, f"{goal} records were read", FAILOVER_PATIENCE_S)
        for member in self.members:
            member.ask(lambda consumer: consumer.commit())
        offsets = self.place.admin.list_group_offsets(self.name)
        assert {partition: offsets[partition].offset for partition in self.partitions} == dict.fromkeys(
            self.partitions, self._sent
        )

    def each_record_came_once(self) -> None:
        came = Counter(
            (record.partition, record.value) for member in self.members for record in member.records
        )
        assert set(came.values()) == {1}
        assert len(came) == self._sent * PARTITIONS

    def rebalances(self) -> list[float]:
        return [member.consumer.counters()["rebalances"] for member in self.members]

    def heartbeats(self) -> list[float]:
        return [member.consumer.counters()["heartbeats"] for member in self.members]

    def wait_for_heartbeats(self) -> None:
        """Wait until each member has heard twice of the coordinator: what was under way counts once."""
        before = self.heartbeats()
        wait_until(
            lambda: all(now >= then + 2 for now, then in zip(self.heartbeats(), before, strict=True)),
            "all members have found the coordinator",
            FAILOVER_PATIENCE_S,
        )


def test_a_coordinator_that_moves(face: Face, place: Place) -> None:
    with Group(face, place) as group:
        group.fill()
        group.read_and_commit()
        rebalances = group.rebalances()
        first = place.leader(group.offsets)
        for broker in [each for each in BROKERS if each != first]:
            place.move_leader(group.offsets, broker)
            group.wait_for_heartbeats()
            assert place.admin.describe_group(group.name).coordinator == broker
            group.fill()
            group.read_and_commit()
        assert group.rebalances() == rebalances, "the members kept their generation"
        group.each_record_came_once()
        described = place.admin.describe_group(group.name)
        assert described.state == "Stable" and len(described.members) == 2


def test_a_broker_that_dies(face: Face, place: Place) -> None:
    """It coordinates the group, and leads the partition of a producer and of a part of the group."""
    partition = TopicPartition(place.new_topic([2, 3, 1], min_insync_replicas=2), 0)
    with Group(face, place) as group:
        place.move_leader(group.offsets, 2)
        group.fill()
        group.read_and_commit()
        rebalances = group.rebalances()
        with Traffic(face, place, partition) as traffic, place.killed(2, partition.topic, group.topic):
            traffic.go_on()
            group.wait_for_heartbeats()
            group.fill()
            group.read_and_commit()
        assert group.rebalances() == rebalances, "the members kept their generation"
        group.each_record_came_once()
