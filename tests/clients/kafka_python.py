"""The adapter of kafka-python 3: pure Python, threads and blocking calls."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import kafka.errors
from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.admin import ConfigResource, NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import BrokerResponseError, KafkaError
from tests.clients.contract import (
    COMMON_FEATURES,
    CREATE_TIME,
    DELETES_GROUP_OFFSETS,
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

STRATEGIES = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative": CooperativeStickyAssignor,
}


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise ClientError(getattr(error, "errno", -1), str(error)) from error


def _raise_for(result: Any) -> None:
    """Raise what some calls return: the class of an error, its name, or its text with the number in it."""
    if isinstance(result, str) and result != "OK":
        number = re.match(r"\[Error (\d+)\]", result)
        raise ClientError(int(number[1]) if number else getattr(kafka.errors, result).errno, result)
    if isinstance(result, type) and issubclass(result, BrokerResponseError) and result.errno != 0:
        raise ClientError(result.errno, result.__name__)


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
    def __init__(self, member: KafkaPythonMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.note_revoked(frozenset(one.partition for one in revoked))

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.note_new(frozenset(one.partition for one in assigned))


class KafkaPythonMember(ThreadedMember):
    def __init__(self, name: str, topic: str, is_cooperative: bool, settings: dict[str, Any]) -> None:
        super().__init__(name)
        self._topic = topic
        self._is_cooperative = is_cooperative
        self._settings = settings

    def note_new(self, new: frozenset[int]) -> None:
        self.note_assigned(self._assignment | new if self._is_cooperative else new)

    def _open(self) -> None:
        self._consumer = KafkaConsumer(**self._settings)
        self._consumer.subscribe([self._topic], listener=_Listener(self))

    def _poll(self) -> Sequence[Received]:
        # A poll that runs out in the middle of a join makes kafka-python 3.0 forget the join and wait for
        # ever, so the poll is longer than a join takes.
        batches = self._consumer.poll(timeout_ms=1_000)
        return [_received(record) for records in batches.values() for record in records]

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        chosen = None
        if offsets is not None:
            chosen = {
                TopicPartition(self._topic, number): OffsetAndMetadata(offset, "", -1)
                for number, offset in offsets.items()
            }
        with translated_errors():
            self._consumer.commit(chosen)

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonClient(AdminClient):
    name = "kafka-python"
    features = COMMON_FEATURES | {STATIC_MEMBERS, DELETES_GROUPS, DELETES_GROUP_OFFSETS}
    strategies = tuple(STRATEGIES)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._administrator = KafkaAdminClient(bootstrap_servers=bootstrap)

    def close(self) -> None:
        self._administrator.close()

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
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
            max_request_size=10_000_000,
        )
        try:
            with translated_errors():
                futures = [
                    producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                producer.flush(timeout=PATIENCE_SECONDS)
                return [future.get(timeout=PATIENCE_SECONDS).offset for future in futures]
        finally:
            producer.close(timeout=PATIENCE_SECONDS)

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        consumer = self._plain_consumer()
        got: list[Received] = []
        try:
            wanted = TopicPartition(topic, partition)
            consumer.assign([wanted])
            consumer.seek(wanted, offset)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(got) < count and time.monotonic() < deadline:
                with translated_errors():
                    batches = consumer.poll(timeout_ms=1_000, max_records=count - len(got))
                got.extend(_received(record) for record in batches.get(wanted, ()))
        finally:
            consumer.close()
        return got

    def _plain_consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
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
        settings = {
            "bootstrap_servers": self._bootstrap,
            "group_id": group,
            "client_id": client_id,
            "group_instance_id": instance_id,
            "partition_assignment_strategy": [STRATEGIES[strategy]],
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            "max_poll_interval_ms": REBALANCE_TIMEOUT_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        }
        return KafkaPythonMember(client_id, topic, strategy == "cooperative", settings).start()

    # ---- administration

    def list_topics(self) -> set[str]:
        return set(self._administrator.list_topics())

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, topic_configs=dict(config or {}))
        with translated_errors():
            self._administrator.create_topics([new])

    def delete_topic(self, topic: str) -> None:
        with translated_errors():
            self._administrator.delete_topics([topic])

    def partition_count(self, topic: str) -> int:
        with translated_errors():
            (found,) = self._administrator.describe_topics([topic])
        if found["error_code"]:
            raise ClientError(found["error_code"], f"describe {topic}")
        return len(found["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        with translated_errors():
            self._administrator.create_partitions({topic: total})

    def topic_config(self, topic: str) -> dict[str, str | None]:
        with translated_errors():
            found = self._administrator.describe_configs(
                [ConfigResource("TOPIC", topic)], config_filter="all"
            )
        (resources,) = found.values()
        return {name: entry["value"] for name, entry in resources[topic].items()}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        with translated_errors():
            # Unknown names are for the broker to refuse, so the client's own check is off.
            found = self._administrator.alter_configs(
                [ConfigResource("TOPIC", topic, dict(config))], raise_on_unknown=False
            )
        (resources,) = found.values()
        _raise_for(resources[topic])

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = TopicPartition(topic, partition)
        with translated_errors():
            return int(self._administrator.delete_records({wanted: before})[wanted]["low_watermark"])

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        wanted = TopicPartition(topic, partition)
        consumer = self._plain_consumer()
        try:
            with translated_errors():
                return consumer.beginning_offsets([wanted])[wanted], consumer.end_offsets([wanted])[wanted]
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        wanted = TopicPartition(topic, partition)
        consumer = self._plain_consumer()
        try:
            with translated_errors():
                found = consumer.offsets_for_times({wanted: timestamp_ms})[wanted]
        finally:
            consumer.close()
        return None if found is None or found.offset < 0 else int(found.offset)

    def list_groups(self) -> set[str]:
        return {group["group_id"] for group in self._administrator.list_groups()}

    def describe_group(self, group: str) -> GroupDescription:
        with translated_errors():
            found = self._administrator.describe_groups([group])[group]
        members = {
            member["client_id"]: frozenset(
                number for topic in _assigned_topics(member) for number in topic["partitions"]
            )
            for member in found["members"]
        }
        return GroupDescription(found["group_state"], members)

    def delete_group(self, group: str) -> None:
        with translated_errors():
            result = self._administrator.delete_groups([group])
        _raise_for(dict(result)[group])

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        wanted = TopicPartition(topic, partition)
        with translated_errors():
            found = self._administrator.list_group_offsets({group: [wanted]})[group].get(wanted)
        return None if found is None or found.offset < 0 else int(found.offset)

    def delete_group_offsets(self, group: str, topic: str, partition: int) -> None:
        wanted = TopicPartition(topic, partition)
        with translated_errors():
            result = self._administrator.delete_group_offsets(group, [wanted])
        _raise_for(result[wanted])


def _assigned_topics(member: dict[str, Any]) -> list[dict[str, Any]]:
    assignment = member["member_assignment"]
    return assignment["assigned_partitions"] if assignment else []
