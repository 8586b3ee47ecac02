"""The adapter of kcat: librdkafka again, but an old one (2.0), and as people use it in a shell.

kcat cannot set timestamps, does not tell offsets, and commits when it ends rather than when it is told.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from tests.clients.contract import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    PATIENCE_SECONDS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STATIC_MEMBERS,
    Client,
    ClientError,
    Member,
    Received,
    Record,
)
from tests.peers.kafka_jars import PeerMissing

STRATEGIES = {"range": "range", "roundrobin": "roundrobin", "cooperative": "cooperative-sticky"}
# Sizes come first, because keys and values may hold any byte.
FORMAT = "%p %o %T %K %S %h\\n%k%s\\n"
KEY_END, RECORD_END = "\x1f", "\x1e"
# Eager rebalances read "rebalanced (memberid ...): assigned: topic [0], ...", cooperative ones "rebalanced:
# incremental assignment of 1 partition(s) (memberid ...): topic [0]".
REBALANCED = re.compile(r"% Group \S+ rebalanced.*?(assigned|revoked|assignment|revoke)\b(.*)")


def find_kcat() -> str:
    kcat = shutil.which("kcat")
    if kcat is None:
        raise PeerMissing("kcat is missing: install kcat (Debian)")
    return kcat


def run_kcat(*arguments: str, given: bytes = b"") -> bytes:
    """Run kcat to its end and return what it printed."""
    done = subprocess.run(
        [find_kcat(), *arguments], input=given, capture_output=True, timeout=PATIENCE_SECONDS, check=False
    )
    if done.returncode != 0:
        raise ClientError(-1, done.stderr.decode(errors="replace"))
    return done.stdout


def _read_record(stream: IO[bytes]) -> Received | None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    partition, offset, timestamp_ms, key_size, value_size, headers = line[:-1].split(b" ", 5)
    key = _read_sized(stream, int(key_size))
    value = _read_sized(stream, int(value_size))
    stream.read(1)
    pairs = [pair.split(b"=", 1) for pair in headers.split(b",")] if headers else []
    return Received(
        int(partition),
        int(offset),
        key,
        value,
        tuple((name.decode(), value) for name, value in pairs),
        int(timestamp_ms),
        "",
    )


def _read_sized(stream: IO[bytes], size: int) -> bytes | None:
    return None if size < 0 else stream.read(size)


class KcatMember(Member):
    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._received: list[Received] = []
        self._assignment: frozenset[int] = frozenset()
        self._assignments_seen = 0
        self._revoked: frozenset[int] = frozenset()
        self._leaving = False
        self._is_cooperative = any("cooperative" in word for word in command)
        self._readers = [
            threading.Thread(target=self._read_records, daemon=True),
            threading.Thread(target=self._read_events, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def assignment(self) -> frozenset[int]:
        assert self._leaving or self._process.poll() is None, "kcat has ended"
        return self._assignment

    def received(self) -> Sequence[Received]:
        return list(self._received)

    def assignments_seen(self) -> int:
        return self._assignments_seen

    def revoked(self) -> frozenset[int]:
        return self._revoked

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        raise NotImplementedError("kcat commits when it ends")

    def leave(self) -> None:
        self._end(signal.SIGTERM)

    def crash(self) -> None:
        """End without a word to the broker."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._leaving = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        self._process.wait(PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)

    def _read_records(self) -> None:
        assert self._process.stdout is not None
        while (record := _read_record(self._process.stdout)) is not None:
            self._received.append(record)

    def _read_events(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            event = REBALANCED.match(line.decode(errors="replace"))
            if event is None:
                continue
            partitions = frozenset(int(number) for number in re.findall(r"\[(\d+)\]", event[2]))
            if event[1].startswith("assign"):
                self._assignment = self._assignment | partitions if self._is_cooperative else partitions
                self._assignments_seen += 1
            else:
                self._assignment -= partitions
                if not self._leaving:
                    self._revoked |= partitions


class KcatClient(Client):
    name = "kcat"
    features = frozenset({STATIC_MEMBERS})
    strategies = tuple(STRATEGIES)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        find_kcat()

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
        common = ["-P", "-b", self._bootstrap, "-t", topic, "-p", str(partition), "-z", codec, "-Z"]
        settings = ["-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}"]
        # Headers are an argument of kcat, so that each run of equal headers is a call of its own.
        for headers, run in itertools.groupby(records, key=lambda record: record.headers):
            arguments = [word for name, value in headers for word in ("-H", f"{name}={value.decode()}")]
            given = b"".join(_as_input(record) for record in run)
            with tempfile.NamedTemporaryFile() as file:
                file.write(given)
                file.flush()
                run_kcat(*common, *settings, *arguments, "-K", KEY_END, "-D", RECORD_END, "-l", file.name)
        return []

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        wanted = ["-C", "-q", "-b", self._bootstrap, "-t", topic, "-p", str(partition)]
        with tempfile.TemporaryFile() as file:
            file.write(run_kcat(*wanted, "-o", str(offset), "-c", str(count), "-f", FORMAT))
            file.seek(0)
            return list(iter(lambda: _read_record(file), None))

    def join(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        strategy: str,
        instance_id: str | None = None,
    ) -> Member:
        settings = {
            "client.id": client_id,
            "partition.assignment.strategy": STRATEGIES[strategy],
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "max.poll.interval.ms": REBALANCE_TIMEOUT_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
        }
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        # -u: records must leave as they come, not when a buffer is full.
        command = [find_kcat(), "-b", self._bootstrap, *options, "-u", "-f", FORMAT, "-G", group, topic]
        return KcatMember(command)


def _as_input(record: Record) -> bytes:
    """With -Z an empty key or value stands for null; an empty one cannot be written."""
    assert record.key != b"" and record.value != b"", "kcat cannot produce what is empty"
    return (record.key or b"") + KEY_END.encode() + (record.value or b"") + RECORD_END.encode()
