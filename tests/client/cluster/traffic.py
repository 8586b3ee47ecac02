"""Records on their way while a test moves the cluster: none may be lost, come twice or out of order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from klamm.client.results import Record, TopicPartition
from tests.client.cluster.places import FAILOVER_PATIENCE_S, Place
from tests.client.faces import Face
from tests.waiting import wait_until

UNACKNOWLEDGED = 50
"""Records that wait for their acknowledgement at most."""

BETWEEN_RECORDS_S = 0.002
POLL_S = 0.1


class Traffic:
    """An idempotent producer that sends numbers to a new partition, and a consumer that reads them."""

    def __init__(self, face: Face, place: Place, partition: TopicPartition) -> None:
        self.partition = partition
        self.records: list[Record] = []
        self.deliveries: list[Any] = []
        self._producer = face.producer(**place.at(), acks="all", linger_ms=1)
        self._consumer = face.consumer(**place.at(), start="earliest")
        self._consumer.assign([partition])
        self._stopping = threading.Event()
        self._has_ended = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"traffic-{work.__name__}")
            for work in (self._send, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self._failure = failure

    def _send(self) -> None:
        topic, index = self.partition
        while not self._stopping.wait(BETWEEN_RECORDS_S):
            value = b"%d" % len(self.deliveries)
            self.deliveries.append(self._producer.send(topic, value, partition=index))
            if len(self.deliveries) > UNACKNOWLEDGED:
                self.deliveries[-UNACKNOWLEDGED].result(FAILOVER_PATIENCE_S)
        self._producer.flush()

    def _read(self) -> None:
        while not self._has_ended.is_set():
            self.records += self._consumer.poll(timeout=POLL_S)

    def go_on(self, count: int = 20) -> None:
        """Wait until records that are sent from now on have been read."""
        goal = len(self.deliveries) + count

        def is_there() -> bool:
            if self._failure is not None:
                raise AssertionError(f"the traffic has ended: {self._failure!r}") from self._failure
            return len(self.records) >= goal

        wait_until(
            is_there, lambda: f"{goal} records were read, not {len(self.records)}", FAILOVER_PATIENCE_S
        )

    def __enter__(self) -> Traffic:
        self.go_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Stop, and if nothing else failed: hold that all that was sent has come, once and in order."""
        try:
            if kind is None:
                self.go_on()
                self._stopping.set()
                self._threads[0].join(FAILOVER_PATIENCE_S)
                wait_until(
                    lambda: self._failure or len(self.records) >= len(self.deliveries),
                    "all records were read",
                )
        finally:
            self._stopping.set()
            self._has_ended.set()
            for thread in self._threads:
                thread.join(FAILOVER_PATIENCE_S)
        if kind is None:
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"the traffic has ended: {self._failure!r}") from self._failure
        count = len(self.deliveries)
        assert [delivery.result().offset for delivery in self.deliveries] == list(range(count))
        assert [(one.offset, one.value) for one in self.records] == [(n, b"%d" % n) for n in range(count)]
        epochs = [one.leader_epoch for one in self.records]
        assert epochs == sorted(epochs)
