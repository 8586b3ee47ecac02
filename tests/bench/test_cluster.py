"""What the bench of clusters does, in small, on a cluster of Klamm: topics, acknowledged records, a leader
that is killed, a follower that returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bench.cluster import brokers, catch_up, section
from bench.cluster.brokers import IDS, Cluster, KlammCluster
from bench.cluster.leading import take_a_record_each
from bench.workers import run_worker

from bench import wire
from klamm.protocol.apis import ApiKey
from klamm.protocol.headers import encode_response_frame
from klamm.protocol.messages.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

RECORD_SIZE = 100


@pytest.mark.parametrize("rack", [None, "a-rack"])
def test_metadata_is_read_as_the_codec_writes_it(rack: str | None) -> None:
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092, rack=rack)] * 2,
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="numbers",
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index, leader_id=2, replica_nodes=[2, 3], isr_nodes=[2]
                    )
                    for index in range(3)
                ],
            )
        ],
    )
    frame = b"".join(encode_response_frame(ApiKey.METADATA, wire.METADATA_VERSION, 7, response))
    assert wire.read_metadata(frame[4:]) == [wire.PartitionState(index, 2, (2,)) for index in range(3)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with brokers.started(lambda: KlammCluster(tmp_path_factory.mktemp("cluster"))) as one:
        yield one


@pytest.mark.long
def test_clients_send_with_acks_all(cluster: Cluster) -> None:
    with brokers.topic(cluster, 2) as name:
        take_a_record_each(cluster, name, brokers.partitions_of(cluster, name))
        for client in section.CLIENTS:
            where: dict[str, Any] = section.addressed(client, cluster, name)
            limits = {"record_size": RECORD_SIZE, "seconds": 30.0, "max_records": 10_000}
            sent = run_worker(section.WORKER, "send", {**where, "partition_count": 2, **limits})
            assert sent["records"] > 0
            paced = {"rate": 200, "seconds": 1.0, "skipped_seconds": 0.1}
            done = run_worker(section.WORKER, "pace", {**where, **paced})
            assert 0 < done["p50_ms"] <= done["p99_ms"]
    assert not list(cluster.data_dir(1).glob(f"{name}-*")), "the topic is gone when it has been measured"


@pytest.mark.long
def test_a_leader_is_killed_and_returns(cluster: Cluster) -> None:
    figures = section.measure_gap(cluster, victim=2)
    assert figures.keys() == {
        "until another leads s",
        *(section.gap_metric(client) for client in section.CLIENTS.values()),
    }
    assert cluster.running == list(IDS)


@pytest.mark.long
def test_a_follower_returns(cluster: Cluster) -> None:
    assert catch_up.measure(cluster, 20_000_000)["MB/s"] > 0
    assert cluster.running == list(IDS)
    assert catch_up.measure_copy(cluster, 20_000_000)["MB/s"] > 0
    assert cluster.running == list(IDS)
