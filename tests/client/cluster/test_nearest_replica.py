"""A consumer that names its rack reads from the replica there (KIP-392), while there is one."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.client.results import TopicPartition
from tests.client.cluster.places import BROKERS, FAILOVER_PATIENCE_S, Place
from tests.client.faces import Face
from tests.client.leaks import client_sockets, remote_port
from tests.client.reading import collect, poll_until, values

LEADER, FOLLOWER = 1, 3


def connected_brokers(place: Place) -> set[int]:
    """The brokers that clients of this process are connected to."""
    ports = {remote_port(ends) for ends in client_sockets().values()}
    return {broker for broker in BROKERS if int(place.addresses[broker].rpartition(":")[2]) in ports}


def partition_with_a_record(place: Place, face: Face) -> TopicPartition:
    topic = place.new_topic([LEADER, 2, FOLLOWER])
    with face.producer(**place.at(LEADER)) as producer:
        producer.send(topic, b"first", partition=0).result()
    place.close_admin()
    return TopicPartition(topic, 0)


def read_one_more(face: Face, place: Place, consumer: Any, partition: TopicPartition) -> None:
    with face.producer(**place.at(LEADER)) as producer:
        producer.send(partition.topic, b"more", partition=0).result()
    assert values(collect(consumer, 1)) == [b"more"]


def test_the_replica_of_the_rack(face: Face, place: Place) -> None:
    partition = partition_with_a_record(place, face)
    with face.consumer(**place.at(LEADER), start="earliest", client_rack=f"rack-{FOLLOWER}") as consumer:
        consumer.assign([partition])
        assert values(collect(consumer, 1)) == [b"first"]
        poll_until(consumer, lambda: FOLLOWER in connected_brokers(place), "it fetches from the follower")
        read_one_more(face, place, consumer, partition)


@pytest.mark.parametrize("rack", [None, f"rack-{LEADER}", "elsewhere"])
def test_no_replica_is_nearer_than_the_leader(face: Face, place: Place, rack: str | None) -> None:
    partition = partition_with_a_record(place, face)
    options = {} if rack is None else {"client_rack": rack}
    with face.consumer(**place.at(LEADER), start="earliest", **options) as consumer:
        consumer.assign([partition])
        assert values(collect(consumer, 1)) == [b"first"]
        for _ in range(2):
            read_one_more(face, place, consumer, partition)
        assert connected_brokers(place) == {LEADER}


def test_the_replica_of_the_rack_dies(face: Face, place: Place) -> None:
    partition = partition_with_a_record(place, face)
    with face.consumer(**place.at(LEADER), start="earliest", client_rack=f"rack-{FOLLOWER}") as consumer:
        consumer.assign([partition])
        collect(consumer, 1)
        poll_until(consumer, lambda: FOLLOWER in connected_brokers(place), "it fetches from the follower")
        with place.killed(FOLLOWER, partition.topic):
            with face.producer(**place.at(LEADER)) as producer:
                producer.send(partition.topic, b"more", partition=0).result(FAILOVER_PATIENCE_S)
            assert values(collect(consumer, 1, FAILOVER_PATIENCE_S)) == [b"more"]
