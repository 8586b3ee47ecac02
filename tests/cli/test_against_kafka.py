"""Commands against Apache Kafka, whose answers differ here and there from Klamm's."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka
import pytest
from tests.cli.commands import Shell
from tests.client.topics import unique
from tests.waiting import wait_until

import klamm

pytestmark = pytest.mark.long


@pytest.fixture
def kafka(apache_kafka: str, tmp_path: Path) -> Shell:
    return Shell(tmp_path, apache_kafka)


def test_groups_of_both_protocols_are_seen_and_moved(kafka: Shell) -> None:
    topic, new, old = unique("topic"), unique("new"), unique("old")
    kafka.out("topic", "create", topic, "-p", "1")
    kafka.out("topic", "produce", topic, stdin="a\nb\nc\n")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": new,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "client.id": "modern",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1), "the group of the new protocol reads")
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
        (described,) = kafka.json("group", "describe", new)
        assert (described["state"], described["lag"]) == ("Stable", 2)
        (member,) = described["members"]
        assert (member["client"], member["partitions"]) == ("modern", [{"topic": topic, "partition": 0}])
        assert f"group {new} is in use: it has 1 member" in kafka.complaint(
            "group", "seek", new, "--to", "end"
        )
    finally:
        consumer.close()
    with klamm.Admin(kafka.bootstrap) as admin:
        admin.alter_group_offsets(old, {(topic, 0): 3})
        wait_until(lambda: admin.describe_group(new).state == "Empty", "the member has left")
    listed = {each["group"]: each for each in kafka.json("group", "list")}
    assert {name: (listed[name]["lag"], listed[name]["error"]) for name in (new, old)} == {
        new: (2, ""),
        old: (0, ""),
    }
    kafka.out("group", "seek", new, "--to", "start", "-y")
    (lag,) = kafka.json("group", "lag", new)
    assert lag["lag"] == 3
    kafka.out("group", "delete", new, old, "-y")


def test_settings_brokers_and_health(kafka: Shell) -> None:
    topic = unique("topic")
    kafka.out("topic", "create", topic, "-p", "1", "-c", "segment.bytes=10000000")
    (setting,) = kafka.json("config", "get", "topic", topic, "segment.bytes")
    assert (setting["value"], setting["source"], setting["default"]) == ("10000000", "topic", "1073741824")
    kafka.out("config", "set", "topic", topic, "retention.ms=1000", "--dry-run")
    assert "retention.ms" in kafka.complaint("config", "set", "topic", topic, "retention.ms=x", "--dry-run")
    (broker,) = kafka.json("cluster", "brokers")
    assert broker["is_controller"] and broker["disks"][0]["total_bytes"] > 0
    assert kafka.json("cluster", "reassign", "--status") == []
    kafka.out("cluster", "elect", "preferred", "--all")
    found = json.loads(kafka("doctor", "--pause", "0.5", "--disk", "100", "-o", "json").stdout)
    assert [each for each in found if each["check"] not in ("group", "disk")] == []
