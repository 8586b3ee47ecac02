"""Kafka's own command-line tools work on the broker, and print what they print on Kafka."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import NewTopic, unique
from tests.clients.contract import PATIENCE_SECONDS
from tests.clients.java_tools import TOOLS, JavaTools
from tests.clients.remote import java_command
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing

SERVER = ("--bootstrap-server", "{bootstrap}")

# What Apache Kafka 4.3.0 advertises, for the keys that Klamm serves.
SERVED_VERSIONS = {
    "Produce(0)": "0 to 13",
    "Fetch(1)": "4 to 18",
    "ListOffsets(2)": "1 to 11",
    "Metadata(3)": "0 to 13",
    "OffsetCommit(8)": "2 to 10",
    "OffsetFetch(9)": "1 to 10",
    "FindCoordinator(10)": "0 to 6",
    "JoinGroup(11)": "0 to 9",
    "Heartbeat(12)": "0 to 4",
    "LeaveGroup(13)": "0 to 5",
    "SyncGroup(14)": "0 to 5",
    "DescribeGroups(15)": "0 to 6",
    "ListGroups(16)": "0 to 5",
    "ApiVersions(18)": "0 to 4",
    "CreateTopics(19)": "2 to 7",
    "DeleteTopics(20)": "1 to 6",
    "DeleteRecords(21)": "0 to 2",
    "InitProducerId(22)": "0 to 5",
    "OffsetForLeaderEpoch(23)": "2 to 4",
    "DescribeAcls(29)": "1 to 3",
    "CreateAcls(30)": "1 to 3",
    "DeleteAcls(31)": "1 to 3",
    "DescribeConfigs(32)": "1 to 4",
    "AlterConfigs(33)": "0 to 2",
    "AlterReplicaLogDirs(34)": "1 to 2",
    "DescribeLogDirs(35)": "1 to 5",
    "CreatePartitions(37)": "0 to 3",
    "DeleteGroups(42)": "0 to 2",
    "ElectLeaders(43)": "0 to 2",
    "IncrementalAlterConfigs(44)": "0 to 1",
    "AlterPartitionReassignments(45)": "0 to 1",
    "ListPartitionReassignments(46)": "0",
    "OffsetDelete(47)": "0",
    "DescribeCluster(60)": "0 to 2",
    "DescribeProducers(61)": "0",
    "UnregisterBroker(64)": "0",
    "ConsumerGroupHeartbeat(68)": "0 to 1",
    "ConsumerGroupDescribe(69)": "0 to 1",
    "ListConfigResources(74)": "0 to 1",
    "DescribeTopicPartitions(75)": "0",
    "ShareGroupHeartbeat(76)": "1",
    "ShareGroupDescribe(77)": "1",
    "ShareFetch(78)": "1 to 2",
    "ShareAcknowledge(79)": "1 to 2",
    "StreamsGroupHeartbeat(88)": "0",
    "StreamsGroupDescribe(89)": "0",
    "DescribeShareGroupOffsets(90)": "0 to 1",
    "AlterShareGroupOffsets(91)": "0",
    "DeleteShareGroupOffsets(92)": "0",
}


@pytest.fixture(scope="module")
def tools(bootstrap: str) -> Iterator[JavaTools]:
    try:
        made = JavaTools(bootstrap)
    except PeerMissing as problem:
        cannot_run(problem)
    yield made
    made.close()


def columns(printed: str) -> list[list[str]]:
    """The rows of a table as tools print them, without its head."""
    rows = [line.split() for line in printed.splitlines() if line.strip()]
    return rows[1:]


def test_topics(tools: JavaTools) -> None:
    topic = unique("tool")
    made = tools.run(
        *("topics", *SERVER, "--create", "--topic", topic, "--partitions", "3"),
        *("--replication-factor", "1", "--config", "retention.ms=99000"),
    )
    assert made.strip() == f"Created topic {topic}."
    assert topic in tools.run("topics", *SERVER, "--list").split()

    head, *partitions = tools.run("topics", *SERVER, "--describe", "--topic", topic).splitlines()
    assert re.search(r"TopicId: [\w-]{22}\tPartitionCount: 3\tReplicationFactor: 1\t", head)
    assert "retention.ms=99000" in head
    assert [line.strip().split("\t")[1:5] for line in partitions] == [
        [f"Partition: {number}", "Leader: 1", "Replicas: 1", "Isr: 1"] for number in range(3)
    ]

    tools.run("topics", *SERVER, "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in tools.run("topics", *SERVER, "--describe", "--topic", topic)
    again = tools.try_run("topics", *SERVER, "--create", "--topic", topic)
    assert again.status == 1
    assert topic in again.printed and "exist" in again.printed

    tools.run("topics", *SERVER, "--delete", "--topic", topic)
    gone = tools.try_run("topics", *SERVER, "--describe", "--topic", topic)
    assert gone.status == 1
    assert f"Topic '{topic}' does not exist" in gone.printed


def described(tools: JavaTools, *entity: str) -> dict[str, str]:
    printed = tools.run("configs", *SERVER, "--describe", *entity)
    return dict(re.findall(r"^  ([\w.]+)=(.*?) sensitive=", printed, re.MULTILINE))


def test_configurations_of_topics(tools: JavaTools, new_topic: NewTopic) -> None:
    entity = ("--entity-type", "topics", "--entity-name", new_topic())
    changes = "max.message.bytes=5000,cleanup.policy=[compact,delete]"
    tools.run("configs", *SERVER, "--alter", *entity, "--add-config", changes)
    assert described(tools, *entity) == {"max.message.bytes": "5000", "cleanup.policy": "compact,delete"}
    tools.run("configs", *SERVER, "--alter", *entity, "--delete-config", "cleanup.policy")
    assert described(tools, *entity) == {"max.message.bytes": "5000"}
    assert described(tools, *entity, "--all")["cleanup.policy"] == "delete"
    refused = tools.try_run("configs", *SERVER, "--alter", *entity, "--add-config", "segment.bytes=tiny")
    assert refused.status == 1
    assert "InvalidConfigurationException" in refused.complained


def test_configurations_of_brokers(tools: JavaTools) -> None:
    every_broker = ("--entity-type", "brokers", "--entity-default")
    this_broker = ("--entity-type", "brokers", "--entity-name", "1")
    tools.run("configs", *SERVER, "--alter", *every_broker, "--add-config", "log.retention.ms=777000000")
    try:
        assert described(tools, *every_broker)["log.retention.ms"] == "777000000"
        assert described(tools, *this_broker, "--all")["log.retention.ms"] == "777000000"
    finally:
        tools.run("configs", *SERVER, "--alter", *every_broker, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in described(tools, *every_broker)
    refused = tools.try_run(
        "configs",
        *SERVER,
        "--alter",
        *this_broker,
        "--add-config",
        "listeners=PLAINTEXT://elsewhere.invalid:1",
    )
    assert refused.status == 1
    assert "cannot listen on elsewhere.invalid:1" in refused.complained


def test_performance_tools_and_offsets(tools: JavaTools, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    printed = tools.run(
        *("producer-performance", *SERVER, "--topic", topic, "--num-records", "5000"),
        *("--record-size", "100", "--throughput", "-1", "--producer-props", "acks=all"),
    )
    assert printed.splitlines()[-1].startswith("5000 records sent")
    row = tools.run("consumer-performance", *SERVER, "--topic", topic, "--num-records", "5000").splitlines()[
        -1
    ]
    assert row.split(", ")[4] == "5000"

    ends = dict(line.rsplit(":", 1) for line in tools.run("get-offsets", *SERVER, "--topic", topic).split())
    assert set(ends) == {f"{topic}:0", f"{topic}:1"}
    assert sum(map(int, ends.values())) == 5_000
    earliest = tools.run("get-offsets", *SERVER, "--topic", topic, "--time", "earliest")
    assert earliest.split() == [f"{topic}:0:0", f"{topic}:1:0"]
    with_timestamps = tools.run("get-offsets", *SERVER, "--topic", topic, "--time", "max-timestamp").split()
    for line in with_timestamps:
        partition, offset = line.rsplit(":", 1)
        assert 0 <= int(offset) < int(ends[partition])


def test_latency_tool(tools: JavaTools, new_topic: NewTopic) -> None:
    printed = tools.run(
        *("end-to-end-latency", *SERVER, "--topic", new_topic(), "--num-records", "200"),
        *("--producer-acks", "all", "--record-size", "100"),
    )
    assert "Avg latency" in printed


def test_consumer_groups(tools: JavaTools, new_topic: NewTopic) -> None:
    topic, group = new_topic(), unique("tool-group")
    tools.run(
        *("console-producer", *SERVER, "--topic", topic),
        given="".join(f"line {number}\n" for number in range(20)),
    )
    read = tools.run(
        *("console-consumer", *SERVER, "--topic", topic, "--group", group),
        *("--from-beginning", "--max-messages", "7"),
    )
    assert read.splitlines() == [f"line {number}" for number in range(7)]

    def lag() -> list[list[str]]:
        return columns(tools.run("consumer-groups", *SERVER, "--describe", "--group", group))

    assert group in tools.run("consumer-groups", *SERVER, "--list").split()
    states = dict(columns(tools.run("consumer-groups", *SERVER, "--list", "--state")))
    assert states[group] == "Empty"
    assert [row[:6] for row in lag()] == [[group, topic, "0", "7", "20", "13"]]
    (state,) = columns(tools.run("consumer-groups", *SERVER, "--describe", "--group", group, "--state"))
    assert state[0] == group and state[-2:] == ["Empty", "0"]

    reset = ("consumer-groups", *SERVER, "--reset-offsets", "--group", group, "--topic", topic, "--execute")
    assert columns(tools.run(*reset, "--shift-by", "-4")) == [[group, topic, "0", "3"]]
    assert [row[3:6] for row in lag()] == [["3", "20", "17"]]
    assert columns(tools.run(*reset, "--to-latest")) == [[group, topic, "0", "20"]]
    kinds = {row[0]: row[1:] for row in columns(tools.run("groups", *SERVER, "--list"))}
    assert kinds[group] == ["Classic", "consumer"]

    tools.run("consumer-groups", *SERVER, "--delete-offsets", "--group", group, "--topic", topic)
    tools.run("consumer-groups", *SERVER, "--delete", "--group", group)
    assert group not in tools.run("consumer-groups", *SERVER, "--list").split()


def test_console_tools_with_keys_and_headers(tools: JavaTools, new_topic: NewTopic) -> None:
    topic = new_topic()
    tools.run(
        *("console-producer", *SERVER, "--topic", topic, "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        given="trace:a1,tenant:blue\tkey\tvalue\nhop:1\tgone\tNULL\n",
    )
    wanted = [f"--formatter-property=print.{part}=true" for part in ("key", "headers", "offset", "partition")]
    printed = tools.run(
        *("console-consumer", *SERVER, "--topic", topic, "--from-beginning", "--max-messages", "2", *wanted)
    )
    assert printed.splitlines() == [
        "Partition:0\tOffset:0\ttrace:a1,tenant:blue\tkey\tvalue",
        "Partition:0\tOffset:1\thop:1\tgone\tnull",
    ]


def test_records_are_deleted(tools: JavaTools, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic()
    tools.run("console-producer", *SERVER, "--topic", topic, given="a\nb\nc\nd\n")
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 3}]}
    file = tmp_path / "delete.json"
    file.write_text(json.dumps(wanted))
    printed = tools.run("delete-records", *SERVER, "--offset-json-file", str(file))
    assert f"partition: {topic}-0\tlow_watermark: 3" in printed
    assert tools.run("get-offsets", *SERVER, "--topic", topic, "--time", "earliest").strip() == f"{topic}:0:3"


def test_log_directories(tools: JavaTools, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    tools.run("console-producer", *SERVER, "--topic", topic, given="some bytes\n")
    printed = tools.run("log-dirs", *SERVER, "--describe", "--topic-list", topic)
    (broker,) = json.loads(printed.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert broker["broker"] == 1
    assert directory["error"] is None
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert set(sizes) == {f"{topic}-0", f"{topic}-1"}
    assert sorted(size > 0 for size in sizes.values()) == [False, True]


def test_producers_of_a_partition(tools: JavaTools, new_topic: NewTopic) -> None:
    topic = new_topic()
    tools.run("console-producer", *SERVER, "--topic", topic, given="a\nb\nc\n")
    describe = ("describe-producers", "--topic", topic, "--partition", "0")
    ((_, epoch, coordinator_epoch, last_sequence, _, transaction),) = columns(
        tools.run("transactions", *SERVER, *describe)
    )
    assert (epoch, coordinator_epoch, last_sequence, transaction) == ("0", "-1", "2", "None")


def test_the_cluster_and_what_it_serves(tools: JavaTools, bootstrap: str, is_klamm: bool) -> None:
    assert re.fullmatch(r"Cluster ID: [\w-]{22}", tools.run("cluster", "cluster-id", *SERVER).strip())
    host, port = bootstrap.rsplit(":", 1)
    ((*endpoint, kind),) = columns(tools.run("cluster", "list-endpoints", *SERVER))
    assert endpoint[:3] == ["1", host, port]
    assert kind == "broker"

    printed = tools.run("api-versions", *SERVER)
    served = dict(re.findall(r"^\t(\w+\(\d+\)): ([\d to]+) \[", printed, re.MULTILINE))
    if is_klamm:
        assert served == SERVED_VERSIONS
    else:
        assert SERVED_VERSIONS.items() <= served.items()


# ---- tools that do their work while the JVM ends, and so run in one of their own


def run_alone(tool: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a tool as a command, and return the lines of JSON that it prints."""
    *java, _ = java_command("ToolRunner")
    done = subprocess.run(
        [*java, TOOLS[tool], *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_verifiable_clients(bootstrap: str, new_topic: NewTopic, tools: JavaTools) -> None:
    topic, group = new_topic(4), unique("verifiable")
    server = ("--bootstrap-server", bootstrap)
    produced = run_alone(
        "verifiable-producer", *server, "--topic", topic, "--max-messages", "2000", "--acks", "-1"
    )
    acknowledged = [event for event in produced if event["name"] == "producer_send_success"]
    assert sorted(int(event["value"]) for event in acknowledged) == list(range(2_000))
    assert len({(event["partition"], event["offset"]) for event in acknowledged}) == 2_000
    (summary,) = [event for event in produced if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (2_000, 2_000)

    consumed = run_alone(
        *("verifiable-consumer", *server, "--topic", topic, "--group-id", group),
        *("--max-messages", "2000", "--reset-policy", "earliest"),
    )
    assert sum(event["count"] for event in consumed if event["name"] == "records_consumed") == 2_000
    commits = [event for event in consumed if event["name"] == "offsets_committed"]
    assert commits and all(event["success"] for event in commits)
    lag = columns(tools.run("consumer-groups", *SERVER, "--describe", "--group", group))
    assert {row[5] for row in lag} == {"0"}
