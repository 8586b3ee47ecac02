"""Groups of our consumers and those of Java, librdkafka and aiokafka: members come and go while records flow.

In every scene a producer sends numbered records all the time. What must hold at the end: every record was
received by somebody, and by nobody else; and at no time did two members have the same partition, as far as
they know themselves. Each scene is played twice: with one of ours as the first member, which then leads the
group, and with one of the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

import klamm
from tests.client.groups.members import (
    OTHERS,
    OUR_STRATEGIES,
    OURS,
    MixedMember,
    OurMember,
    Place,
    SessionsMember,
)
from tests.client.topics import make_topic, unique
from tests.clients.conftest import Clients
from tests.clients.contract import PATIENCE_SECONDS
from tests.long import cases
from tests.waiting import wait_until

PARTITIONS = 12
CLOCK_TOLERANCE_MS = 2
"""Processes read the same clock, rounded down to milliseconds."""


class Flow:
    """Sends numbered records to all partitions in turn until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = 0
        self._topic = topic
        self._producer = klamm.Producer(bootstrap)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            value = b"%d" % self.sent
            self._producer.send(self._topic, value, partition=self.sent % PARTITIONS).result(PATIENCE_SECONDS)
            self.sent += 1

    def stop(self) -> int:
        """How many were sent in all."""
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)
        self._producer.close()
        return self.sent


class Scene:
    """A group with its members, past and present."""

    def __init__(self, bootstrap: str, clients: Clients, strategy: str) -> None:
        self.strategy = strategy
        topic = make_topic(bootstrap, partitions=PARTITIONS)
        self.place = Place(clients, bootstrap, unique("mixed"), topic, strategy)
        self.members: dict[str, MixedMember] = {}
        self.everybody: dict[str, MixedMember] = {}
        self.flow = Flow(bootstrap, topic)

    def join(self, kind: str) -> MixedMember:
        name = f"{kind}-{len(self.everybody)}"
        make = OURS[kind] if kind in OURS else OTHERS[kind][0]
        member = make(self.place, name)
        self.members[name] = self.everybody[name] = member
        self.settle()
        return member

    def leave(self, member: MixedMember) -> None:
        name = next(name for name, one in self.members.items() if one is member)
        member.leave()
        del self.members[name]
        self.settle()

    def settle(self) -> None:
        """Wait until the members have every partition once, in equal shares."""

        def is_settled() -> bool:
            held = [member.assignment() for member in self.members.values()]
            sizes = [len(one) for one in held]
            return (
                sorted(number for one in held for number in one) == list(range(PARTITIONS))
                and max(sizes) - min(sizes) <= 1
            )

        if self.members:
            wait_until(is_settled, lambda: f"settled; now {self.shares()}")

    def shares(self) -> dict[str, list[int]]:
        return {name: sorted(member.assignment()) for name, member in self.members.items()}

    def receivers(self) -> dict[int, list[str]]:
        """Who received each record."""
        found: dict[int, list[str]] = {}
        for name, member in self.everybody.items():
            for record in member.received():
                found.setdefault(int(record.value or b"-1"), []).append(name)
        return found

    def end(self) -> None:
        """Stop the flow, see that everything arrived once, and leave in peace."""
        sent = self.flow.stop()
        wait_until(
            lambda: len(self.receivers()) >= sent, lambda: f"{sent} records; now {len(self.receivers())}"
        )
        for member in list(self.members.values()):
            self.leave(member)
        receivers = self.receivers()
        assert receivers.keys() == set(range(sent)), "records are missing"
        twice = {number: names for number, names in receivers.items() if len(names) > 1}
        assert not twice, f"records were received more than once: {twice}"
        assert_one_owner_at_a_time(self.everybody)

    def abandon(self) -> None:
        """Leave whatever happened: members that stay would disturb the tests that follow."""
        with contextlib.ExitStack() as stack:
            for member in self.members.values():
                stack.callback(member.leave)
            stack.callback(self.flow.stop)


def assert_one_owner_at_a_time(members: dict[str, MixedMember]) -> None:
    for partition in range(PARTITIONS):
        spans = sorted(
            (start, end, name)
            for name, member in members.items()
            for start, end in spans_of(member, partition)
        )
        for (_, end, name), (start, _, next_name) in pairwise(spans):
            assert start >= end - CLOCK_TOLERANCE_MS, (
                f"{next_name} had partition {partition} {end - start} ms before {name} gave it up: {spans}"
            )


def spans_of(member: MixedMember, partition: int) -> Iterator[tuple[int, int]]:
    """From when to when a member had a partition."""
    since = None
    for handover in member.handovers():
        if partition in handover.partitions:
            if handover.is_taken and since is None:
                since = handover.time_ms
            elif not handover.is_taken and since is not None:
                yield since, handover.time_ms
                since = None
    assert since is None, "a member that is left has given up everything"


@pytest.fixture
def scene(bootstrap: str, clients: Clients, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(bootstrap, clients, request.param)
    try:
        yield made
    finally:
        made.abandon()


def others_of(strategy: str) -> list[str]:
    return [name for name, (_, strategies) in OTHERS.items() if strategy in strategies]


def leads(members: Sequence[Any]) -> list[bool]:
    return [isinstance(member, OurMember | SessionsMember) and member.is_leader for member in members]


every_strategy = pytest.mark.parametrize(
    "scene", cases(OUR_STRATEGIES, lambda strategy: strategy == "cooperative"), indirect=True
)


@pytest.mark.long
@pytest.mark.timeout(300)
@every_strategy
def test_ours_leads_and_members_come_and_go(scene: Scene) -> None:
    first = scene.join("plain")
    assert leads([first]) == [True]
    others = [scene.join(name) for name in others_of(scene.strategy)]
    ours = [scene.join(name) for name in ("aio", "sessions")]
    assert leads([first, *ours]) == [True, False, False], "who came first leads"
    scene.leave(others[0])
    scene.leave(ours[0])
    scene.leave(first)  # the leader goes, and another takes over
    scene.join(others_of(scene.strategy)[0])
    scene.join("plain")
    scene.end()


@pytest.mark.long
@pytest.mark.timeout(300)
@every_strategy
def test_another_leads_and_members_come_and_go(scene: Scene) -> None:
    others = [scene.join(name) for name in others_of(scene.strategy)]
    ours = [scene.join(name) for name in OURS]
    assert leads(ours) == [False, False, False]
    scene.leave(ours[1])
    scene.leave(others[0])  # the leader goes
    scene.leave(others[1])
    scene.join("aio")
    scene.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", ["cooperative"], indirect=True)
def test_cooperative_members_keep_what_they_have(scene: Scene) -> None:
    """Whoever leads: one that stays gives up what a newcomer gets, and nothing else."""
    for leader, newcomer in (("plain", "java"), ("java", "plain")):
        stays = scene.join(leader)
        before = stays.assignment()
        comes = scene.join(newcomer)
        assert stays.revoked() == comes.assignment()
        assert stays.assignment() == before - comes.assignment()
        scene.leave(comes)
        scene.leave(stays)
    scene.join("aio")
    scene.end()
