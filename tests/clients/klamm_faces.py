"""The adapters of our own client, plain and asyncio: one translation, because the faces agree."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tests.client.faces import AioFace, Face, PlainFace
from tests.clients.contract import (
    COMMON_FEATURES,
    DELETES_GROUP_OFFSETS,
    DELETES_GROUPS,
    HEARTBEAT_INTERVAL_MS,
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

import klamm

STRATEGIES = {
    "range": "range",
    "roundrobin": "roundrobin",
    "sticky": "sticky",
    "cooperative": "cooperative-sticky",
}


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of Klamm's client as the ClientError of the contract. A call here names one thing."""
    try:
        yield
    except klamm.ClientError as error:
        raise ClientError(-1 if error.code is None else int(error.code), str(error)) from error


def received_of(record: klamm.Record) -> Received:
    return Received(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple((name, value or b"") for name, value in record.headers),
        record.timestamp,
        record.timestamp_type,
    )


def member_options(group: str, client_id: str, strategy: str) -> dict[str, Any]:
    return {
        "group": group,
        "start": "earliest",
        "client_id": client_id,
        "partition_assignment_strategy": STRATEGIES[strategy],
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        "max_poll_interval_ms": REBALANCE_TIMEOUT_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
    }


class KlammMember(ThreadedMember):
    """A consumer of ours, polled by a thread."""

    def __init__(self, name: str, topic: str, make: Callable[[], Any]) -> None:
        super().__init__(name)
        self._topic = topic
        self._make = make

    def _open(self) -> None:
        self._consumer = self._make()
        self._consumer.subscribe(
            [self._topic],
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_revoked,
        )

    def _on_assigned(self, added: set[klamm.TopicPartition]) -> None:
        self.note_assigned(self._assignment | {one.partition for one in added})

    def _on_revoked(self, taken: set[klamm.TopicPartition]) -> None:
        self.note_revoked(frozenset(one.partition for one in taken))

    def _poll(self) -> Sequence[Received]:
        return [received_of(record) for record in self._consumer.poll(timeout=0.05)]

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        chosen = None
        if offsets is not None:
            chosen = {klamm.TopicPartition(self._topic, one): offset for one, offset in offsets.items()}
        with translated_errors():
            self._consumer.commit(chosen)

    def _close(self) -> None:
        self._consumer.close()


class KlammClient(AdminClient):
    """What the adapters of the plain and the asyncio client share."""

    features = COMMON_FEATURES | {STATIC_MEMBERS, DELETES_GROUPS, DELETES_GROUP_OFFSETS}
    strategies = tuple(STRATEGIES)
    make_face: ClassVar[Callable[[], Face]]

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._face = type(self).make_face()
        self._administrator = self._face.admin(bootstrap)

    def close(self) -> None:
        self._face.close()

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
        with (
            translated_errors(),
            self._face.producer(
                self._bootstrap,
                compression_type=codec,
                acks=acks,
                enable_idempotence=idempotent,
                # Without idempotence a batch that is sent again may come behind one sent after it.
                max_in_flight_requests_per_connection=5 if idempotent else 1,
                linger_ms=5,
                max_request_size=10_000_000,
            ) as producer,
        ):
            deliveries = [
                producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=partition,
                    timestamp=record.timestamp_ms,
                )
                for record in records
            ]
            return [delivery.result(PATIENCE_SECONDS).offset for delivery in deliveries]

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        got: list[Received] = []
        wanted = klamm.TopicPartition(topic, partition)
        deadline = time.monotonic() + PATIENCE_SECONDS
        with translated_errors(), self._face.consumer(self._bootstrap, start="none") as consumer:
            consumer.assign([wanted])
            consumer.seek(wanted, offset)
            while len(got) < count and time.monotonic() < deadline:
                records = consumer.poll(timeout=1.0, max_records=count - len(got))
                got.extend(received_of(record) for record in records)
        return got

    def join(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        strategy: str,
        instance_id: str | None = None,
    ) -> Member:
        def make() -> Any:
            return self._face.consumer(
                self._bootstrap,
                group_instance_id=instance_id,
                enable_auto_commit=False,
                **member_options(group, client_id, strategy),
            )

        return KlammMember(client_id, topic, make).start()

    # ---- administration

    def list_topics(self) -> set[str]:
        with translated_errors():
            return set(self._administrator.list_topics(include_internal=True))

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> None:
        with translated_errors():
            self._administrator.create_topic(topic, partitions, replication_factor, configs=config)

    def delete_topic(self, topic: str) -> None:
        with translated_errors():
            self._administrator.delete_topic(topic)

    def partition_count(self, topic: str) -> int:
        with translated_errors():
            return len(self._administrator.describe_topic(topic).partitions)

    def create_partitions(self, topic: str, total: int) -> None:
        with translated_errors():
            self._administrator.create_partitions(topic, total)

    def topic_config(self, topic: str) -> dict[str, str | None]:
        with translated_errors():
            entries = self._administrator.describe_config(klamm.ConfigResource.topic(topic))
        return {name: entry.value for name, entry in entries.items()}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        with translated_errors():
            self._administrator.alter_config(klamm.ConfigResource.topic(topic), set=config)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = klamm.TopicPartition(topic, partition)
        with translated_errors():
            low_watermark: int = self._administrator.delete_records({wanted: before})[wanted]
        return low_watermark

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        wanted = klamm.TopicPartition(topic, partition)
        with translated_errors(), self._face.consumer(self._bootstrap) as consumer:
            return consumer.beginning_offsets([wanted])[wanted], consumer.end_offsets([wanted])[wanted]

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        wanted = klamm.TopicPartition(topic, partition)
        with translated_errors(), self._face.consumer(self._bootstrap) as consumer:
            found = consumer.offsets_for_times({wanted: timestamp_ms})[wanted]
        return None if found is None else found.offset

    def list_groups(self) -> set[str]:
        with translated_errors():
            return {one.group for one in self._administrator.list_groups()}

    def describe_group(self, group: str) -> GroupDescription:
        with translated_errors():
            found = self._administrator.describe_group(group)
        return GroupDescription(
            found.state,
            {one.client_id: frozenset(each.partition for each in one.partitions) for one in found.members},
        )

    def delete_group(self, group: str) -> None:
        with translated_errors():
            self._administrator.delete_group(group)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        wanted = klamm.TopicPartition(topic, partition)
        with translated_errors():
            found = self._administrator.list_group_offsets(group, [wanted])
        return found[wanted].offset if wanted in found else None

    def delete_group_offsets(self, group: str, topic: str, partition: int) -> None:
        with translated_errors():
            self._administrator.delete_group_offsets(group, [(topic, partition)])


class KlammPlainClient(KlammClient):
    name = "klamm-plain"
    make_face = PlainFace


class KlammAioClient(KlammClient):
    name = "klamm-aio"
    make_face = AioFace
