"""A consumer group at work while brokers fail, its coordinator among them.

Each member commits what it was handed, and waits for the answer. What must hold: a committed offset is never
lost nor goes back, so whoever is assigned a partition finds at least what was acknowledged before; and every
record is handed to the group at least once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

import confluent_kafka

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.testing.wire import WireConnection
from tests.faults.cluster.clients import PATIENT, READ_S
from tests.faults.cluster.history import Place, Stored
from tests.waiting import wait_until

ANSWER_S = 10.0
LIMIT_S = 120.0
SESSION_TIMEOUT_MS = 6_000


class Group:
    """Members of one group, in threads."""

    def __init__(self, bootstrap: str, name: str, topic: str, members: int = 2) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._handed: set[tuple[Place, int]] = set()
        self._committed: dict[Place, int] = {}
        """The highest offset of each partition whose commit was acknowledged."""
        self.anomalies: list[str] = []
        self.commit_count = 0
        self._members = [_Member(self, bootstrap, topic, f"{name}-{number}") for number in range(members)]

    def start(self) -> None:
        for member in self._members:
            member.thread.start()

    def stop(self) -> None:
        for member in self._members:
            member.stopping.set()

    def finish(self, stored: Iterable[Stored]) -> list[str]:
        """Wait until all of `stored` was handed out; returns the anomalies."""
        wanted = {(record.place, record.offset) for record in stored}

        def is_done() -> bool:
            with self._lock:
                return wanted <= self._handed

        wait_until(is_done, lambda: f"the group is handed {len(wanted - self._handed)} more records", LIMIT_S)
        self.stop()
        for member in self._members:
            member.thread.join(READ_S)
            assert not member.thread.is_alive(), f"{member.name} does not end"
        self._check_committed()
        return self.anomalies

    def coordinator(self) -> int | None:
        """The broker that coordinates the group; None if no broker can tell now."""
        for address in self._bootstrap.split(","):
            try:
                with WireConnection(address, timeout_s=2.0) as connection:
                    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.name])
                    answer = connection.call(request).coordinators[0]
                    if answer.error_code == ErrorCode.NONE:
                        return int(answer.node_id)
            except OSError:
                continue
        return None

    def _check_committed(self) -> None:
        consumer = confluent_kafka.Consumer(
            {**PATIENT, "bootstrap.servers": self._bootstrap, "group.id": self.name}
        )
        places = [confluent_kafka.TopicPartition(topic, index) for topic, index in self._committed]
        found: list[confluent_kafka.TopicPartition] = []

        def is_told() -> bool:
            try:
                found[:] = consumer.committed(places, timeout=ANSWER_S)
            except confluent_kafka.KafkaException:
                return False
            return all(each.error is None for each in found)

        wait_until(is_told, "committed offsets are told", LIMIT_S)
        consumer.close()
        self.check_found(found, self._committed)

    def acknowledged(self) -> dict[Place, int]:
        with self._lock:
            return dict(self._committed)

    def check_found(
        self, found: Iterable[confluent_kafka.TopicPartition], acknowledged: dict[Place, int]
    ) -> None:
        """`acknowledged` is what was acknowledged before `found` was asked for."""
        with self._lock:
            for each in found:
                promised = acknowledged.get((each.topic, each.partition))
                if promised is not None and each.error is None and each.offset < promised:
                    self.anomalies.append(
                        f"lost commit: {self.name} committed {each.topic}-{each.partition} at {promised}, "
                        f"and found {each.offset} later"
                    )

    def on_handed(self, messages: Iterable[confluent_kafka.Message]) -> None:
        with self._lock:
            for message in messages:
                place = (str(message.topic()), int(message.partition() or 0))
                self._handed.add((place, int(message.offset() or 0)))

    def on_committed(self, committed: Iterable[confluent_kafka.TopicPartition]) -> None:
        with self._lock:
            for each in committed:
                if each.error is None:
                    place = (each.topic, each.partition)
                    self._committed[place] = max(each.offset, self._committed.get(place, -1))
                    self.commit_count += 1


class _Member:
    def __init__(self, group: Group, bootstrap: str, topic: str, name: str) -> None:
        self.name = name
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._group = group
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": group.name,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
            }
        )

    def _work(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign)
        while not self.stopping.is_set():
            messages = [each for each in self._consumer.consume(200, 0.2) if each.error() is None]
            if not messages:
                continue
            self._group.on_handed(messages)
            ends: dict[tuple[str, int], int] = {}
            for message in messages:
                ends[str(message.topic()), int(message.partition() or 0)] = int(message.offset() or 0) + 1
            positions = [
                confluent_kafka.TopicPartition(topic, partition, end)
                for (topic, partition), end in ends.items()
            ]
            # What is not acknowledged may be handed to others again.
            with suppress(confluent_kafka.KafkaException):
                self._group.on_committed(self._consumer.commit(offsets=positions, asynchronous=False) or ())
        self._consumer.close()

    def _on_assign(
        self, consumer: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]
    ) -> None:
        acknowledged = self._group.acknowledged()
        try:
            found = consumer.committed(partitions, timeout=ANSWER_S)
        except confluent_kafka.KafkaException:
            return
        self._group.check_found(found, acknowledged)
