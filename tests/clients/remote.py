"""Adapters of clients in other languages: a program of that language, spoken to by lines of JSON.

A request is `{"id": 7, "call": "produce", ...}`, its answer `{"id": 7, "result": ...}` or
`{"id": 7, "code": 36, "error": "..."}`. Bytes travel as base64. The programs are kafkajs/adapter.js and
java/Adapter.java; what each call means is said in contract.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from tests.clients.contract import (
    COMMON_FEATURES,
    DELETES_GROUP_OFFSETS,
    DELETES_GROUPS,
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    PATIENCE_SECONDS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STATIC_MEMBERS,
    AdminClient,
    ClientError,
    GroupDescription,
    Handover,
    Member,
    Received,
    Record,
)
from tests.peers.kafka_jars import CACHE, PeerMissing, find_java, find_kafka_jars

FOLDER = Path(__file__).resolve().parent
MEMBER_SETTINGS = {
    "session_timeout_ms": SESSION_TIMEOUT_MS,
    "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
    "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
    "metadata_max_age_ms": METADATA_MAX_AGE_MS,
}


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _received(fields: Mapping[str, Any]) -> Received:
    return Received(
        fields["partition"],
        fields["offset"],
        _decode(fields["key"]),
        _decode(fields["value"]),
        tuple((name, base64.b64decode(value)) for name, value in fields["headers"]),
        fields["timestamp_ms"],
        fields["timestamp_type"],
    )


class Program:
    """A running adapter program; calls from several threads may overlap."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # What it complains of goes to a file that is shown only when it dies: clients warn a lot.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the program)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=os.environ | dict(environment),
            start_new_session=True,
        )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=command[0], daemon=True)
        self._reader.start()

    def call(self, name: str, **arguments: Any) -> Any:
        answer: Future[Any] = Future()
        line = None
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
            line = json.dumps({"id": number, "call": name} | arguments).encode() + b"\n"
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return answer.result(PATIENCE_SECONDS * 2)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._complaints.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"])
            if "error" in answer:
                waiting.set_exception(ClientError(answer["code"], answer["error"]))
            else:
                waiting.set_result(answer["result"])
        returncode = self._process.wait()
        for waiting in list(self._waiting.values()):
            waiting.set_exception(RuntimeError(f"the adapter ended with {returncode}:\n{self._tail()}"))

    def _tail(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-4_000:]


class RemoteMember(Member):
    def __init__(self, program: Program, handle: int) -> None:
        self._program = program
        self._handle = handle
        self._received: list[Received] = []
        self._has_left = False

    def _state(self) -> Any:
        state = self._program.call("member_state", member=self._handle, since=len(self._received))
        self._received.extend(_received(fields) for fields in state["received"])
        return state

    def assignment(self) -> frozenset[int]:
        return frozenset(self._state()["assignment"])

    def received(self) -> Sequence[Received]:
        self._state()
        return list(self._received)

    def assignments_seen(self) -> int:
        return int(self._state()["assignments_seen"])

    def revoked(self) -> frozenset[int]:
        return frozenset(self._state()["revoked"])

    def handovers(self) -> Sequence[Handover]:
        """What it took and gave up, in order. Java tells."""
        rows = self._state()["handovers"]
        return [Handover(time_ms, is_taken, frozenset(partitions)) for time_ms, is_taken, partitions in rows]

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        chosen = None if offsets is None else [[number, offset] for number, offset in offsets.items()]
        self._program.call("member_commit", member=self._handle, offsets=chosen)

    def leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._program.call("member_leave", member=self._handle)


