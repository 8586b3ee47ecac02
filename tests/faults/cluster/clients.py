"""Clients that write and read while the brokers of a cluster fail, and remember what they did and saw.

Producers are idempotent, with acks=all: librdkafka's and our own. Each value is unique and begins with the
producer's name. Consumers read partitions from their start, without a group. The history is checked
afterwards (`history.py`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import confluent_kafka

import klamm
from klamm.client.errors import ClientError
from klamm.client.plain.producer import Delivery
from tests.faults.cluster.history import History, Outcome, Seen, Sent, Stored
from tests.waiting import wait_until

PATIENT: dict[str, str | int | bool] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 5_000,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}
"""Settings with which clients find their way soon after a fault."""

PACE_S = 0.005
DELIVERY_TIMEOUT_MS = 120_000
FLUSH_S = 150.0
READ_S = 90.0
LONG_WAIT_S = 0.05
"""Shorter waits for an acknowledgement are not remembered."""


class Wait(NamedTuple):
    """How long a producer waited for the acknowledgement of a record."""

    acknowledged_s: float
    """When it came, on the monotonic clock."""
    seconds: float


class Newest(NamedTuple):
    """The last record of a partition that was acknowledged."""

    sent_s: float
    acknowledged_s: float
    """When it was sent and acknowledged, on the monotonic clock."""
    offset: int


class WritingClient(ABC):
    """An idempotent producer that sends unique values to all partitions of a topic."""

    may_write_twice = False
    """It may send a record again in another producer epoch: no broker can tell."""

    def __init__(self, name: str, topic: str, partitions: int, seed: int) -> None:
        self.name = name
        self._topic = topic
        self._partitions = partitions
        self._random = Random(f"{seed} {name}")
        self._lock = threading.Lock()
        self._sent: list[Sent] = []
        self._sent_s: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.pace_s = PACE_S
        self.acknowledged_count = 0
        self.waits: list[Wait] = []
        self.newest: dict[int, Newest] = {}
        """Of each partition."""
        self.longest_gap_s = 0.0
        """The longest time without an acknowledgement from some partition."""

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> list[Sent]:
        """Stop sending, wait for every delivery, and return the records in the order of their sends."""
        self._stopping.set()
        self._thread.join(FLUSH_S)
        self._flush()
        return self._sent

    def stop(self) -> None:
        """Stop sending; what is on the way is left to itself."""
        self._stopping.set()

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _send(self, at: int, partition: int, value: bytes) -> bool:
        """False if there is no room now. The outcome is told to `_settle` with `at`."""

    def _work(self) -> None:
        number = 0
        while not self._stopping.is_set():
            partition = self._random.randrange(self._partitions)
            value = b"%s:%d" % (self.name.encode(), number)
            with self._lock:
                at = len(self._sent)
                self._sent.append(Sent(self.name, (self._topic, partition), value, Outcome.UNKNOWN))
                self._sent_s.append(time.monotonic())
            if self._send(at, partition, value):
                number += 1
            else:
                with self._lock:
                    self._sent.pop()
                    self._sent_s.pop()
            self._pause()

    def _pause(self) -> None:
        self._stopping.wait(self.pace_s)

    def _settle(self, at: int, offset: int) -> None:
        """The record was acknowledged."""
        with self._lock:
            self._sent[at] = self._sent[at]._replace(outcome=Outcome.ACKNOWLEDGED, offset=offset)
            self.acknowledged_count += 1
            now = time.monotonic()
            _, partition = self._sent[at].place
            if (before := self.newest.get(partition)) is not None:
                self.longest_gap_s = max(self.longest_gap_s, now - before.acknowledged_s)
            self.newest[partition] = Newest(self._sent_s[at], now, offset)
            if now - self._sent_s[at] > LONG_WAIT_S:
                self.waits.append(Wait(now, now - self._sent_s[at]))


class LibrdkafkaWriter(WritingClient):
    """With more than one request `in_flight` it writes a record twice at times, against any broker: if the
    first of them is refused and the second has a gap before it therefore, librdkafka begins a new producer
    epoch and sends again what may be written already (https://github.com/confluentinc/librdkafka/issues/4953).
    """

    def __init__(
        self, bootstrap: str, name: str, topic: str, partitions: int, seed: int, *, in_flight: int
    ) -> None:
        super().__init__(f"librdkafka-{name}", topic, partitions, seed)
        self.may_write_twice = in_flight > 1
        self._producer = confluent_kafka.Producer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": in_flight,
                "linger.ms": 2,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )

    def _flush(self) -> None:
        assert self._producer.flush(FLUSH_S) == 0, f"{self.name}: records have no outcome"

    def _send(self, at: int, partition: int, value: bytes) -> bool:
        try:
            self._producer.produce(
                self._topic,
                value,
                partition=partition,
                on_delivery=lambda error, message: self._delivered(at, error, message),
            )
        except BufferError:
            return False
        return True

    def _pause(self) -> None:
        self._producer.poll(self.pace_s)

    def _delivered(
        self, at: int, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if error is None:
            self._settle(at, int(message.offset() or 0))


class KlammWriter(WritingClient):
    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, seed: int) -> None:
        super().__init__(f"klamm-{name}", topic, partitions, seed)
        self._producer = klamm.Producer(
            bootstrap,
            linger_ms=2,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            retry_backoff_ms=20,
            retry_backoff_max_ms=200,
            request_timeout_ms=5_000,
        )

    def _flush(self) -> None:
        self._producer.close(FLUSH_S)

    def _send(self, at: int, partition: int, value: bytes) -> bool:
        try:
            delivery = self._producer.send(self._topic, value, partition=partition)
        except ClientError:
            return False
        delivery.add_done_callback(lambda done: self._delivered(at, done))
        return True

    def _delivered(self, at: int, delivery: Delivery) -> None:
        if delivery.exception() is None:
            self._settle(at, delivery.result().offset)


class ReadingClient:
    """A consumer that reads all partitions of a topic from their start, for as long as the run goes on."""

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        self.name = name
        self._consumer = confluent_kafka.Consumer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)]
        )
        self._seen: list[Seen] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def finish(self) -> list[Seen]:
        self._stopping.set()
        self._thread.join(READ_S)
        self._consumer.close()
        return self._seen

    def _work(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self._seen.append(
                        Seen(
                            self.name,
                            0,
                            (str(message.topic()), int(message.partition() or 0)),
                            int(message.offset() or 0),
                            bytes(message.value() or b""),
                        )
                    )


def read_everything(bootstrap: str, topic: str, partitions: int) -> list[Stored]:
    """What the partitions hold at the end, up to their high watermarks."""
    consumer = confluent_kafka.Consumer(
        {**PATIENT, "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    stored: list[Stored] = []
    try:
        ends: dict[int, int] = {}
        for index in range(partitions):
            place = confluent_kafka.TopicPartition(topic, index)
            wait_until(
                lambda place=place: _end_of(consumer, place, ends),  # type: ignore[misc]
                f"the end of {topic}-{index} is known",
                READ_S,
            )
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
        reached = dict.fromkeys(range(partitions), 0)
        deadline = time.monotonic() + READ_S
        while any(reached[index] < ends[index] for index in range(partitions)):
            assert time.monotonic() < deadline, f"records are missing: read {reached}, there should be {ends}"
            for message in consumer.consume(1_000, 0.2):
                if message.error() is None:
                    index, offset = int(message.partition() or 0), int(message.offset() or 0)
                    stored.append(Stored((topic, index), offset, bytes(message.value() or b"")))
                    reached[index] = max(reached[index], offset + 1)
                    deadline = time.monotonic() + READ_S
    finally:
        consumer.close()
    return stored


def _end_of(
    consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition, ends: dict[int, int]
) -> bool:
    try:
        _, ends[place.partition] = consumer.get_watermark_offsets(place, timeout=5)
    except confluent_kafka.KafkaException:
        return False
    return True


def history_of(
    writing: Sequence[WritingClient], reading: Sequence[ReadingClient], stored: Sequence[Stored]
) -> History:
    """`writing` and `reading` are finished by this."""
    sent = [record for client in writing for record in client.finish()]
    seen = [record for client in reading for record in client.finish()]
    return History(sent, seen, stored)
