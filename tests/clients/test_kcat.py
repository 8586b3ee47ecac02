"""What people ask kcat for in a shell: metadata, offsets by time, the last records, a pipe."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.clients.conftest import Clients, NewTopic
from tests.clients.contract import PATIENCE_SECONDS, AdminClient, Record
from tests.clients.kcat import KcatClient, find_kcat, run_kcat
from tests.moments import MIDNIGHT_MS

START_MS = MIDNIGHT_MS


@pytest.fixture
def kcat(clients: Clients, bootstrap: str) -> tuple[str, str]:
    """The arguments that every call begins with."""
    assert isinstance(clients.get(KcatClient.name), KcatClient)
    return ("-b", bootstrap)


@pytest.fixture
def writer(clients: Clients) -> AdminClient:
    client = clients.get("confluent-kafka")
    assert isinstance(client, AdminClient)
    return client


def test_metadata(kcat: tuple[str, str], new_topic: NewTopic, bootstrap: str) -> None:
    topic = new_topic(3)
    metadata = json.loads(run_kcat(*kcat, "-L", "-J", "-t", topic))
    assert metadata["brokers"] == [{"id": 1, "name": bootstrap}]
    assert metadata["topics"] == [
        {
            "topic": topic,
            "partitions": [
                {"partition": number, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
                for number in range(3)
            ],
        }
    ]
    everything = json.loads(run_kcat(*kcat, "-L", "-J"))
    assert topic in {one["topic"] for one in everything["topics"]}


def test_offsets_by_time(kcat: tuple[str, str], new_topic: NewTopic, writer: AdminClient) -> None:
    topic = new_topic()
    records = [Record(b"%d" % number, timestamp_ms=START_MS + 1_000 * number) for number in range(5)]
    writer.produce(topic, records)
    query = [f"-t{topic}:0:{time}" for time in (START_MS + 2_500, -2, -1)]
    answers = [run_kcat(*kcat, "-Q", one).decode().strip() for one in query]
    assert answers == [f"{topic} [0] offset {offset}" for offset in (3, 0, 5)]


@pytest.mark.parametrize(("kind", "expected"), [("CreateTime", "create"), ("LogAppendTime", "logappend")])
def test_who_set_the_timestamp(
    kcat: tuple[str, str], new_topic: NewTopic, writer: AdminClient, kind: str, expected: str
) -> None:
    topic = new_topic(1, {"message.timestamp.type": kind})
    writer.produce(topic, [Record(b"value", timestamp_ms=START_MS)])
    record = json.loads(run_kcat(*kcat, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-J", "-q"))
    assert record["tstype"] == expected
    assert (record["ts"] == START_MS) == (kind == "CreateTime")
    assert (record["offset"], record["key"], record["payload"]) == (0, None, "value")


def test_the_last_records_and_the_end(
    kcat: tuple[str, str], new_topic: NewTopic, writer: AdminClient
) -> None:
    topic = new_topic()
    writer.produce(topic, [Record(b"%d" % number) for number in range(10)])
    read = ("-C", "-q", "-t", topic, "-p", "0", "-e")
    assert run_kcat(*kcat, *read, "-o", "-3") == b"7\n8\n9\n"
    assert run_kcat(*kcat, *read, "-o", "end") == b""
    since = f"s@{START_MS}"
    assert run_kcat(*kcat, *read, "-o", since).splitlines() == [b"%d" % number for number in range(10)]


def test_a_pipe_from_one_topic_to_another(kcat: tuple[str, str], new_topic: NewTopic) -> None:
    source, target = new_topic(), new_topic()
    run_kcat(*kcat, "-P", "-t", source, "-K:", given=b"a:1\nb:2\nc:3\n")
    program = find_kcat()
    reader = [program, *kcat, "-C", "-q", "-e", "-t", source, "-K:"]
    with subprocess.Popen(reader, stdout=subprocess.PIPE) as reading:
        subprocess.run(
            [program, *kcat, "-P", "-t", target, "-K:", "-z", "snappy"],
            stdin=reading.stdout,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
    printed = run_kcat(*kcat, "-C", "-q", "-e", "-t", target, "-f", "%o %k=%s\n")
    assert printed == b"0 a=1\n1 b=2\n2 c=3\n"
