"""Members for mixed groups: ours in three ways, and those of other clients.

All commit before they give partitions up, and when they leave. Others than ours do so in their callbacks:
what their automatic commits leave out would be read twice (see tests/clients/FINDINGS.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from confluent_kafka import KafkaError, KafkaException

import klamm
import klamm.aio
from klamm.client.results import CommittedOffset, Record, TopicPartition
from tests.clients.aio import STRATEGIES as AIOKAFKA_STRATEGIES
from tests.clients.aio import AioMember
from tests.clients.confluent import STRATEGIES as CONFLUENT_STRATEGIES
from tests.clients.confluent import ConfluentMember
from tests.clients.conftest import Clients
from tests.clients.contract import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Received,
)
from tests.clients.remote import MEMBER_SETTINGS, JavaClient, RemoteMember
from tests.clients.threaded_member import ThreadedMember

POLL_SECONDS = 0.05

MixedMember: TypeAlias = ThreadedMember | RemoteMember
NewMember: TypeAlias = Callable[[Clients, str, str, str, str, str], MixedMember]
"""Makes a member of the arguments: clients, bootstrap, group, topic, name, strategy."""

OUR_STRATEGIES = {
    "range": "range",
    "roundrobin": "roundrobin",
    "sticky": "sticky",
    "cooperative": "cooperative-sticky",
}


def _received(record: Record) -> Received:
    return Received(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple((name, value or b"") for name, value in record.headers),
        record.timestamp,
        record.timestamp_type,
    )


def our_options(group: str, topic: str, name: str, strategy: str) -> dict[str, Any]:
    return {
        "group": group,
        "topics": [topic],
        "start": "earliest",
        "client_id": name,
        "partition_assignment_strategy": [OUR_STRATEGIES[strategy]],
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        "max_poll_interval_ms": REBALANCE_TIMEOUT_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
    }


class OurMember(ThreadedMember):
    """What our members have in common; `consumer` is whichever face it is."""

    consumer: Any

    def __init__(self, name: str, topic: str, bootstrap: str, options: dict[str, Any]) -> None:
        super().__init__(name)
        self._topic = topic
        self._bootstrap = bootstrap
        self._options = options

    @property
    def is_leader(self) -> bool:
        client = getattr(self.consumer, "_client", self.consumer)
        return bool(client._engine.group.is_leader)

    def _took(self, partitions: set[TopicPartition]) -> None:
        self.note_assigned(self._assignment | {each.partition for each in partitions})

    def _gave_up(self, partitions: set[TopicPartition]) -> None:
        self.note_revoked(frozenset(each.partition for each in partitions))

    def _offsets(self, offsets: Mapping[int, int] | None) -> dict[TopicPartition, CommittedOffset] | None:
        if offsets is None:
            return None
        return {TopicPartition(self._topic, number): CommittedOffset(one) for number, one in offsets.items()}


class PlainMember(OurMember):
    def _open(self) -> None:
        self.consumer = klamm.Consumer(self._bootstrap, **self._options)
        self.consumer.subscribe([self._topic], on_assigned=self._took, on_revoked=self._gave_up)

    def _poll(self) -> Sequence[Received]:
        return [_received(record) for record in self.consumer.poll(timeout=POLL_SECONDS)]

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        self.consumer.commit(self._offsets(offsets))

    def _close(self) -> None:
        self.consumer.commit()  # the last poll's are finished, which the consumer cannot know
        self.consumer.close()


class AsyncMember(OurMember):
    """With a loop of its own, which runs whenever the thread polls: almost always."""

    def _open(self) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._start())

    async def _start(self) -> None:
        self.consumer = klamm.aio.Consumer(self._bootstrap, **self._options)
        self.consumer.subscribe([self._topic], on_assigned=self._took, on_revoked=self._gave_up)
        await self.consumer.start()

    def _poll(self) -> Sequence[Received]:
        return [_received(record) for record in self._runner.run(self.consumer.poll(timeout=POLL_SECONDS))]

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        self._runner.run(self.consumer.commit(self._offsets(offsets)))

    def _close(self) -> None:
        self._runner.run(self.consumer.commit())
        self._runner.run(self.consumer.close())
        self._runner.close()


class SessionsMember(OurMember):
    """Reads in sessions, a task per claim; what it has counts as received when it is finished."""

    def _open(self) -> None:
        self._runner = asyncio.Runner()
        self._new: list[Received] = []
        self._runner.run(self._start())

    async def _start(self) -> None:
        self.consumer = klamm.aio.Consumer(self._bootstrap, **self._options)
        self._sessions = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for session in self.consumer.sessions():
            async with session, asyncio.TaskGroup() as tasks:
                self._took({claim.topic_partition for claim in session.claims})
                for claim in session.claims:
                    tasks.create_task(self._read(claim))
            self._gave_up({claim.topic_partition for claim in session.claims})

    async def _read(self, claim: klamm.aio.Claim) -> None:
        async for record in claim:
            self._new.append(_received(record))

    async def _let_run(self) -> None:
        await asyncio.wait([self._sessions], timeout=POLL_SECONDS)
        if self._sessions.done() and not self._leaving.is_set():
            self._sessions.result()

    def _poll(self) -> Sequence[Received]:
        self._runner.run(self._let_run())
        new, self._new = self._new, []
        return new

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        self._runner.run(self.consumer.commit(self._offsets(offsets)))

    async def _end(self) -> None:
        await self.consumer.close()
        await self._sessions

    def _close(self) -> None:
        self._runner.run(self._end())
        self._received.extend(self._new)
        self._runner.close()


class LibrdkafkaMember(ConfluentMember):
    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._commit_position()
        super()._on_revoke(consumer, partitions)

    def _close(self) -> None:
        self._commit_position()
        super()._close()

    def _commit_position(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise


class AiokafkaMember(AioMember):
    async def _start(self) -> None:
        self._consumer = AIOKafkaConsumer(**self._settings)
        self._consumer.subscribe([self._topic], listener=_CommittingListener(self))
        await self._consumer.start()

    def _close(self) -> None:
        self._runner.run(self._consumer.commit())
        super()._close()


class _CommittingListener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: AiokafkaMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        # aiokafka hands out records also while it waits for the commit, but none of what is paused.
        self._member._consumer.pause(*revoked)
        await self._member._consumer.commit()
        self._member.note_revoked(frozenset(each.partition for each in revoked))

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.note_assigned(frozenset(each.partition for each in assigned))


def _ours(kind: type[OurMember]) -> NewMember:
    def make(
        clients: Clients, bootstrap: str, group: str, topic: str, name: str, strategy: str
    ) -> MixedMember:
        return kind(name, topic, bootstrap, our_options(group, topic, name, strategy)).start()

    return make


def _java(clients: Clients, bootstrap: str, group: str, topic: str, name: str, strategy: str) -> MixedMember:
    java = clients.get(JavaClient.name)
    assert isinstance(java, JavaClient)
    settings = {"client_id": name, "strategy": strategy, "instance_id": None, "commits_when_revoked": True}
    handle = java._program.call("join", group=group, topic=topic, **settings, **MEMBER_SETTINGS)
    return RemoteMember(java._program, handle)


def _librdkafka(
    clients: Clients, bootstrap: str, group: str, topic: str, name: str, strategy: str
) -> MixedMember:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": name,
        "partition.assignment.strategy": CONFLUENT_STRATEGIES[strategy],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        "max.poll.interval.ms": REBALANCE_TIMEOUT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
    }
    return LibrdkafkaMember(name, topic, settings).start()


def _aiokafka(
    clients: Clients, bootstrap: str, group: str, topic: str, name: str, strategy: str
) -> MixedMember:
    settings = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "client_id": name,
        "partition_assignment_strategy": (AIOKAFKA_STRATEGIES[strategy],),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
    }
    return AiokafkaMember(name, topic, settings).start()


OURS: dict[str, NewMember] = {
    "plain": _ours(PlainMember),
    "aio": _ours(AsyncMember),
    "sessions": _ours(SessionsMember),
}
OTHERS: dict[str, tuple[NewMember, frozenset[str]]] = {
    "java": (_java, frozenset(OUR_STRATEGIES)),
    "librdkafka": (_librdkafka, frozenset(CONFLUENT_STRATEGIES)),
    "aiokafka": (_aiokafka, frozenset(AIOKAFKA_STRATEGIES)),
}
"""How to make a member of another client, and which strategies that knows."""
