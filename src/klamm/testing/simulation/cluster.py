"""One simulated run: a cluster, its clients and faults for some virtual time, then healing, then the last
checks."""

from __future__ import annotations

import random
from dataclasses import dataclass

from klamm.testing.simulation.broker import SimulatedBroker
from klamm.testing.simulation.checks import Ledger, Violation
from klamm.testing.simulation.clients import SimulatedConsumer, SimulatedProducer
from klamm.testing.simulation.controller import (
    CONTROLLER_EPOCH_PATH,
    STATES_PATH,
    ControllerCore,
    PartitionState,
    SmallController,
    states_of,
)
from klamm.testing.simulation.faults import Faults
from klamm.testing.simulation.loop import VirtualLoop
from klamm.testing.simulation.network import Network
from klamm.testing.simulation.replica import MIN_INSYNC_REPLICAS, Replica
from klamm.testing.simulation.store import StoredNode, StoreServer

PARTITION_COUNT = 2
REPLICATION_FACTOR = 3
IDEMPOTENT_PRODUCERS = range(0, 2)
"""Their producer ids; one to each partition. One more produces with acks=1."""
_HEALING_LIMIT_S = 120.0


class SimulationFailed(AssertionError):
    """An invariant was violated, or something failed that must not; the text names the seed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What may be replaced, by the real controller or by something broken."""

    seconds: float = 600.0
    pause_between_faults_s: float = 12.0
    pause_of_clients_s: float = 2.5
    controller: ControllerCore | None = None
    replica_class: type[Replica] = Replica


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    committed: int
    acknowledged: int
    read: int
    elections: int
    digest: int
    """Equal for equal runs."""


def simulate(seed: int, settings: Settings | None = None) -> Result:
    """Run the seed; `SimulationFailed` with its last events if anything does not hold."""
    run = _Run(seed, settings or Settings())
    try:
        return run.run()
    except Exception as error:
        raise SimulationFailed(
            f"seed {seed} failed: {error}\nthe last events before that:\n{run.ledger.trace}\n"
            f"SEED={seed} make simulate runs it again"
        ) from (None if isinstance(error, Violation) else error)
    finally:
        run.loop.close()


class _Run:
    def __init__(self, seed: int, settings: Settings) -> None:
        self._settings = settings
        chance = random.Random(seed)
        self.loop = VirtualLoop()
        self.ledger = Ledger(self.loop)
        self._network = Network(self.loop, chance)
        self._store = StoreServer(self._network)
        broker_ids = range(1, 1 + chance.choice([3, 3, 4, 5]))
        self._store.nodes = _first_nodes(broker_ids)
        core = settings.controller or SmallController(MIN_INSYNC_REPLICAS)
        self._brokers = [
            SimulatedBroker(
                id_, self._network, self.ledger, core, PARTITION_COUNT, settings.replica_class, chance
            )
            for id_ in broker_ids
        ]
        for broker in self._brokers:
            broker.start()
        pause_s = settings.pause_of_clients_s
        shared = (self._network, self.ledger)
        self._producers = [
            SimulatedProducer(id_, id_ in IDEMPOTENT_PRODUCERS, pause_s, *shared, id_ % 2, broker_ids, chance)
            for id_ in range(3)
        ]
        self._consumers = [
            SimulatedConsumer(f"consumer{index}", 2 * pause_s, *shared, index, broker_ids, chance)
            for index in range(PARTITION_COUNT)
        ]
        self._chance = chance

    def run(self) -> Result:
        # The first controller, the first leaders and full ISRs, before anything fails.
        self.loop.run_for(15.0)
        settings = self._settings
        faults = Faults(
            self._network,
            self._store,
            self._brokers,
            self.ledger,
            self._chance,
            settings.pause_between_faults_s,
        )
        self.loop.run_for(settings.seconds)
        self.ledger.note("heal everything")
        faults.heal()
        for producer in self._producers:
            producer.is_stopping = True
        waited_s = 0.0
        while self._undrained():
            if waited_s >= _HEALING_LIMIT_S:
                self.ledger.fail(f"{_HEALING_LIMIT_S:.0f} s after healing {self._undrained()}")
            self.loop.run_for(5.0)
            waited_s += 5.0
        self.ledger.check_no_duplicates(IDEMPOTENT_PRODUCERS)
        committed = self.ledger.committed
        return Result(
            seconds=self.loop.time(),
            committed=sum(len(records) for records in committed.values()),
            acknowledged=self.ledger.acknowledged_count,
            read=self.ledger.read_count,
            elections=self.ledger.election_count,
            digest=hash((self.loop.time(), *(tuple(records) for records in committed.values()))),
        )

    def _undrained(self) -> str:
        """What has not come to rest yet; nothing if all has."""
        for producer in self._producers:
            if not producer.is_idle:
                return f"producer {producer.producer_id} waits for record {producer.sequence}"
        for index, state in states_of(self._store.nodes).items():
            if set(state.isr) != set(state.replicas):
                return f"the ISR of {index} is {dict(state.isr)} with leader {state.leader}"
            committed = self.ledger.committed.get(index, [])
            for broker in self._brokers:
                log = broker.replicas[index].log
                if broker.id in state.replicas and (
                    log.records != committed or log.high_watermark < len(committed)
                ):
                    return (
                        f"broker {broker.id} has {log.log_end_offset} records of {index}, high watermark "
                        f"{log.high_watermark}; {len(committed)} are committed"
                    )
        for consumer in self._consumers:
            if consumer.position < len(self.ledger.committed.get(consumer.index, [])):
                return f"{consumer.name} is at {consumer.position}"
        return ""


def _first_nodes(broker_ids: range) -> dict[str, StoredNode]:
    """Two partitions that nobody leads yet; every replica is eligible by being the last leader or
    following."""
    nodes = {CONTROLLER_EPOCH_PATH: StoredNode(None, 0, 0, 0)}
    ids = list(broker_ids)
    for index in range(PARTITION_COUNT):
        replicas = tuple(ids[(index + place) % len(ids)] for place in range(REPLICATION_FACTOR))
        state = PartitionState(replicas, -1, 0, {}, {}, last_leader=replicas[0])
        nodes[f"{STATES_PATH}{index}"] = StoredNode(state, 0, 0, 0)
    return nodes
