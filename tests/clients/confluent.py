"""The adapter of confluent-kafka: librdkafka, written in C, under most clients of most languages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient as Administrator,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.clients.contract import (
    COMMON_FEATURES,
    CREATE_TIME,
    DELETES_GROUPS,
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

STRATEGIES = {"range": "range", "roundrobin": "roundrobin", "cooperative": "cooperative-sticky"}


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _translate(error.args[0]) from error


def _translate(error: confluent_kafka.KafkaError) -> ClientError:
    return ClientError(error.code(), error.str())


def _received(message: confluent_kafka.Message) -> Received:
    kind, timestamp_ms = message.timestamp()
    return Received(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        timestamp_ms,
        {1: CREATE_TIME, 2: LOG_APPEND_TIME}.get(kind, str(kind)),
    )


class ConfluentMember(ThreadedMember):
    def __init__(self, name: str, topic: str, settings: dict[str, Any]) -> None:
        super().__init__(name)
        self._topic = topic
        self._settings = settings
        self._is_cooperative = "cooperative" in settings["partition.assignment.strategy"]

    def _open(self) -> None:
        self._consumer = confluent_kafka.Consumer(self._settings)
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: Any, partitions: list[TopicPartition]) -> None:
        new = frozenset(partition.partition for partition in partitions)
        self.note_assigned(self._assignment | new if self._is_cooperative else new)

    def _on_revoke(self, _: Any, partitions: list[TopicPartition]) -> None:
        self.note_revoked(frozenset(partition.partition for partition in partitions))

    def _poll(self) -> Sequence[Received]:
        messages = self._consumer.consume(500, timeout=0.05)
        for message in messages:
            if message.error() is not None:
                raise _translate(message.error())
        return [_received(message) for message in messages]

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        with translated_errors():
            if offsets is None:
                self._consumer.commit(asynchronous=False)
            else:
                chosen = [TopicPartition(self._topic, number, offset) for number, offset in offsets.items()]
                self._consumer.commit(offsets=chosen, asynchronous=False)

    def _close(self) -> None:
        self._consumer.close()


class ConfluentClient(AdminClient):
    name = "confluent-kafka"
    features = COMMON_FEATURES | {STATIC_MEMBERS, DELETES_GROUPS}
    strategies = tuple(STRATEGIES)

    def __init__(self, bootstrap: str) -> None:
        self._common = {"bootstrap.servers": bootstrap}
        self._administrator = Administrator(self._common)

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
        producer = confluent_kafka.Producer(
            self._common
            | {
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "message.max.bytes": 10_000_000,
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
            }
        )
        offsets: list[int] = []
        errors: list[confluent_kafka.KafkaError] = []

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=delivered,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
        assert producer.flush(PATIENCE_SECONDS) == 0, "records were left in the producer's queue"
        if errors:
            raise _translate(errors[0])
        return offsets

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        consumer = self._plain_consumer()
        got: list[Received] = []
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(got) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(got), timeout=1.0):
                    if message.error() is not None:
                        raise _translate(message.error())
                    got.append(_received(message))
        finally:
            consumer.close()
        return got

    def _plain_consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            self._common | {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error"}
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
        settings = self.member_settings(group, client_id, strategy)
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        return ConfluentMember(client_id, topic, settings).start()

    def member_settings(self, group: str, client_id: str, strategy: str) -> dict[str, Any]:
        return self._common | {
            "group.id": group,
            "client.id": client_id,
            "partition.assignment.strategy": STRATEGIES[strategy],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "max.poll.interval.ms": REBALANCE_TIMEOUT_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
        }

    # ---- administration

    def _result(self, futures: Mapping[Any, Future[Any]]) -> Any:
        """The one result of a call about one thing."""
        with translated_errors():
            (future,) = futures.values()
            return future.result(PATIENCE_SECONDS)

    def list_topics(self) -> set[str]:
        return set(self._administrator.list_topics(timeout=PATIENCE_SECONDS).topics)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        self._result(self._administrator.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        self._result(self._administrator.delete_topics([topic]))

    def partition_count(self, topic: str) -> int:
        found = self._administrator.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic]
        if found.error is not None:
            raise _translate(found.error)
        return len(found.partitions)

    def create_partitions(self, topic: str, total: int) -> None:
        self._result(self._administrator.create_partitions([NewPartitions(topic, total)]))

    def topic_config(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._result(self._administrator.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._result(self._administrator.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = TopicPartition(topic, partition, before)
        return int(self._result(self._administrator.delete_records([wanted])).low_watermark)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        return self._list_offset(topic, partition, OffsetSpec.earliest()), self._list_offset(
            topic, partition, OffsetSpec.latest()
        )

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = self._list_offset(topic, partition, OffsetSpec.for_timestamp(timestamp_ms))
        return None if offset < 0 else offset

    def _list_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        wanted = {TopicPartition(topic, partition): spec}
        return int(self._result(self._administrator.list_offsets(wanted)).offset)

    def list_groups(self) -> set[str]:
        listing = self._administrator.list_consumer_groups().result(PATIENCE_SECONDS)
        assert not listing.errors, listing.errors
        return {group.group_id for group in listing.valid}

    def describe_group(self, group: str) -> GroupDescription:
        found = self._result(self._administrator.describe_consumer_groups([group]))
        members = {
            member.client_id: frozenset(one.partition for one in member.assignment.topic_partitions)
            for member in found.members
        }
        return GroupDescription(_camel_case(found.state.name), members)

    def delete_group(self, group: str) -> None:
        self._result(self._administrator.delete_consumer_groups([group]))

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        request = confluent_kafka.ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        found = self._result(self._administrator.list_consumer_group_offsets([request]))
        offset = found.topic_partitions[0].offset
        return None if offset < 0 else int(offset)

    def delete_group_offsets(self, group: str, topic: str, partition: int) -> None:
        raise NotImplementedError("confluent-kafka has no call for this")


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
