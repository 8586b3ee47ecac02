"""The adapter of aiokafka: Python on asyncio, with codecs in Cython."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError
from tests.clients.contract import (
    COMMON_FEATURES,
    CREATE_TIME,
    HEARTBEAT_INTERVAL_MS,
    LOG_APPEND_TIME,
    METADATA_MAX_AGE_MS,
    PATIENCE_SECONDS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STATIC_MEMBERS,
    AdminClient,
    ClientError,
    GroupDescription,
    Member,
    Received,
    Record,
)
from tests.clients.threaded_member import ThreadedMember

STRATEGIES = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
T = TypeVar("T")


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise ClientError(getattr(error, "errno", -1), str(error)) from error


def _received(record: Any) -> Received:
    return Received(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple((name, bytes(value)) for name, value in record.headers),
        record.timestamp,
        {0: CREATE_TIME, 1: LOG_APPEND_TIME}.get(record.timestamp_type, str(record.timestamp_type)),
    )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: AioMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.note_revoked(frozenset(one.partition for one in revoked))

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.note_assigned(frozenset(one.partition for one in assigned))


class AioMember(ThreadedMember):
    """A member with a loop of its own, which runs whenever the thread polls: almost always."""

    def __init__(self, name: str, topic: str, settings: dict[str, Any]) -> None:
        super().__init__(name)
        self._topic = topic
        self._settings = settings
        self._runner = asyncio.Runner()

    def _open(self) -> None:
        self._runner.run(self._start())

    async def _start(self) -> None:
        self._consumer = AIOKafkaConsumer(**self._settings)
        self._consumer.subscribe([self._topic], listener=_Listener(self))
        await self._consumer.start()

    def _poll(self) -> Sequence[Received]:
        batches = self._runner.run(self._consumer.getmany(timeout_ms=50))
        return [_received(record) for records in batches.values() for record in records]

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        chosen = None
        if offsets is not None:
            chosen = {TopicPartition(self._topic, number): offset for number, offset in offsets.items()}
        with translated_errors():
            self._runner.run(self._consumer.commit(chosen))

    def _close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


class AioClient(AdminClient):
    name = "aiokafka"
    features = COMMON_FEATURES | {STATIC_MEMBERS}
    strategies = tuple(STRATEGIES)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()
        self._administrator = self._run(self._start_administrator())

    async def _start_administrator(self) -> AIOKafkaAdminClient:
        administrator = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await administrator.start()
        return administrator

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with translated_errors():
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        self._run(self._administrator.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

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
        settings = {
            "compression_type": None if codec == "none" else codec,
            "acks": "all" if acks == "all" else int(acks),
            "enable_idempotence": idempotent,
            "linger_ms": 5,
            "max_request_size": 10_000_000,
        }
        return self._run(self._produce(topic, records, partition, settings))

    async def _produce(
        self, topic: str, records: Sequence[Record], partition: int, settings: dict[str, Any]
    ) -> list[int]:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **settings)
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            answers = await asyncio.gather(*futures)
            # With acks=0 there is no answer, and the client says None.
            return [-1 if answer is None else answer.offset for answer in answers]
        finally:
            await producer.stop()

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        return self._run(self._consume(topic, partition, offset, count))

    async def _consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        wanted = TopicPartition(topic, partition)
        got: list[Received] = []
        async with self._plain_consumer() as consumer:
            consumer.assign([wanted])
            consumer.seek(wanted, offset)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + PATIENCE_SECONDS
            while len(got) < count and loop.time() < deadline:
                batches = await consumer.getmany(timeout_ms=1_000, max_records=count - len(got))
                got.extend(_received(record) for record in batches.get(wanted, ()))
        return got

    def _plain_consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="none", enable_auto_commit=False
        )

    def join(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        strategy: str,
        instance_id: str | None = None,
    ) -> Member:
        settings = self.member_settings(group, client_id, strategy) | {"group_instance_id": instance_id}
        return AioMember(client_id, topic, settings).start()

    def member_settings(self, group: str, client_id: str, strategy: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._bootstrap,
            "group_id": group,
            "client_id": client_id,
            "partition_assignment_strategy": (STRATEGIES[strategy],),
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        }

    # ---- administration

    def list_topics(self) -> set[str]:
        return set(self._run(self._administrator.list_topics()))

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, topic_configs=dict(config or {}))
        answer = self._run(self._administrator.create_topics([new]))
        _raise_first(answer.topic_errors, code_at=1)

    def delete_topic(self, topic: str) -> None:
        answer = self._run(self._administrator.delete_topics([topic]))
        _raise_first(answer.topic_error_codes, code_at=1)

    def partition_count(self, topic: str) -> int:
        (found,) = self._run(self._administrator.describe_topics([topic]))
        if found["error_code"]:
            raise ClientError(found["error_code"], f"describe {topic}")
        return len(found["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        answer = self._run(self._administrator.create_partitions({topic: NewPartitions(total)}))
        _raise_first(answer.topic_errors, code_at=1)

    def topic_config(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._run(self._administrator.describe_configs([resource]))
        _raise_first(answer.resources, code_at=0)
        return {entry[0]: entry[1] for entry in answer.resources[0][4]}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """aiokafka knows only AlterConfigs, which replaces all of a topic's configuration."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
        (answer,) = self._run(self._administrator.alter_configs([resource]))
        _raise_first(answer.resources, code_at=0)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = TopicPartition(topic, partition)
        answer = self._run(self._administrator.delete_records({wanted: RecordsToDelete(before)}))
        return answer[wanted]

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        return self._run(self._watermarks(TopicPartition(topic, partition)))

    async def _watermarks(self, wanted: TopicPartition) -> tuple[int, int]:
        async with self._plain_consumer() as consumer:
            beginnings = await consumer.beginning_offsets([wanted])
            ends = await consumer.end_offsets([wanted])
        return beginnings[wanted], ends[wanted]

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        return self._run(self._offset_for_time(TopicPartition(topic, partition), timestamp_ms))

    async def _offset_for_time(self, wanted: TopicPartition, timestamp_ms: int) -> int | None:
        async with self._plain_consumer() as consumer:
            found = (await consumer.offsets_for_times({wanted: timestamp_ms}))[wanted]
        return None if found is None else found.offset

    def list_groups(self) -> set[str]:
        return {group[0] for group in self._run(self._administrator.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupDescription:
        (answer,) = self._run(self._administrator.describe_consumer_groups([group]))
        (found,) = answer.groups
        if found[0]:
            raise ClientError(found[0], f"describe {group}")
        return GroupDescription(found[2], {member[-4]: _assigned(member[-1]) for member in found[5]})

    def delete_group(self, group: str) -> None:
        raise NotImplementedError("aiokafka has no call for this")

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        wanted = TopicPartition(topic, partition)
        found = self._run(self._administrator.list_consumer_group_offsets(group, partitions=[wanted]))
        return None if wanted not in found or found[wanted].offset < 0 else found[wanted].offset

    def delete_group_offsets(self, group: str, topic: str, partition: int) -> None:
        raise NotImplementedError("aiokafka has no call for this")


def _raise_first(rows: Sequence[Sequence[Any]], code_at: int) -> None:
    """aiokafka hands back the broker's answer; the errors in it are for its user to read."""
    for row in rows:
        if row[code_at]:
            raise ClientError(row[code_at], str(row))


def _assigned(data: bytes) -> frozenset[int]:
    if not data:
        return frozenset()
    assignment = ConsumerProtocolMemberAssignment.decode(data).assignment
    return frozenset(number for _, numbers in assignment for number in numbers)