class RemoteClient(AdminClient):
    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, bootstrap: str) -> None:
        self._program = Program([*self.command(), bootstrap], self.environment)

    @classmethod
    @abstractmethod
    def command(cls) -> list[str]:
        """The command of the adapter's program; raises PeerMissing if a part of it is missing."""

    def close(self) -> None:
        self._program.close()

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        rows = [
            {
                "key": _encode(record.key),
                "value": _encode(record.value),
                "headers": [[name, _encode(value)] for name, value in record.headers],
                "timestamp_ms": record.timestamp_ms,
            }
            for record in records
        ]
        return list(
            self._program.call(
                "produce",
                topic=topic,
                records=rows,
                partition=partition,
                codec=codec,
                acks=-1 if acks == "all" else int(acks),
                idempotent=idempotent,
            )
        )

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        rows = self._program.call("consume", topic=topic, partition=partition, offset=offset, count=count)
        return [_received(fields) for fields in rows]

    def join(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        strategy: str,
        instance_id: str | None = None,
    ) -> Member:
        handle = self._program.call(
            "join",
            group=group,
            topic=topic,
            client_id=client_id,
            strategy=strategy,
            instance_id=instance_id,
            **MEMBER_SETTINGS,
        )
        return RemoteMember(self._program, handle)

    # ---- administration

    def list_topics(self) -> set[str]:
        return set(self._program.call("list_topics"))

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> None:
        self._program.call(
            "create_topic",
            topic=topic,
            partitions=partitions,
            config=dict(config or {}),
            replication_factor=replication_factor,
        )

    def delete_topic(self, topic: str) -> None:
        self._program.call("delete_topic", topic=topic)

    def partition_count(self, topic: str) -> int:
        return int(self._program.call("partition_count", topic=topic))

    def create_partitions(self, topic: str, total: int) -> None:
        self._program.call("create_partitions", topic=topic, total=total)

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return dict(self._program.call("topic_config", topic=topic))

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        self._program.call("set_topic_config", topic=topic, config=dict(config))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        return int(self._program.call("delete_records", topic=topic, partition=partition, before=before))

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        low, high = self._program.call("watermarks", topic=topic, partition=partition)
        return low, high

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found = self._program.call(
            "offset_for_time", topic=topic, partition=partition, timestamp_ms=timestamp_ms
        )
        return None if found is None else int(found)

    def list_groups(self) -> set[str]:
        return set(self._program.call("list_groups"))

    def describe_group(self, group: str) -> GroupDescription:
        found = self._program.call("describe_group", group=group)
        return GroupDescription(
            found["state"],
            {client_id: frozenset(numbers) for client_id, numbers in found["members"].items()},
        )

    def delete_group(self, group: str) -> None:
        self._program.call("delete_group", group=group)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        found = self._program.call("committed", group=group, topic=topic, partition=partition)
        return None if found is None else int(found)

    def delete_group_offsets(self, group: str, topic: str, partition: int) -> None:
        self._program.call("delete_group_offsets", group=group, topic=topic, partition=partition)


class KafkaJsClient(RemoteClient):
    name = "kafkajs"
    features = COMMON_FEATURES | {DELETES_GROUPS}
    strategies = ("roundrobin",)
    environment: ClassVar[dict[str, str]] = {
        "NODE_PATH": str(CACHE / "kafkajs/node_modules"),
        "KAFKAJS_NO_PARTITIONER_WARNING": "1",
    }

    @classmethod
    def command(cls) -> list[str]:
        node = shutil.which("node")
        if node is None:
            raise PeerMissing("node is missing: install nodejs (Debian) and run `make setup`")
        if not (CACHE / "kafkajs/node_modules/kafkajs").is_dir():
            raise PeerMissing("kafkajs is missing: run `make setup` (it needs npm)")
        return [node, str(FOLDER / "kafkajs/adapter.js")]


class JavaClient(RemoteClient):
    name = "java"
    features = COMMON_FEATURES | {STATIC_MEMBERS, DELETES_GROUPS, DELETES_GROUP_OFFSETS}
    strategies = ("range", "roundrobin", "sticky", "cooperative")

    @classmethod
    def command(cls) -> list[str]:
        return java_command("Adapter")


def java_command(program: str) -> list[str]:
    """How to run one of the programs in java/ with Kafka's jars; raises PeerMissing when it cannot be."""
    java, jars = find_java(), find_kafka_jars()
    classes = _compiled(java, jars, FOLDER / f"java/{program}.java")
    logging = f"-Dlog4j2.configurationFile={FOLDER / 'java/log4j2.properties'}"
    # Short programs: the second compiler of the JVM would cost more than it brings.
    return [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", logging, "-cp", f"{classes}:{jars}/*", program]


def _compiled(java: str, jars: Path, source: Path) -> Path:
    """The folder with the program's classes, compiled anew when the source changed.

    The compiler is a jar among the others, because a Java runtime on its own has none.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = CACHE / f"java-classes-{digest}"
    if not classes.is_dir():
        building = Path(tempfile.mkdtemp(prefix="java-building-", dir=CACHE))
        compiler = next(iter(jars.glob("ecj-*.jar")), None)
        if compiler is None:
            raise PeerMissing(f"the Java compiler is missing: no ecj-*.jar in {jars}; run `make setup`")
        command = [
            java,
            "-jar",
            str(compiler),
            "-17",
            "-nowarn",
            "-cp",
            ":".join(map(str, jars.glob("*.jar"))),
        ]
        done = subprocess.run(
            [*command, "-d", str(building), str(source)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with contextlib.suppress(OSError):  # another process was quicker
            building.rename(classes)
    return classes
