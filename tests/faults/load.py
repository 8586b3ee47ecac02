"""Producers that write numbered records while their broker is killed, and remember what was promised.

Each value names its producer and its number. A value is `acknowledged` once the broker said so, with the
offset it gave; one that was sent and not acknowledged may be in the log or not, but not twice.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from random import Random
from typing import NamedTuple

import confluent_kafka

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.testing.wire import WireConnection
from tests.abuse.calls import NAMES_PRODUCE_VERSION, batch_of, produce_request
from tests.waiting import wait_until

RECONNECT_INTERVAL_S = 0.02
PACE_S = 0.002
"""Between two requests: whoever checks must be able to read faster than all of them write."""
NAMES_COMMIT_VERSION = 9


class Partition(NamedTuple):
    topic: str
    index: int


class Load(ABC):
    """Work that a thread does until `finish`; it connects again when its connection is lost."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.acknowledged_count = 0
        self.stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop the work; raises the error that ended it, if there was one."""
        self.stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), f"{self.name} does not come to an end"
        self.check()

    def wait_for_more(self, count: int) -> None:
        target = self.acknowledged_count + count

        def is_reached() -> bool:
            self.check()
            return self.acknowledged_count >= target

        wait_until(is_reached, f"{count} more acknowledgements of {self.name}")

    def check(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"{self.name} failed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as failure:
            self._failure = failure

    @abstractmethod
    def work(self) -> None: ...


class WireLoad(Load):
    """Load over bare connections."""

    answer_timeout_s = 60.0
    """So long it waits before it takes a connection for dead. What it sent there may still be handled, after
    what it sends next."""

    def work(self) -> None:
        while not self.is_done():
            try:
                with WireConnection(
                    self.bootstrap, client_id=self.name, timeout_s=self.answer_timeout_s
                ) as connection:
                    while not self.is_done():
                        self.work_once(connection)
                        self.stopping.wait(PACE_S)
            except OSError:
                # Killed, paused, or not back yet.
                self.on_connection_lost()
                self.stopping.wait(RECONNECT_INTERVAL_S)

    def is_done(self) -> bool:
        return self.stopping.is_set()

    def on_connection_lost(self) -> None: ...

    @abstractmethod
    def work_once(self, connection: WireConnection) -> None: ...


class SimpleProducer(WireLoad):
    """acks=1, without idempotence and without retries: a record without an answer is not sent again."""

    def __init__(self, bootstrap: str, name: str, partition: Partition, value_bytes: int) -> None:
        super().__init__(bootstrap, name)
        self.partition = partition
        self.value_bytes = value_bytes
        self.next_number = 0
        self.acknowledged: dict[int, int] = {}
        """The offset of each acknowledged record, by its number."""

    def work_once(self, connection: WireConnection) -> None:
        number = self.next_number
        self.next_number += 1
        value = f"{self.name}:{number}:".encode().ljust(self.value_bytes, b".")
        request = produce_request(
            self.partition.topic, batch_of(value), partition=self.partition.index, acks=1
        )
        answer = connection.call(request, NAMES_PRODUCE_VERSION).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NONE, f"{ErrorCode(answer.error_code).name}"
        self.acknowledged[number] = answer.base_offset
        self.acknowledged_count += 1


class IdempotentProducer(WireLoad):
    """acks=all with sequences, five requests in flight; those without an answer are sent again, in order."""

    IN_FLIGHT = 5

    def __init__(self, bootstrap: str, name: str, partition: Partition, value_bytes: int) -> None:
        super().__init__(bootstrap, name)
        self.partition = partition
        self.value_bytes = value_bytes
        self.next_number = 0
        self.acknowledged: dict[int, int] = {}
        self.producer_id = -1
        self._in_flight: deque[int] = deque()
        self._unsent: deque[int] = deque()

    def is_done(self) -> bool:
        return self.stopping.is_set() and not self._in_flight and not self._unsent

    def on_connection_lost(self) -> None:
        self._unsent = deque([*self._in_flight, *self._unsent])
        self._in_flight.clear()

    def work_once(self, connection: WireConnection) -> None:
        if self.producer_id < 0:
            self.producer_id = connection.call(InitProducerIdRequest(transactional_id=None)).producer_id
        while len(self._in_flight) < self.IN_FLIGHT:
            if not self._unsent:
                if self.stopping.is_set():
                    break
                self._unsent.append(self.next_number)
                self.next_number += 1
            # Listed before it is sent: what fails on the way may have arrived.
            number = self._unsent.popleft()
            self._in_flight.append(number)
            connection.send(self._request(number), NAMES_PRODUCE_VERSION)
        if self._in_flight:
            answer = connection.receive().responses[0].partition_responses[0]
            number = self._in_flight.popleft()
            assert answer.error_code == ErrorCode.NONE, (
                f"{self.name} number {number}: {ErrorCode(answer.error_code).name} {answer.error_message}"
            )
            self.acknowledged[number] = answer.base_offset
            self.acknowledged_count += 1

    def _request(self, number: int) -> object:
        value = f"{self.name}:{number}:".encode().ljust(self.value_bytes, b".")
        batch = batch_of(value, producer_id=self.producer_id, producer_epoch=0, base_sequence=number)
        return produce_request(self.partition.topic, batch, partition=self.partition.index)


class ConfluentProducer(Load):
    """librdkafka's idempotent producer, spread over all partitions of a topic."""

    LARGEST_QUEUE = 500

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, value_bytes: int) -> None:
        super().__init__(bootstrap, name)
        self.topic = topic
        self.partitions = partitions
        self.value_bytes = value_bytes
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(partitions)]
        """The offset of each acknowledged record, by partition and number."""

    def work(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.size": 16_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                "socket.timeout.ms": 5000,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        numbers = [0] * self.partitions
        random = Random(1)
        while not self.stopping.is_set():
            partition = random.randrange(self.partitions)
            value = f"{self.name}:{numbers[partition]}:".encode().ljust(self.value_bytes, b".")
            number = numbers[partition]
            numbers[partition] += 1
            producer.produce(
                self.topic,
                value,
                b"key",
                partition,
                on_delivery=lambda error, message, number=number: self._on_delivery(error, message, number),
            )
            producer.poll(0)
            if number % 10 == 0:
                self.stopping.wait(PACE_S)
            while len(producer) > self.LARGEST_QUEUE:
                producer.poll(0.05)
        assert producer.flush(60) == 0, "librdkafka could not deliver everything"

    def _on_delivery(self, error: object, message: confluent_kafka.Message, number: int) -> None:
        assert error is None, f"delivery failed: {error}"
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.acknowledged[partition][number] = offset
        self.acknowledged_count += 1


class CompactedWriter(WireLoad):
    """Counts up the values of a few keys in a compacted topic."""

    KEYS = 10

    def __init__(self, bootstrap: str, name: str, topic: str, value_bytes: int) -> None:
        super().__init__(bootstrap, name)
        self.topic = topic
        self.value_bytes = value_bytes
        self.sent = dict.fromkeys(range(self.KEYS), -1)
        self.acknowledged = dict.fromkeys(range(self.KEYS), -1)
        """The newest acknowledged value of each key."""
        self._turn = 0

    def work_once(self, connection: WireConnection) -> None:
        key = self._turn % self.KEYS
        number = self._turn
        self._turn += 1
        self.sent[key] = number
        value = f"{number}:".encode().ljust(self.value_bytes, b".")
        request = produce_request(self.topic, batch_of(value, key=b"%d" % key))
        answer = connection.call(request, NAMES_PRODUCE_VERSION).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NONE, f"{ErrorCode(answer.error_code).name}"
        self.acknowledged[key] = number
        self.acknowledged_count += 1


class Committer(WireLoad):
    """Commits ever higher offsets for a group, as a consumer that assigns itself does."""

    RETRIED = (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )

    def __init__(self, bootstrap: str, name: str, group: str, partition: Partition) -> None:
        super().__init__(bootstrap, name)
        self.group = group
        self.partition = partition
        self.attempted = -1
        self.acknowledged = -1

    def work_once(self, connection: WireConnection) -> None:
        self.attempted += 1
        asked = OffsetCommitRequestPartition(
            partition_index=self.partition.index, committed_offset=self.attempted, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=self.partition.topic, partitions=[asked])],
        )
        answer = connection.call(request, NAMES_COMMIT_VERSION).topics[0].partitions[0]
        if answer.error_code in self.RETRIED:
            return
        assert answer.error_code == ErrorCode.NONE, f"{ErrorCode(answer.error_code).name}"
        self.acknowledged = self.attempted
        self.acknowledged_count += 1
