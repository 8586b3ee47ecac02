"""The messages of a topic in the JSON API: lists, streams, records, files, producing, schemas."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from google.protobuf import descriptor_pb2
from tests.console.running import RunningConsole, console_of

import klamm
from klamm.testing import Broker

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "city", "type": "string"}]}
DEAD = [
    ("klamm.rule", b"positive"),
    ("klamm.error", b"amount is -5"),
    ("klamm.pipeline", b"billing"),
    ("klamm.topic", b"orders"),
    ("klamm.partition", b"1"),
    ("klamm.offset", b"2"),
]


@pytest.fixture(scope="module", autouse=True)
def contents(broker: Broker) -> Iterator[None]:
    with klamm.Admin(broker.bootstrap) as admin, klamm.Producer(broker.bootstrap) as producer:
        admin.create_topics([klamm.NewTopic("orders", 2)])
        admin.create_topics(
            [klamm.NewTopic("framed", 1), klamm.NewTopic("dead", 1), klamm.NewTopic("new", 1)]
        )
        for number in range(100):
            value = json.dumps({"n": number, "city": "Bern" if number % 10 == 0 else "Basel"}).encode()
            producer.send(
                "orders",
                value,
                b"%d" % number,
                [("h", b"x")],
                number % 2,
                timestamp=1_700_000_000_000 + number,
            )
        producer.send("framed", b"\0\0\0\0\x07\x08Bern")
        producer.send("dead", b"{}", b"k", DEAD)
    yield


def url(**query: object) -> str:
    return f"/topics/orders/messages?{urlencode(query)}"


def events(console: RunningConsole, path: str, most: int = 1_000) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{console.url}/api/v1{path}", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = []
        for line in answer:
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
                if len(found) == most:
                    break
        return found


def test_pages(console: RunningConsole) -> None:
    first = console.get(url(limit=30))
    assert [row["timestamp"] % 1000 for row in first["rows"]] == list(range(99, 69, -1))
    assert (first["passed"], first["total"], first["is_end"]) == (30, 100, False)
    second = console.get(url(limit=70, at=first["next"]))
    assert [row["timestamp"] % 1000 for row in second["rows"]] == list(range(69, -1, -1)) and second["is_end"]
    oldest = console.get(url(order="oldest", range="10:12", partitions=1))
    assert [(row["partition"], row["offset"]) for row in oldest["rows"]] == [(1, 10), (1, 11)]
    empty = console.get(url(range="@-1h:end"))
    assert empty["rows"] == [] and empty["nearest"]["before"] == 100
    assert empty["nearest"]["newest"] == [1, 49, 1_700_000_000_099]
    before = console.get(url(at=empty["nearest"]["before_at"], limit=1))
    assert before["rows"][0]["timestamp"] == 1_700_000_000_099


def test_searches_and_tails_are_streams(console: RunningConsole, broker: Broker) -> None:
    path = f"/topics/orders/messages/search?{urlencode({'filter': 'city = Bern', 'limit': 4})}"
    steps = events(console, path)
    assert [row["timestamp"] % 1000 for step in steps for row in step["rows"]] == [90, 80, 70, 60]
    rest = events(console, f"{path}&at={steps[-1]['next']}&limit=50")
    assert [row["timestamp"] % 1000 for step in rest for row in step["rows"]] == [50, 40, 30, 20, 10, 0]
    assert rest[-1]["is_end"] and rest[-1]["passed"] == rest[-1]["total"] == 100
    path = "/topics/new/messages/tail"
    assert events(console, path, most=1)[0]["rows"] == []
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send("new", b"one").result()
    (step,) = events(console, f"{path}?at=0.0", most=1)
    assert [row["value"]["text"] for row in step["rows"]] == ["one"] and step["next"] == "0.1"


def test_one_record(console: RunningConsole) -> None:
    found = console.get("/topics/orders/messages/1/3")
    assert found["value"]["kind"] == "json" and found["value"]["tree"]["children"][1]["text"] == '"Basel"'
    assert found["headers"] == [{"name": "h", "text": "x", "is_binary": False}]
    assert found["key_filter"] == 'key = "7"' and found["refusal"] is None
    dead = console.get("/topics/dead/messages/0/0")
    assert dead["refusal"]["error"] == "amount is -5"
    assert dead["source_url"] == "/topics/orders/messages?partitions=1&range=2:3&record=1.2"
    with urllib.request.urlopen(f"{console.url}/api/v1/topics/orders/messages/1/3/value") as answer:
        assert answer.read() == b'{"n": 7, "city": "Basel"}'
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
    status, found = console.ask("/api/v1/topics/orders/messages/0/999")
    assert (status, found["error"]) == (409, "orders-0 has no record at offset 999: it has 0 to 49")


def test_exports(console: RunningConsole) -> None:
    path = "/api/v1/topics/orders/messages/export."
    query = urlencode({"filter": "city = Bern"})
    with urllib.request.urlopen(f"{console.url}{path}jsonl?{query}") as answer:
        assert sorted(json.loads(json.loads(line)["value"])["n"] for line in answer) == list(
            range(0, 100, 10)
        )
    with urllib.request.urlopen(f"{console.url}{path}csv") as answer:
        assert len(answer.read().splitlines()) == 101
    assert console.ask(f"{path}xls")[0] == 404


def test_snippets(console: RunningConsole) -> None:
    found = console.get("/topics/orders/messages/snippets?range=1:2&partitions=1")
    assert "--partition 1 --from 1:2" in found["cli"] and "OFFSETS = {1: (1, 2)}" in found["python"]
    assert '"1": 1' in found["pyspark"]


def test_schemas(console: RunningConsole) -> None:
    assert console.get("/topics/framed/messages/0/0")["value"]["notes"][0].startswith(
        "begins like a value of"
    )
    status, found = console.ask("/api/v1/schemas", {"avro": json.dumps(AVRO)})
    assert status == 200
    query = urlencode({"format": "avro", "schema": found["schema"]["id"]})
    shown = console.get(f"/topics/framed/messages/0/0?{query}")["value"]
    assert shown["kind"] == "avro" and json.loads(shown["text"]) == {"city": "Bern"}
    filtered = console.get(f"/topics/framed/messages?{query}&filter=city%3DBern")
    assert filtered["rows"][0]["value"]["text"] == '{"city": "Bern"}'
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="city", number=1, type=9, label=1)
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    body = {"protobuf": base64.b64encode(descriptors).decode()}
    assert console.ask("/api/v1/schemas", body) == (200, {"messages": ["Order"]})
    status, found = console.ask("/api/v1/schemas", body | {"message": "Order"})
    assert (status, found["schema"]["name"]) == (200, "Order")
    assert len(console.get("/schemas")["schemas"]) == 2
    assert console.ask("/api/v1/schemas", {"avro": "nonsense"})[0] == 409
    assert console.ask("/api/v1/topics/framed/messages?schema=nothing")[0] == 409


def test_records_are_sent(console: RunningConsole) -> None:
    body = {"value": "00ff", "value_encoding": "hex", "key": "k", "headers": [{"name": "a", "value": "ü"}]}
    status, sent = console.ask("/api/v1/topics/new/messages", body)
    assert status == 200
    found = console.get(f"/topics/new/messages/{sent['partition']}/{sent['offset']}")
    assert found["value"]["hex"][0]["hex"] == "00 ff" and found["headers"][0]["text"] == "ü"
    status, answer = console.ask("/api/v1/topics/new/messages", {"value": "{", "value_encoding": "json"})
    assert status == 409 and answer["error"].startswith("the value is not JSON")
    assert console.ask("/api/v1/topics/new/messages", {"value_encoding": "morse"})[0] == 400
    assert console.ask("/api/v1/topics/new/messages", [1])[0] == 400


def test_a_read_only_console_sends_nothing(broker: Broker, tmp_path: Path) -> None:
    with console_of(broker.bootstrap, tmp_path, "--read-only") as console:
        status, answer = console.ask("/api/v1/topics/new/messages", {"value": "x"})
        assert (status, answer["error"]) == (403, "this console is read-only. Start one without --read-only")
        assert console.get("/topics/orders/messages?limit=1")["rows"]


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"filter": "city ="}, "the filter is not complete"),
        ({"range": "yesterday"}, "yesterday names no records"),
        ({"partitions": "0,x"}, "partitions=0,x is not valid"),
        ({"partitions": "7"}, "orders has no partition 7"),
        ({"order": "random"}, "order=random is not valid: expected newest, oldest"),
        ({"limit": "0"}, "limit=0 is not a number"),
        ({"at": "???"}, "is not a place in a topic"),
    ],
)
def test_questions_that_are_wrong(console: RunningConsole, query: dict[str, str], complaint: str) -> None:
    status, answer = console.ask(f"/api/v1{url(**query)}")
    assert status == 409 and complaint in answer["error"]
