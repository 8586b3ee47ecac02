"""Random members doing random things on virtual time: what must hold after every step, and in the end."""

from __future__ import annotations

import random

import pytest

from klamm.groups.events import (
    Answered,
    Effect,
    GroupSettings,
    GroupState,
    Join,
    JoinResult,
    Leaver,
    Persist,
    Subscription,
    Sync,
    SyncResult,
    Token,
)
from klamm.groups.group import Group
from klamm.model.errors import ErrorCode
from tests.groups.scenario import subscription
from tests.long import cases

SESSION_TIMEOUT_MS = 10_000
REBALANCE_TIMEOUT_MS = 30_000
STEPS = 300


class Consumer:
    """A client that follows the protocol, except that it may be slow, forget itself or vanish."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.topics = ["t"]
        self.forget()

    def forget(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.others: tuple[str, ...] = ()
        self.assignment: bytes | None = None
        self.parked: Token | None = None


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delay_ms = self.random.choice([0, 3_000])
        self.group = Group("g", GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=6))
        self.now_ms = 0
        self.consumers = [Consumer(f"c{n}", f"s{n}" if n % 3 == 0 else None) for n in range(8)]
        self.parked: dict[Token, Consumer] = {}
        self.unwritten: list[Persist] = []
        self.tokens = 0
        self.highest_generation = 0

    def new_token(self, consumer: Consumer) -> Token:
        self.tokens += 1
        token = Token(self.tokens)
        self.parked[token] = consumer
        consumer.parked = token
        return token

    def step(self) -> None:
        choice = self.random.random()
        consumer = self.random.choice(self.consumers)
        if choice < 0.25:
            self.pass_time(self.random.choice([1, 500, 3_000, 7_000]))
        elif choice < 0.40 and self.unwritten:
            self.finish_write(self.random.random() < 0.8)
        elif choice < 0.44:
            consumer.forget()
        elif choice < 0.48:
            consumer.topics = self.random.choice([["t"], ["t", "u"]])
            self.join(consumer)
        elif choice < 0.52 and consumer.member_id:
            self.group.leave([Leaver(consumer.member_id, consumer.instance_id)], self.now_ms)
            consumer.forget()
        else:
            self.act(consumer)
        self.perform(self.group.take_effects())
        self.check()

    def act(self, consumer: Consumer) -> None:
        """What a well-behaved client would do next."""
        if consumer.parked is not None:
            return
        if consumer.generation < 0:
            self.join(consumer)
        elif consumer.assignment is None:
            self.sync(consumer)
        else:
            identity = (consumer.member_id, consumer.instance_id, consumer.generation)
            error = self.group.heartbeat(*identity, self.now_ms)
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                self.join(consumer)
            elif error is not ErrorCode.NONE:
                consumer.forget()

    def join(self, consumer: Consumer) -> None:
        request = Join(
            member_id=consumer.member_id,
            instance_id=consumer.instance_id,
            client_id=consumer.name,
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            protocol_type="consumer",
            protocols=(Subscription("range", subscription(*consumer.topics)),),
            new_member_id=f"{consumer.name}-{self.tokens}",
            requires_known_member_id=self.random.random() < 0.7,
            can_skip_assignment=self.random.random() < 0.5,
        )
        self.group.join(request, self.new_token(consumer), self.now_ms)

    def sync(self, consumer: Consumer) -> None:
        assignments = {}
        if consumer.is_leader:
            assignments = {other: f"{consumer.generation}:{other}".encode() for other in consumer.others}
        identity = (consumer.member_id, consumer.instance_id, consumer.generation)
        request = Sync(*identity, "consumer", "range", assignments)
        self.group.sync(request, self.new_token(consumer), self.now_ms)

    def pass_time(self, amount_ms: int) -> None:
        self.now_ms += amount_ms
        deadline_ms = self.group.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.group.on_time(self.now_ms)

    def finish_write(self, succeeds: bool) -> None:
        write = self.unwritten.pop(0)
        if succeeds:
            self.group.persisted(write.ticket, self.now_ms)
        else:
            self.group.persist_failed(write.ticket, ErrorCode.NOT_COORDINATOR, self.now_ms)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.unwritten.append(effect)
                continue
            consumer = self.parked.pop(effect.token)  # a KeyError here is an answer given twice
            if consumer.parked == effect.token:
                consumer.parked = None
                self.note(consumer, effect)

    def note(self, consumer: Consumer, effect: Answered) -> None:
        result = effect.result
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(result, JoinResult)
            consumer.member_id = result.member_id
        elif result.error is ErrorCode.REBALANCE_IN_PROGRESS:
            consumer.generation = -1
        elif result.error is not ErrorCode.NONE:
            consumer.forget()
        elif isinstance(result, JoinResult):
            consumer.member_id, consumer.generation = result.member_id, result.generation
            consumer.is_leader = result.leader_id == result.member_id
            consumer.others = tuple(member.member_id for member in result.members)
            consumer.assignment = None
        else:
            assert isinstance(result, SyncResult)
            consumer.assignment = result.assignment

    def check(self) -> None:
        group = self.group
        assert group.generation >= self.highest_generation, "a generation went back"
        self.highest_generation = group.generation
        members = list(group.members)
        assert len(members) <= 6 or group.state is GroupState.PREPARING_REBALANCE, "too many members"
        assert bool(members) == (group.state is not GroupState.EMPTY), (group.state, len(members))
        assert (group.members.leader_id in group.members) == bool(members), "the leader is not a member"
        instance_ids = [member.instance_id for member in members if member.instance_id is not None]
        assert len(instance_ids) == len(set(instance_ids)), "two members share a static name"
        held = [token for m in members for token in (m.join_token, m.sync_token) if token is not None]
        assert sorted(held) == sorted(self.parked), "a parked request that no member holds, or the reverse"
        if group.state is GroupState.STABLE:
            assert all(m.sync_token is None for m in members), "parked in sync though the group is stable"

    def settle(self) -> None:
        """The log works, everybody behaves, time passes: the group must come to rest."""
        for consumer in self.consumers:
            consumer.topics = ["t"]
        for _ in range(300):
            while self.unwritten:
                self.finish_write(True)
                self.perform(self.group.take_effects())
            for consumer in self.consumers:
                self.act(consumer)
                self.perform(self.group.take_effects())
            self.pass_time(1_000)
            self.perform(self.group.take_effects())
            self.check()


@pytest.mark.parametrize("seed", cases(range(150), lambda seed: seed < 30))
def test_random_members(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    group = world.group
    assert group.state is GroupState.STABLE, f"seed {seed}: {group.state}"
    assert not [c for c in world.parked.values() if c.member_id in group.members], f"seed {seed}"
    owners = {consumer.member_id: consumer for consumer in world.consumers}
    for member in group.members:
        consumer = owners[member.member_id]
        assert consumer.generation == group.generation, f"seed {seed}: {consumer.name}"
        assert consumer.assignment == member.assignment, f"seed {seed}: {consumer.name}"


@pytest.mark.parametrize("seed", range(20))
def test_every_parked_request_is_answered_when_everybody_falls_silent(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    for _ in range(40):
        world.pass_time(20_000)
        while world.unwritten:
            world.finish_write(True)
        world.perform(world.group.take_effects())
        world.check()
    assert not world.parked, f"seed {seed}"
    assert world.group.state is GroupState.EMPTY, f"seed {seed}"
    assert world.group.next_deadline_ms() is None, f"seed {seed}"
