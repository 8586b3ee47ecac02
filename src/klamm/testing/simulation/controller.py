"""A deliberately small controller for the simulation: elections, ISR changes, and telling the brokers.

`ControllerCore` is what the simulated cluster needs of a controller's decisions; `SmallController` is the
simplest that keeps the rules. `ControllerProcess` runs a core on the broker that holds `/controller`: it
commits one change after the other with a check of the controller epoch, and tells every broker the states
until it confirms them.

Rules:
* The next leader is the first replica of the assignment that is in the ISR and alive.
* The ISR holds broker epochs with its members, in the store: a broker that has registered anew is no member
  any more, even if another controller decided then.
* Members that leave an ISR of fewer than min.insync.replicas stay eligible leaders (ELR): the high watermark
  has stopped, so they have all that is committed. A broker that registers without a clean shutdown is
  eligible no more.
* If nobody is eligible, the last leader is elected when it returns: it has all that is committed unless it
  lost power.
* AlterPartition is compare-and-set on leader epoch, partition epoch and broker epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from klamm.model.errors import ErrorCode
from klamm.replication.isr import IsrChange
from klamm.testing.simulation.network import Node
from klamm.testing.simulation.store import Check, SessionState, Set, Snapshot, StoreSession

CONTROLLER_PATH = "/controller"
CONTROLLER_EPOCH_PATH = "/controller_epoch"
BROKERS_PATH = "/brokers/ids/"
STATES_PATH = "/partitions/"
NO_LEADER = -1
_TELL_TIMEOUT_S = 2.0
_TELL_AGAIN_S = 0.5


class Registration(NamedTuple):
    broker_epoch: int
    clean_epoch: int
    """The broker epoch until which this broker's log is known to be whole; -1 after an unclean shutdown."""


class PartitionState(NamedTuple):
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: Mapping[int, int]
    """Broker id → broker epoch."""
    eligible: Mapping[int, int]
    last_leader: int
    partition_epoch: int = 0
    """The version of the node in the store."""


class ControllerCore(Protocol):
    def on_brokers(self, state: PartitionState, brokers: Mapping[int, Registration]) -> PartitionState | None:
        """The state after the brokers have changed; None if it stays."""

    def on_alter_partition(
        self,
        state: PartitionState,
        brokers: Mapping[int, Registration],
        broker_id: int,
        broker_epoch: int,
        change: IsrChange,
    ) -> PartitionState | ErrorCode:
        """The state with the changed ISR, or why it is refused."""


class SmallController:
    def __init__(self, min_insync_replicas: int) -> None:
        self._min_insync_replicas = min_insync_replicas

    def on_brokers(self, state: PartitionState, brokers: Mapping[int, Registration]) -> PartitionState | None:
        isr = {id_: epoch for id_, epoch in state.isr.items() if self.is_member(brokers.get(id_), epoch)}
        left = {id_: epoch for id_, epoch in state.isr.items() if id_ not in isr}
        eligible: dict[int, int] = {}
        if len(isr) < self._min_insync_replicas:
            for id_, epoch in {**state.eligible, **left}.items():
                registration = brokers.get(id_)
                if registration is None or registration.broker_epoch == epoch:
                    eligible[id_] = epoch
                elif registration.clean_epoch == epoch:
                    eligible[id_] = registration.broker_epoch
        leader, isr = self._elect(state, brokers, isr, eligible)
        eligible = {id_: epoch for id_, epoch in eligible.items() if id_ not in isr}
        is_new_epoch = leader != state.leader or (
            leader != NO_LEADER and isr[leader] != state.isr.get(leader)
        )
        if not is_new_epoch and isr == state.isr and eligible == state.eligible:
            return None
        return state._replace(
            leader=leader,
            leader_epoch=state.leader_epoch + is_new_epoch,
            isr=isr,
            eligible=eligible,
            last_leader=leader if leader != NO_LEADER else state.last_leader,
        )

    def is_member(self, registration: Registration | None, broker_epoch: int) -> bool:
        return registration is not None and registration.broker_epoch == broker_epoch

    def _elect(
        self,
        state: PartitionState,
        brokers: Mapping[int, Registration],
        isr: dict[int, int],
        eligible: dict[int, int],
    ) -> tuple[int, dict[int, int]]:
        if state.leader in isr:
            return state.leader, isr
        for id_ in state.replicas:
            if id_ in isr:
                return id_, isr
        for id_ in state.replicas:
            if id_ in eligible and id_ in brokers:
                return id_, {id_: brokers[id_].broker_epoch}
        last = state.last_leader
        if not eligible and last in brokers:
            return last, {last: brokers[last].broker_epoch}
        return NO_LEADER, {}

    def on_alter_partition(
        self,
        state: PartitionState,
        brokers: Mapping[int, Registration],
        broker_id: int,
        broker_epoch: int,
        change: IsrChange,
    ) -> PartitionState | ErrorCode:
        registration = brokers.get(broker_id)
        if registration is None or registration.broker_epoch != broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if state.leader != broker_id or state.leader_epoch != change.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if state.partition_epoch != change.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr: dict[int, int] = {}
        for id_, epoch in change.members:
            member = brokers.get(id_)
            expected = state.isr.get(id_, -1) if epoch == -1 else epoch
            if member is None or member.broker_epoch != expected:
                return ErrorCode.INELIGIBLE_REPLICA
            isr[id_] = expected
        eligible: dict[int, int] = {}
        if len(isr) < self._min_insync_replicas:
            eligible = {**state.eligible, **state.isr}
        eligible = {id_: epoch for id_, epoch in eligible.items() if id_ not in isr}
        return state._replace(isr=isr, eligible=eligible)


