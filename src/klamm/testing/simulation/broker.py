"""A simulated broker: its session in the store, its replicas, its fetches from leaders, at times the
controller."""

from __future__ import annotations

import random
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.replication.follower import FetchPosition
from klamm.replication.isr import IsrChange, Outcome, outcome_of
from klamm.replication.leader import Leader
from klamm.replication.progress import LagWatch
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.controller import (
    BROKERS_PATH,
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    ControllerCore,
    ControllerProcess,
    PartitionState,
)
from klamm.testing.simulation.disk import SimulatedFile
from klamm.testing.simulation.network import Answer, Network, Node
from klamm.testing.simulation.replica import LAG_TIME_MAX_MS, FetchAnswer, Replica
from klamm.testing.simulation.store import (
    Create,
    Delete,
    Operation,
    SessionState,
    Set,
    Snapshot,
    StoreSession,
)

_FETCH_WAIT_S = 2.0
_FETCH_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_ALTER_TIMEOUT_S = 2.0
_FSYNC_INTERVAL_S = 20.0

Positions = dict[int, FetchPosition]


def broker_name(broker_id: int) -> str:
    return f"broker{broker_id}"


class SimulatedBroker(Node):
    def __init__(
        self,
        broker_id: int,
        network: Network,
        ledger: Ledger,
        core: ControllerCore,
        partition_count: int,
        replica_class: type[Replica],
        chance: random.Random,
    ) -> None:
        super().__init__(broker_name(broker_id), network)
        self.id = broker_id
        self.ledger = ledger
        self.files = [SimulatedFile() for _ in range(partition_count)]
        self.replicas: list[Replica] = []
        self._core = core
        self._replica_class = replica_class
        self._chance = chance
        self._clean_epoch = -1
        """On disk: the broker epoch of the clean shutdown, until the next start."""

    # ---- starting and stopping

    def start(self) -> None:
        self.is_up = True
        self.broker_epoch = -1
        self.controller: ControllerProcess | None = None
        self.known_controller = -1
        self._controller_epoch = -1
        self._registered_clean_epoch = self._clean_epoch
        self._clean_epoch = -1
        self._lag_watch = LagWatch()
        self._parked_fetches: dict[int, tuple[Positions, Answer]] = {}
        self._fetching_from: dict[int, None] = {}
        self.replicas = [
            self._replica_class(index, self.id, file, self.ledger, self._lag_watch)
            for index, file in enumerate(self.files)
        ]
        self._is_registering = False
        self._session = StoreSession(self, self._on_session, self._on_snapshot)
        self.later(LAG_TIME_MAX_MS / 2000, self._check_lag)
        self.later(_FSYNC_INTERVAL_S * self._chance.random(), self._fsync)

    def kill(self) -> None:
        self.stop()
        self.network.reset_connections(self)

    def lose_power(self) -> None:
        self.stop()
        for file in self.files:
            file.lose_power(self._chance)

    def shut_down(self) -> None:
        for file in self.files:
            file.sync()
        self._clean_epoch = self.broker_epoch
        self.kill()

    # ---- the store

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            if self.controller is not None:
                self.controller.resign()
                self.controller = None
            # The process lives, so its log is whole: as after a clean shutdown in the old epoch.
            self._registered_clean_epoch = self.broker_epoch
            self._is_registering = False
            self._session = StoreSession(self, self._on_session, self._on_snapshot)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        path = f"{BROKERS_PATH}{self.id}"
        registered = snapshot.get(path)
        if registered is None or registered.owner != self._session.id:
            self._register(path, registered is not None)
            return
        self.broker_epoch = registered.created_rev
        controller = snapshot.get(CONTROLLER_PATH)
        self.known_controller = controller.value if controller is not None else -1
        if controller is None:
            self._claim_controller(snapshot)
        elif controller.owner == self._session.id and self.controller is None:
            epoch = snapshot[CONTROLLER_EPOCH_PATH].version
            self.ledger.note(f"broker {self.id} is the controller in epoch {epoch}")
            self.controller = ControllerProcess(self, self._session, self._core, epoch, broker_name)
        if self.controller is not None:
            self.controller.on_snapshot(snapshot)

    def _register(self, path: str, is_there: bool) -> None:
        if self._is_registering:
            return
        self._is_registering = True
        operations: list[Operation] = [Delete(path)] if is_there else []
        operations.append(Create(path, self._registered_clean_epoch, True))
        self._session.txn(operations, self._on_claimed)

    def _claim_controller(self, snapshot: Snapshot) -> None:
        version = snapshot[CONTROLLER_EPOCH_PATH].version
        operations = (Create(CONTROLLER_PATH, self.id, True), Set(CONTROLLER_EPOCH_PATH, None, version))
        self._session.txn(operations, self._on_claimed)

    def _on_claimed(self, _: Any) -> None:
        self._is_registering = False
        self._session.read()

    # ---- requests

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        if kind == "fetch":
            replica_id, broker_epoch, positions = payload
            self._on_fetch(replica_id, broker_epoch, positions, answer)
        elif kind == "produce":
            index, producer_id, sequence, is_idempotent, acks_all = payload
            if self.replicas[index].produce(producer_id, sequence, is_idempotent, acks_all, answer):
                self._wake_fetches(index)
        elif kind == "read":
            index, offset, leader_epoch = payload
            answer(self.replicas[index].read_committed(offset, leader_epoch))
        elif kind == "leader_and_isr":
            answer(self._on_leader_and_isr(*payload))
        elif kind == "alter_partition":
            if self.controller is None:
                answer((ErrorCode.NOT_CONTROLLER, (), -1))
            else:
                index, broker_id, broker_epoch, change = payload
                self.controller.alter_partition(index, broker_id, broker_epoch, change, answer)
        elif kind == "watch":
            answer(None)
            self._session.on_watch(payload)

    def _on_leader_and_isr(
        self, controller_epoch: int, broker_epoch: int, states: dict[int, PartitionState]
    ) -> ErrorCode | None:
        if controller_epoch < self._controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if broker_epoch > self.broker_epoch:
            # The controller has heard of our registration before we have: it is to tell us again.
            return None
        if broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        self._controller_epoch = controller_epoch
        for index, state in states.items():
            replica = self.replicas[index]
            epoch_before = replica.leader_epoch
            self._send_change(replica, replica.take_over(state, broker_epoch, self.loop.now_ms))
            if replica.leader_epoch != epoch_before:
                self._wake_fetches(index)
        for replica in self.replicas:
            if replica.follower is not None:
                self._fetch_from(replica.follower.leader_id)
        return ErrorCode.NONE

    def _check_lag(self) -> None:
        for leader, change in self._lag_watch.check(self.loop.now_ms):
            self._send_change(self.replicas[leader.topic_partition.partition], change)
        self.later(LAG_TIME_MAX_MS / 2000, self._check_lag)

    def _fsync(self) -> None:
        for file in self.files:
            file.sync()
        self.later(_FSYNC_INTERVAL_S, self._fsync)

    # ---- as leader

    def _on_fetch(self, replica_id: int, broker_epoch: int, positions: Positions, answer: Answer) -> None:
        answers: dict[int, FetchAnswer] = {}
        must_answer = False
        for index, position in positions.items():
            replica = self.replicas[index]
            answers[index], change = replica.on_fetch(replica_id, broker_epoch, position, self.loop.now_ms)
            self._send_change(replica, change)
            one = answers[index]
            must_answer |= bool(one.records) or one.error is not ErrorCode.NONE or one.diverging[1] >= 0
        if must_answer:
            answer(answers)
            return
        parked = (positions, answer)
        self._parked_fetches[replica_id] = parked
        self.later(_FETCH_WAIT_S, self._answer_fetch, replica_id, parked)

    def _wake_fetches(self, index: int) -> None:
        for replica_id, parked in list(self._parked_fetches.items()):
            if index in parked[0]:
                self._answer_fetch(replica_id, parked)

    def _answer_fetch(self, replica_id: int, parked: tuple[Positions, Answer]) -> None:
        if self._parked_fetches.get(replica_id) is parked:
            del self._parked_fetches[replica_id]
            positions, answer = parked
            answer({index: self.replicas[index].records_for(one) for index, one in positions.items()})

    def _send_change(self, replica: Replica, change: IsrChange | None) -> None:
        if change is None or replica.leader is None:
            return
        leader = replica.leader
        payload = (replica.index, self.id, leader.broker_epoch, change)

        def answered(answer: Any) -> None:
            self._on_altered(replica, leader, change, answer)

        if self.known_controller == self.id:
            self.handle("alter_partition", payload, answered)
        elif self.known_controller < 0:
            self.later(_RETRY_S, answered, None)
        else:
            target = broker_name(self.known_controller)
            self.network.request(self, target, "alter_partition", payload, answered, _ALTER_TIMEOUT_S)

    def _on_altered(self, replica: Replica, leader: Leader, change: IsrChange, answer: Any) -> None:
        if replica.leader is not leader:
            return
        error, isr, partition_epoch = answer or (ErrorCode.REQUEST_TIMED_OUT, (), -1)
        outcome = outcome_of(error)
        self.ledger.note(f"broker {self.id}: ISR {change.isr} of {replica.index} is {outcome.name}")
        following = leader.on_alter_partition(change, outcome, self.loop.now_ms, isr, partition_epoch)
        replica.after_isr_change()
        if outcome is Outcome.APPLIED:
            self._send_change(replica, following)
        elif following is not None:
            self.later(_RETRY_S, self._send_again, replica, leader, following)

    def _send_again(self, replica: Replica, leader: Leader, change: IsrChange) -> None:
        if replica.leader is leader and leader.isr.pending == change:
            self._send_change(replica, change)

    # ---- as follower

    def _fetch_from(self, leader_id: int) -> None:
        if leader_id in self._fetching_from:
            return
        positions: Positions = {}
        for replica in self.replicas:
            if replica.follower is not None and replica.follower.leader_id == leader_id:
                position = replica.follower.next_fetch()
                if position is not None:
                    positions[replica.index] = position
        if not positions:
            return
        self._fetching_from[leader_id] = None
        payload = (self.id, self.broker_epoch, positions)

        def answered(answer: dict[int, FetchAnswer] | None) -> None:
            is_well = answer is not None
            for index, one in (answer or {}).items():
                is_well &= self.replicas[index].on_fetch_answer(positions[index], one)
            if is_well:
                self._fetch_again(leader_id)
            else:
                self.later(_RETRY_S, self._fetch_again, leader_id)

        target = broker_name(leader_id)
        self.network.request(self, target, "fetch", payload, answered, _FETCH_TIMEOUT_S)

    def _fetch_again(self, leader_id: int) -> None:
        del self._fetching_from[leader_id]
        self._fetch_from(leader_id)
