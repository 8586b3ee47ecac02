"""Simulated producers and consumers: they find the leader by asking, retry, and report all they see to the
ledger."""

from __future__ import annotations

import random
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.testing.simulation.checks import Ledger
from klamm.testing.simulation.network import Answer, Network, Node
from klamm.testing.simulation.peers import broker_name

_REQUEST_TIMEOUT_S = 5.0
_RETRY_S = 0.4


class SimulatedClient(Node):
    """Knows one partition and the broker that it takes for the leader."""

    def __init__(
        self,
        name: str,
        network: Network,
        ledger: Ledger,
        index: int,
        broker_ids: range,
        chance: random.Random,
    ) -> None:
        super().__init__(name, network)
        self.ledger = ledger
        self.index = index
        self.broker_ids = broker_ids
        self.chance = chance
        self.target = chance.choice(broker_ids)
        self.is_up = True
        self.later(chance.random(), self.act)

    def act(self) -> None:
        raise NotImplementedError

    def handle(self, kind: str, payload: Any, answer: Answer) -> None:
        raise AssertionError(f"nobody sends {kind} to a client")

    def ask(self, kind: str, payload: Any, on_answer: Answer) -> None:
        target = broker_name(self.target)
        self.network.request(self, target, kind, payload, on_answer, _REQUEST_TIMEOUT_S)

    def try_another(self, leader_id: int) -> None:
        """`leader_id` is whom a broker takes for the leader, -1 if it does not know."""
        self.target = (
            leader_id if leader_id >= 0 and leader_id != self.target else self.chance.choice(self.broker_ids)
        )
        self.later(_RETRY_S, self.act)


class SimulatedProducer(SimulatedClient):
    """One record at a time. With acks=all it is idempotent and repeats a record until it is acknowledged."""

    def __init__(self, producer_id: int, acks_all: bool, pause_s: float, *arguments: Any) -> None:
        self.producer_id = producer_id
        self.acks_all = acks_all
        self.sequence = 0
        self.is_stopping = False
        self.is_idle = False
        self._pause_s = pause_s
        super().__init__(f"producer{producer_id}", *arguments)

    def act(self) -> None:
        payload = (self.index, self.producer_id, self.sequence, self.acks_all, self.acks_all)
        self.ask("produce", payload, self._on_answer)

    def _on_answer(self, answer: Any) -> None:
        error, offset, _ = answer or (ErrorCode.REQUEST_TIMED_OUT, -1, -1)
        if error is ErrorCode.NONE:
            if self.acks_all:
                self.ledger.on_acknowledged(self.index, offset, self.producer_id, self.sequence)
            self._next()
        else:
            if not self.acks_all:
                # It may have been appended: without idempotence it is not sent again.
                self.sequence += 1
            self.try_another(offset if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else -1)

    def _next(self) -> None:
        self.sequence += 1
        if self.is_stopping:
            self.is_idle = True
        else:
            self.later(self._pause_s * self.chance.expovariate(1), self.act)


class SimulatedConsumer(SimulatedClient):
    """Reads its partition from the start, and asks for the latest offset on the way."""

    def __init__(self, name: str, pause_s: float, *arguments: Any) -> None:
        self.position = 0
        self.leader_epoch = -1
        self._pause_s = pause_s
        super().__init__(name, *arguments)

    def act(self) -> None:
        self.ask("read", (self.index, self.position, self.leader_epoch), self._on_answer)

    def _on_answer(self, answer: Any) -> None:
        error, records, latest, leader_epoch = answer or (ErrorCode.REQUEST_TIMED_OUT, [], -1, -1)
        if error is not ErrorCode.NONE:
            self.try_another(latest)
            return
        self.ledger.on_read(self.index, self.position, records)
        self.position += len(records)
        self.leader_epoch = leader_epoch
        if latest >= 0:
            self.ledger.on_latest_offset(self.name, self.index, leader_epoch, latest)
        self.later(self._pause_s * self.chance.random() if not records else _RETRY_S, self.act)
