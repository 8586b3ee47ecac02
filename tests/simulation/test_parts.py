"""The simulated world itself: time, network, disk and store behave as the runs rely on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from klamm.coordination.store import (
    Create,
    NodeExists,
    Operation,
    SessionExpired,
    State,
    StoreError,
    Unavailable,
)
from klamm.testing.simulation.disk import SimulatedBatch, SimulatedFile, SimulatedLog
from klamm.testing.simulation.loop import NothingLeftToHappen, VirtualLoop
from klamm.testing.simulation.network import Answer, Network, Node
from klamm.testing.simulation.store import SESSION_TIMEOUT_S, STORE, SimulatedStore, StoreServer


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


def records(count: int, leader_epoch: int = 1) -> list[SimulatedBatch]:
    return [SimulatedBatch(leader_epoch, 0, sequence) for sequence in range(count)]


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


# ---- processes


class Process(Echo):
    """Runs coroutines."""

    def __init__(self, name: str, network: Network) -> None:
        super().__init__(name, network)
        self.errors: list[dict[str, Any]] = []
        self.new_process_loop(self.errors.append)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        loop = self.process_loop
        assert loop is not None
        self.run(self.incarnation, lambda: self.tasks.append(loop.create_task(work)))

    tasks: list[asyncio.Task[None]]


@pytest.fixture
def process(network: Network) -> Iterator[Process]:
    process = Process("p", network)
    process.tasks = []
    yield process
    process.dispose()


def test_what_is_cancelled_when_a_process_resumes_does_not_run(loop: VirtualLoop, process: Process) -> None:
    own = process.process_loop
    assert own is not None
    rung: list[str] = []
    later = own.call_later(2, rung.append, "cancelled")
    own.call_later(1, lambda: (rung.append("first"), later.cancel()))
    process.pause()
    loop.run_for(5)
    process.resume()
    loop.run_for(1)
    assert (rung, process.errors) == (["first"], [])


def test_tasks_of_a_paused_process_wait_and_those_of_a_dead_one_never_go_on(
    loop: VirtualLoop, process: Process
) -> None:
    rung: list[float] = []

    async def ring() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                rung.append(asyncio.get_running_loop().time())
        finally:
            rung.append(-1.0)

    process.spawn(ring())
    loop.run_for(2.5)
    process.pause()
    loop.run_for(10)
    assert rung == [1.0, 2.0]
    process.resume()
    loop.run_for(0.1)
    assert rung == [1.0, 2.0, 12.5]
    process.stop()
    loop.run_for(10)
    assert rung == [1.0, 2.0, 12.5], "a process that was killed does not clean up"


def test_what_a_task_raises_unseen_is_told(loop: VirtualLoop, process: Process) -> None:
    async def fail() -> None:
        raise ValueError("nobody has foreseen this")

    process.spawn(fail())
    loop.run_for(1)
    process.tasks.clear()
    assert [type(error["exception"]) for error in process.errors] == [ValueError]


# ---- the store


class Client(Process):
    """A process with a session."""

    def __init__(self, name: str, network: Network) -> None:
        super().__init__(name, network)
        self.tasks = []
        self.store = SimulatedStore(self)
        self.states: list[State] = []
        self.store.on_state(self.states.append)
        self.spawn(self.store.open())

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        assert kind == "watch"
        self.store.on_watch(*payload)

    def txn(self, *operations: Operation) -> asyncio.Future[int]:
        outcome: asyncio.Future[int] = self.loop.create_future()

        async def transact() -> None:
            try:
                outcome.set_result(await self.store.txn(operations))
            except StoreError as error:
                outcome.set_exception(error)

        self.spawn(transact())
        self.loop.run_for(2)
        return outcome


@pytest.fixture
def server(network: Network) -> Iterator[StoreServer]:
    server = StoreServer(network, notices_deaths=False)
    yield server
    server.close()


@pytest.fixture
def client(loop: VirtualLoop, server: StoreServer, network: Network) -> Iterator[Client]:
    client = Client("a", network)
    loop.run_for(2)
    yield client
    client.dispose()


def test_a_session_that_is_not_heard_of_expires_with_its_nodes(
    loop: VirtualLoop, network: Network, server: StoreServer, client: Client
) -> None:
    client.txn(Create("/x", b"1", ephemeral=True)).result()
    node = server.find("/x")
    assert node is not None and node.owner == client.store.session_id
    network.cut("a", STORE)
    loop.run_for(SESSION_TIMEOUT_S + 2)
    assert server.find("/x") is None
    assert client.states == [State.CONNECTED, State.SUSPENDED]
    network.heal("a", STORE)
    loop.run_for(5)
    assert client.states[-1] is State.EXPIRED
    with pytest.raises(SessionExpired):
        client.txn(Create("/y")).result()


def test_a_transaction_is_applied_whole_or_not_at_all(server: StoreServer, client: Client) -> None:
    client.txn(Create("/x")).result()
    with pytest.raises(NodeExists):
        client.txn(Create("/y"), Create("/x")).result()
    assert server.children("/") == ["x"]


def test_a_call_without_an_answer_has_an_unknown_outcome(
    loop: VirtualLoop, network: Network, server: StoreServer, client: Client
) -> None:
    network.cut(STORE, "a")
    outcome = client.txn(Create("/x"))
    loop.run_for(5)
    with pytest.raises(Unavailable):
        outcome.result()
    assert server.find("/x") is not None


def test_a_watch_fires_after_changes_by_others_and_after_a_reconnect(
    loop: VirtualLoop, network: Network, server: StoreServer, client: Client
) -> None:
    fired: list[float] = []
    client.store.watch("/x", lambda: fired.append(loop.time()))
    server.apply([Create("/x")])
    server.apply([Create("/other")])
    loop.run_for(1)
    assert len(fired) == 1
    network.cut(STORE, "a")
    loop.run_for(5)
    server.apply([Create("/x/y")])
    loop.run_for(10)
    assert len(fired) == 1
    network.heal(STORE, "a")
    loop.run_for(5)
    assert len(fired) > 1
