"""The simulated world itself: time, network, disk and store behave as the runs rely on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from klamm.testing.simulation.disk import Record, SimulatedFile, SimulatedLog
from klamm.testing.simulation.loop import NothingLeftToHappen, VirtualLoop
from klamm.testing.simulation.network import Answer, Network, Node
from klamm.testing.simulation.store import (
    SESSION_TIMEOUT_S,
    STORE,
    Create,
    SessionState,
    Snapshot,
    StoreServer,
    StoreSession,
)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


@pytest.fixture
def network(loop: VirtualLoop) -> Network:
    return Network(loop, random.Random(1))


class Echo(Node):
    """Answers with what it is sent, and remembers it."""

    def __init__(self, name: str, network: Network) -> None:
        super().__init__(name, network)
        self.is_up = True
        self.received: list[Any] = []

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        self.received.append(payload)
        answer(payload)


# ---- time


def test_coroutines_run_in_virtual_time(loop: VirtualLoop) -> None:
    async def main() -> str:
        slow = asyncio.create_task(asyncio.sleep(3600, "slow"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(slow), 60)
        assert loop.time() == 60
        return await slow

    assert loop.run_until_complete(main()) == "slow"
    assert loop.time() == 3600


def test_timers_of_one_time_run_in_the_order_in_which_they_were_set(loop: VirtualLoop) -> None:
    order: list[int] = []
    for number in range(10):
        loop.schedule(5, order.append, number)
    loop.run_for(5)
    assert order == list(range(10))


def test_a_loop_on_which_nothing_is_left_to_happen_does_not_hang(loop: VirtualLoop) -> None:
    with pytest.raises(NothingLeftToHappen):
        loop.run_until_complete(loop.create_future())


# ---- the network


def test_requests_of_one_sender_arrive_in_order(loop: VirtualLoop, network: Network) -> None:
    source, target = Echo("a", network), Echo("b", network)
    answers: list[int] = []
    for number in range(200):
        network.request(source, "b", "say", number, answers.append, 60)
    loop.run_for(60)
    assert target.received == answers == list(range(200))


def test_a_cut_is_silent_and_one_way(loop: VirtualLoop, network: Network) -> None:
    source, target = Echo("a", network), Echo("b", network)
    answers: list[Any] = []
    network.cut("b", "a")
    network.request(source, "b", "say", 1, answers.append, 5)
    loop.run_for(4.9)
    assert (target.received, answers) == ([1], [])
    loop.run_for(0.2)
    assert answers == [None], "whether it was handled is not known"
    network.heal("b", "a")
    loop.run_for(5)
    assert answers == [None], "a late answer to a request that timed out is dropped"


def test_a_killed_process_resets_its_connections(loop: VirtualLoop, network: Network) -> None:
    source, target = Echo("a", network), Echo("b", network)
    answers: list[Any] = []
    target.pause()
    network.request(source, "b", "say", 1, answers.append, 60)
    loop.run_for(1)
    target.stop()
    network.reset_connections(target)
    assert answers == [None]


def test_a_paused_node_handles_its_messages_and_timers_late(loop: VirtualLoop, network: Network) -> None:
    source, target = Echo("a", network), Echo("b", network)
    rung: list[float] = []
    target.later(1, lambda: rung.append(loop.time()))
    target.pause()
    network.request(source, "b", "say", 1, lambda _: None, 60)
    loop.run_for(10)
    assert (rung, target.received) == ([], [])
    target.resume()
    assert (rung, target.received) == ([10.0], [1])


# ---- the disk


def records(count: int, leader_epoch: int = 1) -> list[Record]:
    return [Record(leader_epoch, 0, sequence) for sequence in range(count)]


def test_a_loss_of_power_keeps_what_was_fsynced_and_no_torn_record() -> None:
    for seed in range(50):
        file = SimulatedFile()
        file.records += records(10)
        file.sync()
        file.records += records(20)[10:]
        file.lose_power(random.Random(seed))
        log = SimulatedLog(file)
        assert log.log_end_offset >= 10, f"seed {seed}"
        assert log.records == records(20)[: log.log_end_offset], f"seed {seed}"


def test_a_truncation_that_was_not_fsynced_may_be_undone() -> None:
    ends = set()
    for seed in range(50):
        file = SimulatedFile()
        file.records += records(10)
        file.sync()
        file.truncate(7)
        file.truncate(4)
        file.lose_power(random.Random(seed))
        log = SimulatedLog(file)
        assert log.records == records(log.log_end_offset), f"seed {seed}"
        ends.add(log.log_end_offset)
    assert ends == {4, 10}


def test_the_log_knows_where_its_epochs_ended() -> None:
    file = SimulatedFile()
    file.records += [*records(3, 1), *records(2, 4)]
    log = SimulatedLog(file)
    log.assign_epoch(6)
    assert [log.epoch_end_offset(epoch) for epoch in (0, 1, 3, 4, 5, 6, 7)] == [
        (0, 0),
        (1, 3),
        (1, 3),
        (4, 5),
        (4, 5),
        (6, 5),
        (-1, -1),
    ]
    log.truncate_to(5)
    assert log.latest_epoch == 4, "an epoch without records goes with the truncation"


# ---- the store


def test_a_session_that_is_not_heard_of_expires_with_its_nodes(loop: VirtualLoop, network: Network) -> None:
    server, owner = StoreServer(network), Echo("a", network)
    states: list[SessionState] = []
    snapshots: list[Snapshot] = []
    session = StoreSession(owner, states.append, snapshots.append)
    loop.run_for(2)
    session.txn([Create("/x", 1, True)], lambda _: None)
    loop.run_for(2)
    assert server.nodes["/x"].owner == session.id
    network.cut("a", STORE)
    loop.run_for(SESSION_TIMEOUT_S + 2)
    assert "/x" not in server.nodes
    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED]
    network.heal("a", STORE)
    loop.run_for(5)
    assert states[-1] is SessionState.EXPIRED


def test_a_transaction_is_applied_whole_or_not_at_all(loop: VirtualLoop, network: Network) -> None:
    server, owner = StoreServer(network), Echo("a", network)
    session = StoreSession(owner, lambda _: None, lambda _: None)
    answers: list[Any] = []
    loop.run_for(2)
    session.txn([Create("/x", 1)], answers.append)
    session.txn([Create("/y", 1), Create("/x", 1)], answers.append)
    loop.run_for(2)
    assert [answer[0] for answer in answers] == ["done", "refused"]
    assert list(server.nodes) == ["/x"]
