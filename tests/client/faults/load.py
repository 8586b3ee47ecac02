"""Producers and groups of ours at work while their broker and their connections are hurt.

Each value names its producer and its number, each key belongs to one partition, and everything that was
promised or received is written down for the checks. Both faces are driven the same way.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import klamm
from klamm.client.results import TopicPartition
from tests.client.faces import Face
from tests.faults.load import Load

KEYS = 20
BURST = 25
PACE_S = 0.005
"""Between two bursts: whoever checks must be able to read faster than all of them write."""
VALUE_BYTES = 60
POLL_S = 0.1
MOST_UNFINISHED = 2000
"""Records of a load that wait for their acknowledgement; beyond that it waits too."""

IMPATIENT = {
    # So that what is lost on the way is missed soon, and tried again soon.
    "request_timeout_ms": 1000,
    "socket_connection_setup_timeout_ms": 1000,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 100,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 100,
}


class ProducerLoad(Load):
    """One idempotent producer; all that it sends must be acknowledged in the end."""

    def __init__(self, face: Face, bootstrap: str, name: str, topic: str, **options: Any) -> None:
        super().__init__(bootstrap, name)
        self.topic = topic
        self.sent_count = 0
        self.acknowledged: dict[int, dict[int, int]] = {}
        """Partition: number: offset."""
        self._face = face
        self._options = {"client_id": name, "batch_size": 2000, "delivery_timeout_ms": 100_000} | options
        self._unfinished: deque[tuple[int, Any]] = deque()

    def work(self) -> None:
        with self._face.producer(self.bootstrap, **IMPATIENT, **self._options) as producer:
            while not self.stopping.wait(PACE_S):
                records = [self._record(self.sent_count + index) for index in range(BURST)]
                deliveries = self._face.send_all(producer, records)
                self._unfinished.extend(enumerate(deliveries, self.sent_count))
                self.sent_count += BURST
                self._note(wait_above=MOST_UNFINISHED)
            producer.flush()
            self._note(wait_above=0)

    def _record(self, number: int) -> dict[str, Any]:
        value = f"{self.name}:{number}:".encode().ljust(VALUE_BYTES, b".")
        return {"topic": self.topic, "value": value, "key": b"%d" % (number % KEYS)}

    def _note(self, wait_above: int) -> None:
        """Write down what was acknowledged, oldest first; partitions differ in when they are."""
        waiting: deque[tuple[int, Any]] = deque()
        while self._unfinished:
            number, delivery = self._unfinished.popleft()
            if not delivery.done() and len(self._unfinished) + len(waiting) < wait_above:
                waiting.append((number, delivery))
                continue
            sent = delivery.result()
            self.acknowledged.setdefault(sent.partition, {})[number] = sent.offset
            self.acknowledged_count += 1
        self._unfinished = waiting


class GroupLoad(Load):
    """One member of a group. Now and then it leaves, and comes back as another one.

    With commits by hand it commits after it wrote down what it got; then nothing may be lost, and what is
    received twice is no fault. `acknowledged_count` counts the records received.
    """

    def __init__(
        self, face: Face, bootstrap: str, name: str, topic: str, group: str, seed: int, *, by_hand: bool
    ) -> None:
        super().__init__(bootstrap, name)
        self.topic = topic
        self.group = group
        self.received: dict[int, set[int]] = {}
        """Partition: offsets."""
        self.commit_failures = 0
        self._face = face
        self._chance = Random(f"{seed}:{name}")
        self._by_hand = by_hand
        self._polls_left = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            self._polls_left = self._chance.randint(5, 40)
            with self._face.consumer(
                self.bootstrap,
                group=self.group,
                topics=[self.topic],
                start="earliest",
                client_id=self.name,
                enable_auto_commit=not self._by_hand,
                auto_commit_interval_ms=100,
                heartbeat_interval_ms=200,
                # A join whose answer is lost is missed after this long, and a bit.
                max_poll_interval_ms=4000,
                session_timeout_ms=6000,
                fetch_max_wait_ms=200,
                # So that there is always something that was fetched and not handed out.
                max_poll_records=20,
                **IMPATIENT,
            ) as consumer:
                while self._polls_left and not self.stopping.is_set():
                    self._poll_once(consumer)

    def _poll_once(self, consumer: Any) -> None:
        last: dict[TopicPartition, int] = {}
        for record in consumer.poll(timeout=POLL_S):
            partition = TopicPartition(record.topic, record.partition)
            earlier = last.get(partition, -1)
            assert record.offset > earlier, f"{partition}: {record.offset} came after {earlier}"
            assert record.value is not None
            last[partition] = record.offset
            self.received.setdefault(record.partition, set()).add(record.offset)
            self.acknowledged_count += 1
        if not last:
            return
        self._polls_left -= 1
        if self._by_hand:
            self._commit(consumer)

    def _commit(self, consumer: Any) -> None:
        """A commit that fails is tried again by the next one, or comes to nothing with the membership."""
        try:
            consumer.commit()
        except klamm.GroupError:
            self.commit_failures += 1
        except klamm.ClientError as error:
            assert error.retriable, f"a commit failed for good: {error!r}"
            self.commit_failures += 1
