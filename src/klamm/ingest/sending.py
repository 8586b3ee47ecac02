"""Sends blocks of records to a topic, and asks brokers after a crash which of them they have.

A block goes to one partition, so that its records have consecutive sequence numbers there (recovery.py). If a
broker is away, the producer waits for it without a limit: its buffer fills up, and reading stops.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from klamm.client.errors import ClientError, UnsupportedRequest
from klamm.client.plain.admin import Admin
from klamm.client.plain.producer import Producer, RangesDelivery
from klamm.client.producer import columns as columns  # compiled now, and not at the first line
from klamm.client.producer.partitioners import murmur2_partition
from klamm.config.client_config import Bootstrap, ClientConfig, ConfigGiven
from klamm.config.client_keys import ADMIN_KEYS
from klamm.config.rows import ConfigError
from klamm.ingest.columns import HEADERS, KEY, PARTITION, VALUE
from klamm.ingest.errors import IngestError
from klamm.ingest.positions import Target
from klamm.ingest.recovery import Remembered, next_sequence

DELIVERY_TIMEOUT_MS = 2**31 - 1
"""Lines are never given up because a broker is away; this is the longest possible time, 24 days."""

STABLE_S = 0.5
"""Requests that a killed process has sent may still be in the broker's socket. So the state of its producer
must stay the same for this long."""

STABLE_LIMIT_S = 30.0
"""A producer whose sequence numbers still rise after this time is running, and not ours."""

PARTITIONS_AGE_S = 30.0
"""New partitions of the topic are used after this time."""


class Acknowledged(NamedTuple):
    """The result of one send: its blocks, and the error if it failed."""

    block_ids: list[int]
    error: ClientError | None


class _NumberedProducer(Producer):
    """A producer that tells its producer id."""

    def producer_id(self) -> int:
        return self._run(self._client.producer_id())


class TopicWriter:
    """Sends to one topic."""

    def __init__(
        self,
        topic: str,
        bootstrap: Bootstrap = None,
        *,
        config: ConfigGiven = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """`config` and `options` are those of a producer. Raises IngestError if they are not valid, or the
        topic cannot be reached."""
        self.topic = topic
        given: dict[str, Any] = {
            "client.id": "klamm-ingest",
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "enable.idempotence": True,
        }
        given.update(options or {})
        self._acknowledged: deque[Acknowledged] = deque()
        self._news = threading.Event()
        self._sequences: dict[int, int] = {}
        self._turn = 0
        try:
            settings = ClientConfig("producer", bootstrap, config, given)
            if not settings.bool_("enable.idempotence"):
                raise ConfigError(
                    "enable.idempotence=false is not supported: lines could be written twice",
                    key="enable.idempotence",
                )
            self._admin_config = {name: settings[name] for name in ADMIN_KEYS if settings.given(name)}
            self._producer = _NumberedProducer(bootstrap, config=config, **given)
        except (ConfigError, OSError) as error:
            raise IngestError(str(error)) from error
        try:
            self._partitions = len(self._producer.partitions_for(topic))
            self.producer_id = self._producer.producer_id()
            self.target = self._describe()
        except ClientError as error:
            self.close()
            raise IngestError(f"cannot send to {topic}: {error}") from error
        self._partitions_at = time.monotonic()

    def close(self, timeout: float | None = 0.0) -> None:
        """Close the producer; waits at most `timeout` seconds for acknowledgements."""
        self._producer.close(timeout)

    # ---- sending

    def partition_for(self, key: bytes | None) -> int:
        """The partition of the next block."""
        if time.monotonic() - self._partitions_at > PARTITIONS_AGE_S:
            self._partitions_at = time.monotonic()
            with suppress(ClientError):  # then the number stays as it was
                self._partitions = len(self._producer.partitions_for(self.topic))
        if key is not None:
            return murmur2_partition(key, self._partitions)
        self._turn += 1
        return self._turn % self._partitions

    def number(self, partition: int, records: int) -> int:
        """Reserve the next `records` sequence numbers of a partition; returns the first."""
        first = self._sequences.get(partition, 0)
        self._sequences[partition] = next_sequence(first, records)
        return first

    def send(self, rows: Any, block_ids: list[int]) -> None:
        """Send rows whose blocks are noted and numbered. Waits while the producer's buffer is full."""
        names = rows.schema.names
        delivery = self._producer.send_arrow(
            rows,
            self.topic,
            value=VALUE,
            key=KEY if KEY in names else None,
            headers=HEADERS if HEADERS in names else None,
            partition=PARTITION,
        )

        def done(settled: RangesDelivery) -> None:
            self._acknowledged.append(Acknowledged(block_ids, settled.exception()))
            self._news.set()

        delivery.add_done_callback(done)

    def acknowledged(self) -> list[int]:
        """The blocks that were acknowledged since the last call. Raises IngestError if sending failed."""
        self._news.clear()
        block_ids: list[int] = []
        while self._acknowledged:
            result = self._acknowledged.popleft()
            if result.error is not None:
                raise IngestError(f"sending to {self.topic} failed: {result.error}")
            block_ids += result.block_ids
        return block_ids

    def wait(self, timeout: float) -> None:
        """Wait until more blocks are acknowledged, for `timeout` seconds at most."""
        self._news.wait(timeout)

    # ---- after a crash

    def remembered(
        self, places: Iterable[tuple[int, int]], stop: threading.Event
    ) -> dict[tuple[int, int], Remembered] | None:
        """The producer state of partitions, by partition and producer id; None if brokers cannot tell."""
        wanted = {place for place in places if place[0] < self._partitions}
        deadline = time.monotonic() + STABLE_LIMIT_S
        with Admin(config=self._admin_config) as admin:
            before = None
            while True:
                try:
                    now = self._ask(admin, wanted)
                except UnsupportedRequest:
                    return None
                except ClientError as error:
                    raise IngestError(
                        f"the producer state of {self.topic} cannot be read: {error}"
                    ) from error
                if now == before or time.monotonic() > deadline or stop.wait(STABLE_S):
                    return now
                before = now

    def _ask(self, admin: Admin, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], Remembered]:
        partitions = [(self.topic, number) for number in {partition for partition, _ in wanted}]
        return {
            (place.partition, one.producer_id): Remembered(one.producer_epoch, one.last_sequence)
            for place, producers in admin.describe_producers(partitions).items()
            for one in producers
            if (place.partition, one.producer_id) in wanted
        }

    def _describe(self) -> Target:
        with Admin(config=self._admin_config) as admin:
            cluster_id = admin.describe_cluster().cluster_id
            return Target(self.topic, admin.describe_topics([self.topic])[self.topic].topic_id, cluster_id)
