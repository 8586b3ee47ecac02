"""Faults that a seed chooses, each with its end: kills, losses of power, pauses, cuts, loss of the store.

Several may be under way at once. Two combinations are never injected, because no rule survives them:

* A loss of power while an ISR is not full or a broker is down: all replicas that have a record could lose it
  before any of them has fsynced it.
* A loss of power shortly before or after the death of another broker, unnoticed by the controller, which
  could not tell which of the brokers that return without a clean shutdown has lost records.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from klamm.cluster.image import NO_LEADER
from klamm.testing.simulation.broker import SimulatedBroker
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.members import SimulatedMember
from klamm.testing.simulation.network import Network, Node
from klamm.testing.simulation.store import STORE, StoreServer
from klamm.testing.simulation.topics import (
    controller_id,
    known_epochs,
    registered_epochs,
    stored_partitions,
)

_LONGEST_S = 25.0
_KILL_ON_RETURN_CHANCE = 0.25


class Faults:
    def __init__(
        self,
        network: Network,
        store: StoreServer,
        brokers: list[SimulatedBroker],
        members: list[SimulatedMember],
        ledger: Ledger,
        chance: random.Random,
        pause_s: float,
    ) -> None:
        self._network = network
        self._store = store
        self._brokers = brokers
        self._members = members
        self._ledger = ledger
        self._chance = chance
        self._pause_s = pause_s
        self._is_over = False
        self._without_power: tuple[int, int] | None = None
        """The id and the broker epoch of the broker that lost power last."""
        self._kinds: list[Callable[[SimulatedBroker], None]] = [
            self._kill,
            self._kill,
            self._kill_leader,
            self._lose_power,
            self._lose_power,
            self._shut_down,
            self._pause,
            self._pause_member,
            self._pause_member,
            self._kill_controller,
            self._pause_controller,
            self._cut_one_way,
            self._cut_one_way,
            self._cut_pair,
            self._isolate,
            self._cut_from_store,
            self._pause_store,
            self._slow_down,
            self._deaf_leader,
            self._deaf_leader,
        ]
        self._plan()

    def heal(self) -> None:
        """End all faults that are under way, and begin no other."""
        self._is_over = True
        self._network.heal_all()
        self._network.slowness = 1.0
        if self._store.is_paused:
            self._store.resume()
        for member in self._members:
            member.may_leave = False
            if member.is_paused:
                member.resume()
        for broker in self._brokers:
            if broker.is_paused:
                broker.resume()
            if not broker.is_up:
                broker.start()

    def _plan(self) -> None:
        self._network.loop.schedule(self._pause_s * self._chance.expovariate(1), self._strike)

    def _strike(self) -> None:
        if not self._is_over:
            self._chance.choice(self._kinds)(self._chance.choice(self._brokers))
            self._plan()

    def _later(self, end: Callable[[], None], shortest_s: float = 0.05) -> None:
        """Short faults are as interesting as long ones: a bounce within a session, a cut within a
        time-out."""
        duration_s = shortest_s + _LONGEST_S * self._chance.random() ** 3
        self._network.loop.schedule(duration_s, self._unless_over, end)

    def _unless_over(self, step: Callable[[], None]) -> None:
        if not self._is_over:
            step()

    # ---- processes

    def _stop(self, broker: SimulatedBroker, kind: str, how: Callable[[], None]) -> None:
        if broker.is_up and self._is_loss_of_power_noticed():
            self._ledger.on_fault(kind, f"{kind}: broker {broker.node_id}")
            how()
            self._later(lambda: self._start(broker))

    def _start(self, broker: SimulatedBroker) -> None:
        if not broker.is_up:
            self._ledger.note(f"start broker {broker.node_id}")
            broker.start()
            self._perhaps_kill_a_leader_soon(broker)

    def _perhaps_kill_a_leader_soon(self, broker: SimulatedBroker) -> None:
        """While `broker` comes back or catches up: a replica that joins too early is elected then, or
        never."""
        if self._chance.random() < _KILL_ON_RETURN_CHANCE:
            delay_s = 2 * self._chance.random() ** 2
            self._network.loop.schedule(delay_s, self._unless_over, lambda: self._kill_leader(broker))

    def _kill(self, broker: SimulatedBroker) -> None:
        self._stop(broker, "kill", broker.kill)

    def _kill_leader(self, broker: SimulatedBroker) -> None:
        leaders = [
            one for one in self._brokers if any(replica.leader is not None for replica in one.replicas)
        ]
        self._kill(self._chance.choice(leaders) if leaders else broker)

    def _controller(self) -> SimulatedBroker | None:
        id_ = controller_id(self._store)
        return next((broker for broker in self._brokers if broker.node_id == id_), None)

    def _kill_controller(self, _: SimulatedBroker) -> None:
        controller = self._controller()
        if controller is not None:
            self._kill(controller)

    def _pause_controller(self, _: SimulatedBroker) -> None:
        controller = self._controller()
        if controller is not None:
            self._pause(controller)

    def _shut_down(self, broker: SimulatedBroker) -> None:
        if broker.is_paused or broker.is_stopping or not broker.is_up:
            return
        if self._is_loss_of_power_noticed():
            self._ledger.on_fault("clean restart", f"shut down broker {broker.node_id}")
            broker.shut_down(lambda: self._on_stopped(broker))

    def _on_stopped(self, broker: SimulatedBroker) -> None:
        self._ledger.note(f"broker {broker.node_id} has stopped")
        if self._is_over:
            broker.start()
        else:
            self._later(lambda: self._start(broker))

    def _lose_power(self, broker: SimulatedBroker) -> None:
        if self._may_lose_power():
            self._without_power = (broker.node_id, registered_epochs(self._store)[broker.node_id])
            self._ledger.on_fault("loss of power", f"broker {broker.node_id} loses power")
            broker.lose_power()
            self._later(lambda: self._start(broker))

    def _may_lose_power(self) -> bool:
        """True while all brokers run, are known to the controller as they are, and are in all their ISRs."""
        if any(not one.is_up or one.is_paused or one.is_stopping for one in self._brokers):
            return False
        registered = registered_epochs(self._store)
        # A broker that has died and is back already may still be registered in the epoch of its former life.
        if any(registered.get(one.node_id) != one.broker_epoch for one in self._brokers):
            return False
        if known_epochs(self._store) != registered:
            return False
        states = stored_partitions(self._store)
        return all(set(state.isr) == set(state.replicas) for state in states) and (
            self._is_loss_of_power_noticed()
        )

    def _is_loss_of_power_noticed(self) -> bool:
        if self._without_power is None:
            return True
        id_, broker_epoch = self._without_power
        is_back = known_epochs(self._store).get(id_) != broker_epoch
        states = stored_partitions(self._store)
        # One that is eligible to lead is trusted as members of the ISR are.
        return all(
            state.leader != NO_LEADER and (is_back or id_ not in state.isr + state.eligible_replicas)
            for state in states
        )

    def _pause(self, broker: SimulatedBroker) -> None:
        if broker.is_up and not broker.is_paused and self._is_loss_of_power_noticed():
            self._pause_node("pause", broker)

    def _pause_member(self, _: SimulatedBroker) -> None:
        """Its session ends, others go on from its offsets, and then it commits what it had read."""
        member = self._chance.choice(self._members)
        if not member.is_paused:
            self._pause_node("pause of a member", member)

    def _pause_node(self, kind: str, node: Node) -> None:
        self._ledger.on_fault(kind, f"pause {node.name}")
        node.pause()
        incarnation = node.incarnation

        def resume() -> None:
            if node.incarnation == incarnation and node.is_paused:
                self._ledger.note(f"resume {node.name}")
                node.resume()

        self._later(resume)

    def _pause_store(self, _: SimulatedBroker) -> None:
        if not self._store.is_paused:
            self._ledger.on_fault("loss of the store", "pause the store")
            self._store.pause()
            self._later(self._store.resume)

    # ---- the network

    def _cut(self, kind: str, *ways: tuple[str, str]) -> None:
        text = ", ".join(f"{source} to {target}" for source, target in ways[:2]) + ", …" * (len(ways) > 2)
        self._ledger.on_fault(kind, f"cut {text}")
        for way in ways:
            self._network.cut(*way)

        def heal() -> None:
            self._ledger.note(f"heal {text}")
            for way in ways:
                self._network.heal(*way)
            self._perhaps_kill_a_leader_soon(self._brokers[0])

        self._later(heal)

    def _other(self, broker: SimulatedBroker) -> str:
        return self._chance.choice([one for one in self._brokers if one is not broker]).name

    def _cut_one_way(self, broker: SimulatedBroker) -> None:
        self._cut("one-way cut", (broker.name, self._other(broker)))

    def _cut_pair(self, broker: SimulatedBroker) -> None:
        other = self._other(broker)
        self._cut("cut of a pair", (broker.name, other), (other, broker.name))

    def _isolate(self, broker: SimulatedBroker) -> None:
        others = [name for name in self._network.nodes if name != broker.name]
        if self._chance.random() < 0.5:
            # Without the store: the session goes on, but no replica is reached.
            others.remove(STORE)
        self._cut(
            "isolation",
            *((broker.name, other) for other in others),
            *((other, broker.name) for other in others),
        )

    def _cut_from_store(self, broker: SimulatedBroker) -> None:
        self._cut("cut from the store", (broker.name, STORE), (STORE, broker.name))

    def _deaf_leader(self, _: SimulatedBroker) -> None:
        """A leader that does not hear the controller while a follower leaves and comes back; then it dies.

        Chance alone would hardly ever find this order of events, and it is the one in which a leader that is
        wrong about the outcome of an ISR change loses records.
        """
        chance = self._chance
        by_id = {broker.node_id: broker for broker in self._brokers}
        state = chance.choice(stored_partitions(self._store))
        controller = self._controller()
        if controller is None or state.leader in (NO_LEADER, controller.node_id):
            return
        leader = by_id[state.leader]
        others = [by_id[id_] for id_ in state.replicas if id_ not in (leader.node_id, controller.node_id)]
        follower = chance.choice(others)
        steps: list[tuple[float, Callable[[], None]]] = [
            (0.0, lambda: self._network.cut(follower.name, leader.name)),
            (chance.uniform(10, 20), lambda: self._network.cut(controller.name, leader.name)),
            (chance.uniform(0, 1), lambda: self._network.heal(follower.name, leader.name)),
            (chance.uniform(0.5, 4), lambda: self._network.cut(follower.name, leader.name)),
            (chance.uniform(2, 8), lambda: self._kill(leader)),
            (chance.uniform(0, 5), lambda: self._network.heal(follower.name, leader.name)),
            (0.0, lambda: self._network.heal(controller.name, leader.name)),
        ]
        self._ledger.on_fault(
            "deaf leader",
            f"broker {leader.node_id} becomes deaf, broker {follower.node_id} leaves it and comes back",
        )
        delay_s = 0.0
        for gap_s, step in steps:
            delay_s += gap_s
            self._network.loop.schedule(delay_s, self._unless_over, step)

    def _slow_down(self, _: SimulatedBroker) -> None:
        self._ledger.on_fault("slow network", "slow network")
        self._network.slowness = self._chance.choice([20.0, 100.0])

        def recover() -> None:
            self._network.slowness = 1.0

        self._later(recover)
