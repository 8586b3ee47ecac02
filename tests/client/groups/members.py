"""Members for mixed groups: ours in three ways, and those of other clients.

All commit before they give partitions up, and when they leave. Others than ours do so in their callbacks:
what their automatic commits leave out would be read twice (see tests/clients/FINDINGS.md).

A cooperative member may be told to leave while it is still part of a rebalance that changes nothing for it.
No client commits then: it has to poll until the rebalance is over. (aiokafka has no cooperative members.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from confluent_kafka import KafkaError, KafkaException

import klamm
import klamm.aio
from klamm.model.errors import ErrorCode
from tests.client.faces import AioFace, PlainFace
from tests.clients.aio import AioClient, AioMember
from tests.clients.confluent import ConfluentClient, ConfluentMember
from tests.clients.conftest import Clients
from tests.clients.contract import PATIENCE_SECONDS, Received
from tests.clients.klamm_faces import STRATEGIES, KlammMember, member_options, received_of
from tests.clients.remote import MEMBER_SETTINGS, JavaClient, RemoteMember
from tests.clients.threaded_member import ThreadedMember

MOMENT_SECONDS = 0.05

REBALANCING = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)

OUR_STRATEGIES = tuple(STRATEGIES)

MixedMember: TypeAlias = ThreadedMember | RemoteMember


class Place:
    """Where a member goes: to this broker, into this group."""

    def __init__(self, clients: Clients, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        self.clients = clients
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.strategy = strategy


def commit_when_settled(member: ThreadedMember, commit: Callable[[], object]) -> None:
    """Commit, and poll until that is possible, for some time."""
    deadline = time.monotonic() + PATIENCE_SECONDS / 2
    while True:
        try:
            commit()
            return
        except (klamm.BrokerError, KafkaException) as error:
            code = error.code if isinstance(error, klamm.BrokerError) else error.args[0].code()
            if code not in REBALANCING or time.monotonic() > deadline:
                raise
        member._poll_once()


NewMember: TypeAlias = Callable[[Place, str], MixedMember]
"""Starts a member with a name."""


# ---- ours


class OurMember(KlammMember):
    """One that polls, with either face."""

    def __init__(self, place: Place, name: str, face: PlainFace | AioFace) -> None:
        options = member_options(place.group, name, place.strategy)
        super().__init__(name, place.topic, lambda: face.consumer(place.bootstrap, **options))
        self._face = face

    @property
    def is_leader(self) -> bool:
        return bool(getattr(self._consumer, "target", self._consumer)._engine.group.is_leader)

    def _finish(self) -> None:
        # What the last poll returned is finished, which the consumer cannot know.
        commit_when_settled(self, self._consumer.commit)

    def _close(self) -> None:
        self._consumer.close()
        self._face.close()


class SessionsMember(ThreadedMember):
    """Reads in sessions, a task per claim, on a loop that runs while the thread polls: almost always."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__(name)
        self._place = place
        self._options = member_options(place.group, name, place.strategy)
        self._new: list[Received] = []

    @property
    def is_leader(self) -> bool:
        assert self._consumer._engine.group is not None
        return self._consumer._engine.group.is_leader

    def _open(self) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._start())

    async def _start(self) -> None:
        self._consumer = klamm.aio.Consumer(
            self._place.bootstrap, topics=[self._place.topic], **self._options
        )
        self._sessions = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for session in self._consumer.sessions():
            claimed = frozenset(claim.partition for claim in session.claims)
            async with session, asyncio.TaskGroup() as tasks:
                self.note_assigned(claimed)
                for claim in session.claims:
                    tasks.create_task(self._read(claim))
            self.note_revoked(claimed)

    async def _read(self, claim: klamm.aio.Claim) -> None:
        async for record in claim:
            self._new.append(received_of(record))

    def _poll(self) -> Sequence[Received]:
        self._runner.run(self._let_run())
        new, self._new = self._new, []
        return new

    async def _let_run(self) -> None:
        await asyncio.wait([self._sessions], timeout=MOMENT_SECONDS)
        if self._sessions.done():
            self._sessions.result()

    def _commit(self, offsets: Mapping[int, int] | None) -> None:
        raise NotImplementedError("sessions commit by themselves")

    def _close(self) -> None:
        self._runner.run(self._end())
        self._received.extend(self._new)
        self._runner.close()

    async def _end(self) -> None:
        await self._consumer.close()
        await self._sessions


OURS: dict[str, NewMember] = {
    "plain": lambda place, name: OurMember(place, name, PlainFace()).start(),
    "aio": lambda place, name: OurMember(place, name, AioFace()).start(),
    "sessions": lambda place, name: SessionsMember(place, name).start(),
}


# ---- others


class LibrdkafkaMember(ConfluentMember):
    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._commit_position()
        super()._on_revoke(consumer, partitions)

    def _finish(self) -> None:
        commit_when_settled(self, self._commit_position)

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


def _java(place: Place, name: str) -> MixedMember:
    java = place.clients.get(JavaClient.name)
    assert isinstance(java, JavaClient)
    settings = {"client_id": name, "strategy": place.strategy, "instance_id": None}
    handle = java._program.call(
        "join",
        group=place.group,
        topic=place.topic,
        commits_when_revoked=True,
        **settings,
        **MEMBER_SETTINGS,
    )
    return RemoteMember(java._program, handle)


def _librdkafka(place: Place, name: str) -> MixedMember:
    client = place.clients.get(ConfluentClient.name)
    assert isinstance(client, ConfluentClient)
    settings = client.member_settings(place.group, name, place.strategy)
    return LibrdkafkaMember(name, place.topic, settings).start()


def _aiokafka(place: Place, name: str) -> MixedMember:
    client = place.clients.get(AioClient.name)
    assert isinstance(client, AioClient)
    settings = client.member_settings(place.group, name, place.strategy)
    return AiokafkaMember(name, place.topic, settings).start()


OTHERS: dict[str, tuple[NewMember, tuple[str, ...]]] = {
    "java": (_java, JavaClient.strategies),
    "librdkafka": (_librdkafka, ConfluentClient.strategies),
    "aiokafka": (_aiokafka, AioClient.strategies),
}
"""How to make a member of another client, and which strategies that knows."""
