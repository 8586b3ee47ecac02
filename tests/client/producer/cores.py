"""The cores of a producer on a clock that the test moves, and a log that takes batches as a broker does."""

from __future__ import annotations

from typing import Any

from klamm.client.network.backoff import Backoff
from klamm.client.producer.accumulator import Accumulator
from klamm.client.producer.batches import Batch
from klamm.client.producer.delivery import BatchDelivery
from klamm.client.producer.partitioners import Partitioner
from klamm.client.producer.settings import ProducerSettings
from klamm.client.producer.settling import Answer, Settling
from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import parse_header
from klamm.records.reader import StoredRecord, iter_records
from klamm.storage.producers.state import ProducerStates

NODE = 1
NOW_MS = 1_700_000_000_000
NO_PAUSE = 0.0


class Delivery(BatchDelivery):
    """Says at once what it knows."""

    def sent(self) -> Any:
        outcome = self._outcome()
        assert outcome is not None, "it is on its way"
        return self._sent(outcome)

    def error(self) -> Any:
        outcome = self._outcome()
        assert outcome is not None, "it is on its way"
        return self._error(outcome)


class Cores:
    """An accumulator and what settles its batches. All partitions are led by NODE unless told otherwise.

    `chooser` is a partitioner of the user's; `settings` are those of ProducerSettings. With `is_begun` the
    broker has heard of the producer before, so that its first batch need not go alone.
    """

    def __init__(
        self,
        partitions: int = 3,
        *,
        topic: str = "t",
        chooser: Partitioner | None = None,
        producer_id: int = 7,
        is_begun: bool = True,
        **settings: Any,
    ) -> None:
        settings.setdefault("backoff", Backoff(NO_PAUSE, NO_PAUSE))
        self.now = 1000.0
        self.topic = topic
        self.leaderless: set[int] = set()
        self.is_begun = is_begun
        self.accumulator = Accumulator(
            ProducerSettings(**settings),
            Delivery,
            clock=lambda: self.now,
            now_ms=lambda: NOW_MS,
            first_partition=lambda count: 0,
            partitioner=chooser,
        )
        self.settling = Settling(self.accumulator)
        self.accumulator.identity.producer_id = producer_id
        if partitions:
            self.know(partitions)

    @property
    def ledger(self) -> Any:
        return self.accumulator.ledger

    @property
    def schedule(self) -> Any:
        return self.accumulator.schedule

    def know(self, partitions: int, *, looked_up: bool = False, topic: str | None = None) -> None:
        """Metadata tells of the topic."""
        leaders = [index not in self.leaderless for index in range(partitions)]
        self.accumulator.topic_known(topic or self.topic, leaders, looked_up=looked_up, is_wanted=True)
        for queue in self.accumulator.topics[topic or self.topic].queues:
            if queue.sequences is not None and self.is_begun and queue.sequences.producer_id < 0:
                queue.sequences.producer_id = self.accumulator.identity.producer_id
                queue.sequences.is_begun = True

    def send(self, value: bytes | None = b"v", **more: Any) -> Delivery:
        return self.accumulator.append(more.pop("topic", self.topic), value, **more)

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        return None if partition in self.leaderless else (NODE, 0)

    def drain(self, *, may_take: bool = True, max_bytes: int = 1 << 20) -> list[Batch]:
        """One request's worth, encoded."""
        self.schedule.tick(self.now)
        taken = self.schedule.drain(self.now, self.leader_of, lambda node: may_take, max_bytes)
        batches = taken.get(NODE, [])
        for batch in batches:
            batch.encode()
        return batches

    def drain_all(self) -> list[Batch]:
        """All that may be sent now, request by request."""
        found: list[Batch] = []
        while batches := self.drain():
            found += batches
        return found

    def answer(self, batch: Batch, code: int = 0, **more: Any) -> None:
        offset = more.pop("base_offset", 0)
        self.settling.answered(batch, Answer(code, offset, **more), f"broker {NODE}", self.now, chance=0.5)

    def lose(self, batch: Batch, error: Any) -> None:
        self.settling.lost(batch, error, self.now, chance=0.5)

    def call_finished(self) -> int:
        """Call who waits, as the shell does; how many there were."""
        waiters, self.ledger.finished = self.ledger.finished, []
        for waiter in waiters:
            waiter()
        return len(waiters)


class PartitionLog:
    """Takes batches as a broker does, with its own bookkeeping of sequences."""

    def __init__(self) -> None:
        self.records: list[StoredRecord] = []
        self.producers = ProducerStates()

    def append(self, data: bytes | bytearray | memoryview) -> Answer:
        header = parse_header(data)
        if header.producer_id >= 0:
            try:
                duplicate = self.producers.check(header)
            except KafkaError as error:
                return Answer(error.code, message=error.message)
            if duplicate is not None:
                return Answer(ErrorCode.NONE, duplicate.last_offset - duplicate.offset_delta)
        base = len(self.records)
        self.records += [record._replace(offset=base + record.offset) for record in iter_records(bytes(data))]
        if header.producer_id >= 0:
            self.producers.record(header, len(self.records) - 1, 0)
        return Answer(ErrorCode.NONE, base)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]
