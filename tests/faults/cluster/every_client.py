"""The clients of `test_every_client.py`: producers that no other test of faults has, and four consumers.

The producers are idempotent, with acks=all. Each consumer is the only member of a group.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError

import klamm
from tests.conftest import cannot_run
from tests.faults.cluster.clients import DELIVERY_TIMEOUT_MS, FLUSH_S, PATIENT, READ_S, WritingClient
from tests.faults.cluster.history import Outcome, Place, Seen, Sent
from tests.peers.kafka_jars import PeerMissing, find_java, find_kafka_jars

TOPIC = "loaded"
PARTITIONS = 6
PACE_S = 0.02
"""Each producer sends at most 50 records a second: on two cores, all of them with three brokers."""


class AiokafkaWriter(WritingClient):
    """Its loop runs in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        super().__init__("aiokafka", topic, partitions, seed)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="aiokafka-loop", daemon=True).start()
        self._producer: Any = self._run(self._open(bootstrap))

    async def _open(self, bootstrap: str) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=2,
            # For aiokafka this is also how long a record may wait for its acknowledgement.
            request_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        await producer.start()
        return producer

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(FLUSH_S)

    def _flush(self) -> None:
        if self._loop.is_running():
            self._run(self._producer.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _send(self, at: int, partition: int, value: bytes) -> bool:
        try:
            self._run(self._send_on_loop(at, partition, value))
        except KafkaError:
            return False
        return True

    async def _send_on_loop(self, at: int, partition: int, value: bytes) -> None:
        delivery = await self._producer.send(self._topic, value, partition=partition)
        delivery.add_done_callback(lambda done: self._delivered(at, done))

    def _delivered(self, at: int, delivery: asyncio.Future[Any]) -> None:
        if not delivery.cancelled() and delivery.exception() is None:
            self._settle(at, delivery.result().offset)


class JavaWriter(WritingClient):
    """Kafka's own VerifiableProducer. It prints a line of JSON for each record when its outcome is known."""

    def __init__(self, bootstrap: str, directory: Path, topic: str, partitions: int, seed: int) -> None:
        super().__init__("java", topic, partitions, seed)
        self.tool = JavaTool(
            directory,
            "VerifiableProducer",
            # Without this, the tool would retry nothing.
            {
                "enable.idempotence": "true",
                "acks": "all",
                "retries": str(2**31 - 1),
                "delivery.timeout.ms": str(DELIVERY_TIMEOUT_MS),
            },
            *("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", str(round(1 / PACE_S))),
            # The keys, which reach all partitions, and the part of the values before the number.
            *("--repeating-keys", "100", "--value-prefix", "7"),
        )

    def _work(self) -> None:
        for event in self.tool.events():
            if event["name"] not in ("producer_send_success", "producer_send_error"):
                continue
            place = (self._topic, int(event.get("partition", -1)))
            # It may go on to send for a moment when its producer is closed already.
            is_closed = "IllegalState" in event.get("exception", "") and self._stopping.is_set()
            outcome = Outcome.REFUSED if is_closed else Outcome.UNKNOWN
            with self._lock:
                at = len(self._sent)
                self._sent.append(Sent(self.name, place, event["value"].encode(), outcome))
                self._sent_s.append(time.monotonic())
            if event["name"] == "producer_send_success":
                self._settle(at, event["offset"])

    def finish(self) -> list[Sent]:
        self.stop()
        super().finish()
        return sorted(self._sent, key=lambda record: int(record.value.rpartition(b".")[2]))

    def stop(self) -> None:
        super().stop()
        self.tool.stop()

    def _flush(self) -> None:
        """It has flushed when its output has ended."""

    def _send(self, at: int, partition: int, value: bytes) -> bool:
        raise AssertionError("the tool sends by itself")


class JavaTool:
    """One of Kafka's tools as a process. When told to stop it finishes what it has begun."""

    def __init__(self, directory: Path, tool: str, settings: dict[str, str], *arguments: str) -> None:
        try:
            java, jars = find_java(), find_kafka_jars()
        except PeerMissing as problem:
            cannot_run(problem)
        config = directory / f"{tool}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        with (directory / f"{tool}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"),
                    *(f"org.apache.kafka.tools.{tool}", "--command-config", str(config), *arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def events(self) -> Iterator[dict[str, Any]]:
        """What it prints, until it has ended."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                yield json.loads(line)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


# ---- the consumers


class Reader(ABC):
    """The only member of a group. It notes all that it is handed, in a thread of its own."""

    name: ClassVar[str]

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"{self.name} reader", daemon=True)
        self._session = 0
        self.seen: list[Seen] = []
        self.handed: set[tuple[Place, int]] = set()
        self.reached = dict.fromkeys(range(PARTITIONS), -1)
        """The last offset of each partition that it was handed."""
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def finish(self) -> list[Seen]:
        self.stop()
        self._thread.join(READ_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        assert self.failure is None, f"{self.name} has failed: {self.failure!r}"
        return self.seen

    def _work(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def _read(self) -> None:
        """Read until it is time to stop; tell `_new_session` and `_take`."""

    def _new_session(self, *_: object) -> None:
        self._session += 1

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        place = (TOPIC, partition)
        self.seen.append(Seen(self.name, self._session, place, offset, value))
        self.handed.add((place, offset))
        self.reached[partition] = offset


class LibrdkafkaReader(Reader):
    name = "librdkafka"

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **PATIENT,
                "bootstrap.servers": self._bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe([TOPIC], on_assign=self._new_session)
            while not self._stopping.is_set():
                for message in consumer.consume(500, 0.1):
                    if message.error() is None:
                        partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                        self._take(partition, offset, bytes(message.value() or b""))
        finally:
            consumer.close()


class KlammReader(Reader):
    name = "klamm"

    def _read(self) -> None:
        with klamm.Consumer(self._bootstrap, group=self.name, start="earliest") as consumer:
            consumer.subscribe(TOPIC, on_assigned=self._new_session)
            while not self._stopping.is_set():
                for record in consumer.poll(0.1):
                    self._take(record.partition, record.offset, record.value or b"")


class AiokafkaReader(Reader):
    name = "aiokafka"

    def _read(self) -> None:
        asyncio.run(self._read_on_loop())

    async def _read_on_loop(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=self.name, auto_offset_reset="earliest"
        )
        consumer.subscribe([TOPIC], listener=_Listener(self._new_session))
        await consumer.start()
        try:
            while not self._stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        self._take(record.partition, record.offset, record.value)
        finally:
            await consumer.stop()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, on_assigned: Callable[[], None]) -> None:
        self._on_assigned = on_assigned

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._on_assigned()


class JavaReader(Reader):
    """Kafka's own VerifiableConsumer."""

    name = "java"

    def __init__(self, bootstrap: str, directory: Path) -> None:
        super().__init__(bootstrap, directory)
        arguments = ("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group-id", self.name, "--verbose")
        self.tool = JavaTool(directory, "VerifiableConsumer", {}, *arguments)

    def _read(self) -> None:
        for event in self.tool.events():
            if event["name"] == "partitions_assigned":
                self._new_session()
            elif event["name"] == "record_data":
                self._take(event["partition"], event["offset"], event["value"].encode())

    def stop(self) -> None:
        super().stop()
        self.tool.stop()