def brokers_of(snapshot: Snapshot) -> dict[int, Registration]:
    return {
        int(path.removeprefix(BROKERS_PATH)): Registration(node.created_rev, node.value)
        for path, node in snapshot.items()
        if path.startswith(BROKERS_PATH)
    }


def states_of(snapshot: Snapshot) -> dict[int, PartitionState]:
    return {
        int(path.removeprefix(STATES_PATH)): node.value._replace(partition_epoch=node.version)
        for path, node in snapshot.items()
        if path.startswith(STATES_PATH)
    }


class ControllerProcess:
    """From the election of its broker as controller until it resigns."""

    def __init__(
        self,
        node: Node,
        session: StoreSession,
        core: ControllerCore,
        epoch: int,
        name_of: Callable[[int], str],
    ) -> None:
        self.epoch = epoch
        self.is_active = True
        self._node = node
        self._session = session
        self._core = core
        self._name_of = name_of
        self._states: dict[int, PartitionState] = {}
        self._brokers: dict[int, Registration] = {}
        self._is_loaded = False
        self._jobs: list[Callable[[], bool]] = []
        """Each starts a transaction and returns True, or has nothing to commit and returns False."""
        self._is_committing = False
        self._untold: dict[int, None] = {}
        self._telling: dict[int, None] = {}
        session.read()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Level-triggered: what the store holds now."""
        if not self.is_active:
            return
        before = self._brokers
        self._brokers = brokers_of(snapshot)
        if not self._is_committing:
            states = states_of(snapshot)
            if states != self._states or not self._is_loaded:
                self._states = states
                self._tell_all()
            self._is_loaded = True
        for id_, registration in self._brokers.items():
            if before.get(id_) != registration:
                self._tell(id_)
        self._jobs += [partial(self._check_brokers, index) for index in self._states]
        self._next()

    def alter_partition(
        self, index: int, broker_id: int, broker_epoch: int, change: IsrChange, answer: Callable[[Any], None]
    ) -> None:
        def job() -> bool:
            result = self._core.on_alter_partition(
                self._states[index], self._brokers, broker_id, broker_epoch, change
            )
            if isinstance(result, ErrorCode):
                self._tell(broker_id)
                answer((result, (), -1))
                return False

            def committed(state: PartitionState) -> None:
                answer((ErrorCode.NONE, tuple(state.isr), state.partition_epoch))

            return self._commit(index, result, committed)

        if not self._is_loaded or not self.is_active or self._session.state is not SessionState.CONNECTED:
            answer((ErrorCode.NOT_CONTROLLER, (), -1))
            return
        self._jobs.append(job)
        self._next()

    def resign(self) -> None:
        self.is_active = False

    def _next(self) -> None:
        # SUSPENDED: stop acting at once. The snapshot after the reconnect goes on.
        while self._jobs and self.is_active and not self._is_committing and self._is_loaded:
            if self._session.state is not SessionState.CONNECTED:
                return
            self._jobs.pop(0)()
        for broker_id in list(self._untold):
            self._send(broker_id)

    def _check_brokers(self, index: int) -> bool:
        state = self._core.on_brokers(self._states[index], self._brokers)
        return state is not None and self._commit(index, state, lambda _: None)

    def _commit(self, index: int, state: PartitionState, then: Callable[[PartitionState], None]) -> bool:
        version = self._states[index].partition_epoch
        self._is_committing = True

        def answered(answer: tuple[str, Any] | None) -> None:
            self._is_committing = False
            if not self.is_active:
                return
            if answer is None or answer[0] != "done":
                # Unknown, or another controller has been elected: read what holds before anything else.
                self._is_loaded = False
                self._session.read()
                return
            self._states[index] = state._replace(partition_epoch=version + 1)
            then(self._states[index])
            self._tell_all()
            self._next()

        operations = (Check(CONTROLLER_EPOCH_PATH, self.epoch), Set(f"{STATES_PATH}{index}", state, version))
        self._session.txn(operations, answered)
        return True

    # ---- telling

    def _tell_all(self) -> None:
        for id_ in self._brokers:
            self._tell(id_)

    def _tell(self, broker_id: int) -> None:
        self._untold[broker_id] = None

    def _send(self, broker_id: int) -> None:
        if not self.is_active or broker_id in self._telling or broker_id not in self._untold:
            return
        if self._jobs or self._is_committing:
            # A broker that has just registered may be the leader in a state of before its restart. It must
            # not hear of that before the state is checked, or it leads again with a part of its log.
            return
        registration = self._brokers.get(broker_id)
        if registration is None or not self._is_loaded:
            return
        del self._untold[broker_id]
        self._telling[broker_id] = None
        payload = (self.epoch, registration.broker_epoch, dict(self._states))

        def answered(answer: Any) -> None:
            del self._telling[broker_id]
            if answer is None:
                self._untold[broker_id] = None
                self._node.later(_TELL_AGAIN_S, self._send, broker_id)
            elif answer is ErrorCode.STALE_CONTROLLER_EPOCH:
                self.resign()
            else:
                self._send(broker_id)

        name = self._name_of(broker_id)
        if name == self._node.name:
            self._node.handle("leader_and_isr", payload, answered)
        else:
            self._node.network.request(self._node, name, "leader_and_isr", payload, answered, _TELL_TIMEOUT_S)
