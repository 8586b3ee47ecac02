"""Every test of this folder runs over three brokers of Klamm, three of Apache Kafka, and these over TLS.

The clusters serve the whole session, so tests use topics and groups of their own, and bring back the brokers
that they kill. `make test` runs Klamm with both faces, Apache Kafka with one, and a few tests over TLS
(OVER_TLS); `make test-long` runs all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.testing import Cluster
from tests.client.cluster.places import BROKERS, Place
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_complains, nothing_leaks
from tests.client.secured import Certificates
from tests.conftest import cannot_run
from tests.peers.apache_kafka_cluster import DEFAULTS, ApacheKafkaCluster
from tests.peers.kafka_jars import PeerMissing

RACKS = [f"rack-{broker}" for broker in BROKERS]

OVER_TLS = {"test_leaders_that_are_elected", "test_a_coordinator_that_moves"}
"""The tests that `make test` runs over TLS."""

SLOW_ON_KAFKA = {
    "test_a_broker_that_dies",
    "test_a_preferred_replica_that_is_dead",
    "test_replicas_that_are_eligible_to_lead",
    "test_the_replica_of_the_rack_dies",
}
"""Brokers of Apache Kafka take seconds to be missed; `make test` moves leaders and coordinators instead."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            peer, name = parameters.get("shared_place"), item.originalname
            if (
                (peer == "kafka-tls" and name not in OVER_TLS)
                or (peer != "klamm" and parameters.get("face") == "plain")
                or (peer == "kafka" and name in SLOW_ON_KAFKA)
            ):
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="package")
def klamm_place() -> Iterator[Place]:
    config = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": DEFAULTS["offsets.topic.num.partitions"],
        "replica.selector.class": DEFAULTS["replica.selector.class"],
    }
    with Cluster(len(BROKERS), config, racks=RACKS) as cluster:
        addresses = {broker: cluster.address(broker) for broker in BROKERS}
        yield Place("klamm", cluster, addresses)


@pytest.fixture(scope="package")
def kafka_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    """For this folder only: three idle nodes of Apache Kafka take a tenth of a core."""
    try:
        certificates = Certificates(tmp_path_factory.mktemp("certificates"))
        kafka = ApacheKafkaCluster(
            len(BROKERS),
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates.broker),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(certificates.authority),
            },
            listeners={"TLS": "SSL"},
            advertised_host="localhost",
        )
    except PeerMissing as problem:
        cannot_run(problem)
    with kafka:
        addresses = {broker: kafka.address(broker) for broker in BROKERS}
        tls_addresses = {broker: kafka.address(broker, "TLS") for broker in BROKERS}
        tls = {"security_protocol": "SSL", "ssl_ca_location": str(certificates.authority)}
        yield {
            "kafka": Place("kafka", kafka, addresses),
            "kafka-tls": Place("kafka-tls", kafka, tls_addresses, tls),
        }


@pytest.fixture(params=["klamm", "kafka", "kafka-tls"], scope="package")
def shared_place(request: pytest.FixtureRequest) -> Place:
    if request.param == "klamm":
        found: Place = request.getfixturevalue("klamm_place")
    else:
        found = request.getfixturevalue("kafka_places")[request.param]
    return found


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    yield shared_place
    shared_place.close_admin()


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, place: Place) -> Iterator[Face]:
    ports = {int(address.rpartition(":")[2]) for address in place.addresses.values()}
    with nothing_complains():
        face = FACES[request.param]()
        with nothing_leaks(face.loop, to_ports=ports):
            yield face
            face.close_clients()
            place.close_admin()
        face.close()
