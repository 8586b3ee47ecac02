"""What a scrape of real brokers says, against what was done to them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import klamm
from klamm.metrics.names import FAMILIES
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.records.builder import build_batch, number_records
from klamm.testing import Broker, Cluster
from klamm.testing.wire import WireConnection
from tests.metrics.scraping import HTTP, get, get_from, scrape
from tests.waiting import wait_until

TOPICS = "kafka_server_brokertopicmetrics_"
TIMES = "kafka_network_requestmetrics_totaltimems"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(HTTP) as broker:
        yield broker


def create(broker: Broker, topic: str, partitions: int = 1) -> None:
    with klamm.Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions)


def produce(
    connection: WireConnection, topic: str, batch: bytes, *, acks: int = 1, partition: int = 0
) -> int:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])
    answer = connection.call(request, version=9)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def fetch(connection: WireConnection, topic: str, offset: int) -> int:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10_000_000,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    answer = connection.call(request, version=12)
    records = answer.responses[0].partitions[0].records
    return 0 if records is None else len(records)


def test_requests_by_all_ways_are_counted_each_once(broker: Broker) -> None:
    """The first few are decoded, the others take shortcuts."""
    create(broker, "counted")
    before = scrape(broker)
    batch = bytes(build_batch(number_records([(b"k", b"v"), (b"k", b"w")], 1_700_000_000_000)))
    with WireConnection(broker.bootstrap) as connection:
        for _ in range(20):
            assert produce(connection, "counted", batch) == ErrorCode.NONE
        got = sum(fetch(connection, "counted", offset) for offset in range(0, 40, 2))
    after = scrape(broker)
    for name, count in (
        ("messagesin_total", 40),
        ("bytesin_total", 20 * len(batch)),
        ("bytesout_total", got),
        ("totalproducerequests_total", 20),
        ("failedproducerequests_total", 0),
        ("totalfetchrequests_total", 20),
        ("failedfetchrequests_total", 0),
        ("replicationbytesin_total", 0),
    ):
        assert after.value(TOPICS + name, topic="counted") == count, name
    for request in ("Produce", "FetchConsumer", "Fetch"):
        labels = {"request": request}
        counted = after.value(f"{TIMES}_count", **labels) - before.sum(f"{TIMES}_count", **labels)
        assert counted == 20, request
        assert 0 < after.value(TIMES, quantile="0.5", **labels) < 10_000
        assert after.value(f"{TIMES}_sum", **labels) > 0
    assert after.value(f"{TIMES}_count", request="FetchFollower") == 0
    assert after.types[TIMES] == "summary" and after.types[f"{TOPICS}bytesin_total"] == "counter"


def test_what_is_refused_is_counted_as_failed(broker: Broker) -> None:
    create(broker, "refused")
    with WireConnection(broker.bootstrap) as connection:
        damaged = bytearray(build_batch(number_records([(b"k", b"v")], 1_700_000_000_000)))
        damaged[-1] ^= 1
        assert produce(connection, "refused", bytes(damaged)) == ErrorCode.CORRUPT_MESSAGE
        assert fetch(connection, "refused", 1_000) == 0
    seen = scrape(broker)
    assert seen.value(f"{TOPICS}failedproducerequests_total", topic="refused") == 1
    assert seen.value(f"{TOPICS}totalproducerequests_total", topic="refused") == 1
    assert seen.value(f"{TOPICS}failedfetchrequests_total", topic="refused") == 1
    assert seen.value(f"{TOPICS}messagesin_total", topic="refused") == 0


def test_a_deleted_topic_is_gone_from_the_next_scrape(broker: Broker) -> None:
    create(broker, "passing", 2)
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send("passing", b"v", partition=1).result(30)
    seen = scrape(broker)
    assert seen.value("kafka_topic_partition_current_offset", topic="passing", partition=1) == 1
    assert seen.value("kafka_topic_partition_oldest_offset", topic="passing", partition=1) == 0
    assert seen.value("kafka_log_log_size", topic="passing", partition=1) > 0
    with klamm.Admin(broker.bootstrap) as admin:
        admin.delete_topic("passing")
    assert 'topic="passing"' not in get(broker, "/metrics").body


def test_every_metric_has_a_value_and_the_cluster_and_process_are_as_they_are(broker: Broker) -> None:
    create(broker, "any")
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send("any", b"v").result(30)
    read(broker.bootstrap, "any", "any-group", 1)
    seen = scrape(broker)
    assert set(seen.types) == {family.name for family in FAMILIES}
    assert seen.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert seen.value("kafka_controller_kafkacontroller_activebrokercount") == 1
    assert seen.value("kafka_controller_kafkacontroller_offlinepartitionscount") == 0
    partitions = seen.value("kafka_controller_kafkacontroller_globalpartitioncount")
    assert seen.value("kafka_server_replicamanager_leadercount") == partitions > 1
    assert seen.value("kafka_server_replicamanager_partitioncount") == partitions
    assert seen.value("process_resident_memory_bytes") > 10_000_000
    assert 0 < seen.value("process_cpu_seconds_total") <= time.process_time()
    assert 5 < seen.value("process_open_fds") < seen.value("process_max_fds")
    assert abs(seen.value("process_start_time_seconds") - time.time()) < 24 * 3600
    assert 0 < seen.value("klamm_log_directory_free_bytes") <= seen.value("klamm_log_directory_disk_bytes")
    assert seen.value("kafka_server_socketservermetrics_connection_creation_total") >= 3


def test_the_documentation_lists_every_metric_with_its_labels(broker: Broker) -> None:
    create(broker, "listed")
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send("listed", b"v").result(30)
    read(broker.bootstrap, "listed", "listed-group", 1)
    seen = scrape(broker)
    page = (Path(__file__).resolve().parents[2] / "docs/METRICS.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    assert [(name, text) for name, _, text in rows] == [(family.name, family.help) for family in FAMILIES]
    for name, labels, _ in rows:
        present = {label.partition("=")[0] for key in seen.series[name] for label in key}
        assert set(re.findall(r"`(\w+)`", labels)) == present, name


def read(bootstrap: str, topic: str, group: str, count: int) -> None:
    """As a member of a group, which has left when this returns."""
    with klamm.Consumer(bootstrap, group=group, topics=[topic], start="earliest") as consumer:
        seen = 0
        while seen < count:
            seen += len(consumer.poll(timeout=30))
        consumer.commit()


def test_names_of_groups_are_escaped(broker: Broker) -> None:
    create(broker, "read-by-many")
    group = 'a"} 9\nkafka_consumergroup_members 9\\'
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send("read-by-many", b"v").result(30)
    read(broker.bootstrap, "read-by-many", group, 1)
    seen = scrape(broker)
    escaped = 'a\\"} 9\\nkafka_consumergroup_members 9\\\\'
    assert seen.value("kafka_consumergroup_members", consumergroup=escaped) == 0
    assert seen.value("kafka_consumergroup_lag", consumergroup=escaped) == 0
    assert seen.value("kafka_consumergroup_current_offset", consumergroup=escaped) == 1


def test_scrapes_at_the_same_time_share_one_text(broker: Broker) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: get(broker, "/metrics").status, range(40)))
    assert answers == [200] * 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, HTTP) as cluster:
        yield cluster


def test_over_all_brokers_each_partition_and_group_is_told_of_once(cluster: Cluster) -> None:
    """Also the lag of partitions that another broker leads than the one that coordinates their group."""
    with klamm.Admin(cluster.bootstrap) as admin:
        admin.create_topic("spread", 12, replication_factor=2)
    with klamm.Producer(cluster.bootstrap) as producer:
        for number in range(120):
            producer.send("spread", b"v", partition=number % 12)
    groups = [f"group-{number}" for number in range(4)]
    for group in groups:
        read(cluster.bootstrap, "spread", group, 120)
    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(24):
            producer.send("spread", b"v", partition=number % 12)
    seen = [scrape(cluster.broker(broker_id)) for broker_id in cluster.ids]
    for name in (
        "kafka_consumergroup_lag",
        "kafka_consumergroup_current_offset",
        "kafka_topic_partition_current_offset",
        "kafka_topic_partition_oldest_offset",
    ):
        told = [labels for each in seen for labels in each.series.get(name, {}) if 'topic="spread"' in labels]
        wanted = 12 * len(groups) if "group" in name else 12
        assert len(told) == len(set(told)) == wanted, name
    for group in groups:
        assert sum(each.sum("kafka_consumergroup_lag", consumergroup=group) for each in seen) == 24
    assert sum(each.sum(f"{TOPICS}messagesin_total", topic="spread") for each in seen) == 144
    assert sum(each.sum("kafka_topic_partition_current_offset", topic="spread") for each in seen) == 144
    sent = sum(each.sum(f"{TOPICS}replicationbytesout_total", topic="spread") for each in seen)
    assert sent == sum(each.sum(f"{TOPICS}replicationbytesin_total", topic="spread") for each in seen) > 0
    assert sum(each.value("kafka_controller_kafkacontroller_activecontrollercount") for each in seen) == 1
    assert all(each.value(f"{TIMES}_count", request="FetchFollower") > 0 for each in seen)


def test_a_broker_that_is_gone_leaves_partitions_under_replicated_and_lags_unknown(cluster: Cluster) -> None:
    with klamm.Admin(cluster.bootstrap) as admin:
        admin.create_topic("single", 3, replication_factor=1)
        admin.create_topic("tripled", 3, replication_factor=3)
    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        for partition in range(3):
            producer.send("single", b"v", partition=partition).result(30)
    read(cluster.bootstrap, "single", "watchers", 3)
    cluster.kill(3)
    others = [broker_id for broker_id in cluster.ids if broker_id != 3]

    def seen_by_all() -> bool:
        seen = [scrape(cluster.broker(broker_id)) for broker_id in others]
        under = sum(each.value("kafka_server_replicamanager_underreplicatedpartitions") for each in seen)
        without_leader = sum(
            each.sum("kafka_controller_kafkacontroller_offlinepartitionscount") for each in seen
        )
        lags = [key for each in seen for key in each.series.get("kafka_consumergroup_lag", {})
                if 'consumergroup="watchers"' in key]  # fmt: skip
        offsets = [key for each in seen for key in each.series.get("kafka_consumergroup_current_offset", {})
                   if 'consumergroup="watchers"' in key]  # fmt: skip
        return under >= 3 and without_leader == 1 and (len(lags), len(offsets)) == (2, 3)

    wait_until(seen_by_all, "the survivors tell of the partitions of broker 3")
    cluster.start_broker(3)


def test_a_scrape_of_very_many_partitions_leaves_the_loop_free(broker: Broker) -> None:
    create(broker, "very-many", 5_000)
    assert broker.node is not None and broker.node.monitoring is not None
    address = broker.node.monitoring.address
    assert address is not None

    async def longest_pause_s() -> float:
        scraping = asyncio.ensure_future(asyncio.to_thread(get_from, address, "/metrics"))
        longest = 0.0
        while not scraping.done():
            started, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            # The time of this thread: what other processes take of the machine is not the broker's.
            longest = max(longest, min(time.perf_counter() - started, time.thread_time() - used))
        assert scraping.result().body.count('topic="very-many"') >= 15_000
        return longest

    # 2 ms, and 8 ms for a walk that does not pause.
    assert min(broker.run(longest_pause_s()) for _ in range(5)) < 0.006
