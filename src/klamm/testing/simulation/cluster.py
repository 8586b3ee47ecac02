"""One simulated run: a cluster, its clients and faults for some virtual time, then healing, then the last
checks."""

from __future__ import annotations

import logging
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from klamm.testing.simulation.broker import SimulatedBroker
from klamm.testing.simulation.checks import Ledger, Violation
from klamm.testing.simulation.clients import SimulatedConsumer, SimulatedProducer
from klamm.testing.simulation.faults import Faults
from klamm.testing.simulation.loop import VirtualLoop
from klamm.testing.simulation.members import SHARED, SimulatedMember
from klamm.testing.simulation.network import Network
from klamm.testing.simulation.replica import Replica
from klamm.testing.simulation.store import StoreServer
from klamm.testing.simulation.topics import (
    INDEXES,
    PLACES,
    RECORD_PARTITIONS,
    fill_store,
    registered_epochs,
    stored_partitions,
)

IDEMPOTENT_PRODUCERS = range(0, 2)
"""Their producer ids; one to each partition. One more produces with acks=1."""
GROUPS = {"readers": 2, "others": 2}
"""The groups, and how many members each has. They belong to different partitions of __consumer_offsets."""
_HEALING_LIMIT_S = 120.0
_HEALING_STEP_S = 5.0


class SimulationFailed(AssertionError):
    """An invariant was violated, or something failed that must not; the text names the seed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how harsh a run is; `replica_class` may be something broken."""

    seconds: float = 600.0
    pause_between_faults_s: float = 12.0
    pause_of_clients_s: float = 2.5
    replica_class: type[Replica] = Replica


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    committed: int
    acknowledged: int
    read: int
    elections: int
    commits: int
    """Acknowledged commits of offsets."""
    rebalances: int
    fenced: int
    """Members that were told that their member id or generation is over."""
    checks: int
    faults: Counter[str]
    """How many there were of each kind."""
    digest: int
    """Equal for equal runs."""


def simulate(seed: int, settings: Settings | None = None) -> Result:
    """Run the seed; `SimulationFailed` with its last events if anything does not hold."""
    run = _Run(seed, settings or Settings())
    try:
        with _logged_to(run.ledger):
            return run.run()
    except Exception as error:
        raise SimulationFailed(
            f"seed {seed} failed: {error}\nthe last events before that:\n{run.ledger.trace}\n"
            f"SEED={seed} make simulate runs it again"
        ) from (None if isinstance(error, Violation) else error)
    finally:
        run.close()


@contextmanager
def _logged_to(ledger: Ledger) -> Iterator[None]:
    """What brokers log is a part of the trace; an exception among it is a bug."""
    logger = logging.getLogger("klamm")
    before = (logger.level, logger.propagate)
    handler = _LedgerHandler(ledger)
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _LedgerHandler(logging.Handler):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._ledger.on_error(record.getMessage(), record.exc_info[1])
        else:
            self._ledger.note(record.getMessage())


class _Run:
    def __init__(self, seed: int, settings: Settings) -> None:
        self._settings = settings
        chance = random.Random(seed)
        self.loop = VirtualLoop()
        self.ledger = Ledger(self.loop)
        self._network = Network(self.loop, chance)
        self._store = StoreServer(self._network, notices_deaths=chance.random() < 0.5)
        broker_ids = range(1, 1 + chance.choice([3, 3, 4, 5]))
        fill_store(self._store, broker_ids)
        self._brokers = [
            SimulatedBroker(id_, self._network, self._store, self.ledger, settings.replica_class, chance)
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
            for index in RECORD_PARTITIONS
        ]
        self._members = [
            SimulatedMember(f"{group_id}{number}", group_id, *shared, broker_ids, chance, pause_s)
            for group_id, count in GROUPS.items()
            for number in range(count)
        ]
        self._chance = chance

    def close(self) -> None:
        for broker in self._brokers:
            broker.dispose()
        self._store.close()
        self.loop.close()

    def run(self) -> Result:
        # The first controller, the first leaders and full ISRs, before anything fails.
        self._run_for(15.0)
        settings = self._settings
        faults = Faults(
            self._network,
            self._store,
            self._brokers,
            self._members,
            self.ledger,
            self._chance,
            settings.pause_between_faults_s,
        )
        self._run_for(settings.seconds)
        self.ledger.note("heal everything")
        faults.heal()
        for producer in self._producers:
            producer.is_stopping = True
        waited_s = 0.0
        while self._undrained():
            if waited_s >= _HEALING_LIMIT_S:
                self.ledger.fail(f"{_HEALING_LIMIT_S:.0f} s after healing {self._undrained()}")
            self._run_for(_HEALING_STEP_S)
            waited_s += _HEALING_STEP_S
        self.ledger.check_no_duplicates(IDEMPOTENT_PRODUCERS)
        return self._result()

    def _run_for(self, seconds: float) -> None:
        self.loop.run_for(seconds)
        if self.ledger.errors:
            raise Violation(self.ledger.errors[0])

    def _result(self) -> Result:
        ledger, groups = self.ledger, self.ledger.groups
        committed = [ledger.committed.get(index, []) for index in range(len(PLACES))]
        return Result(
            seconds=self.loop.time(),
            committed=sum(map(len, committed)),
            acknowledged=ledger.acknowledged_count,
            read=ledger.read_count,
            elections=ledger.election_count,
            commits=groups.commit_count,
            rebalances=groups.rebalance_count,
            fenced=groups.fenced_count,
            checks=ledger.check_count + groups.check_count,
            faults=ledger.faults,
            digest=zlib.crc32(repr((self.loop.time(), committed)).encode()),
        )

    def _undrained(self) -> str:
        """What has not come to rest yet; nothing if all has."""
        return self._undrained_logs() or self._stale_images() or self._undrained_clients()

    def _undrained_logs(self) -> str:
        for index, state in enumerate(stored_partitions(self._store)):
            if set(state.isr) != set(state.replicas):
                return f"the ISR of {index} is {state.isr} with leader {state.leader}"
            committed = self.ledger.committed.get(index, [])
            for broker in self._brokers:
                log = broker.replicas[index].log
                if broker.node_id in state.replicas and (
                    log.records != committed or log.high_watermark < len(committed)
                ):
                    return (
                        f"broker {broker.node_id} has {log.log_end_offset} records of {index}, high "
                        f"watermark {log.high_watermark}; {len(committed)} are committed"
                    )
        return ""

    def _stale_images(self) -> str:
        """Every broker knows everything: its image has what the store has."""
        registered = registered_epochs(self._store)
        states = stored_partitions(self._store)
        for broker in self._brokers:
            image = broker.cluster.image
            alive = {id_: each.epoch for id_, each in image.brokers.items()}
            if alive != registered:
                return f"broker {broker.node_id} takes {alive} for alive; registered are {registered}"
            for place, state in zip(PLACES, states, strict=True):
                known = image.topics[place.topic].partitions[place.partition]
                if known != state:
                    return f"broker {broker.node_id} knows {known} of {place}; stored is {state}"
        return ""

    def _undrained_clients(self) -> str:
        for producer in self._producers:
            if not producer.is_idle:
                return f"producer {producer.producer_id} waits for record {producer.sequence}"
        ends = {place: len(self.ledger.committed.get(INDEXES[place], [])) for place in SHARED}
        for consumer in self._consumers:
            if consumer.position < ends[PLACES[consumer.index]]:
                return f"{consumer.name} is at {consumer.position}"
        for group_id in GROUPS:
            members = [member for member in self._members if member.group_id == group_id]
            generations = {member.generation for member in members if member.is_settled}
            owned = sorted(place for member in members for place in member.positions)
            if len(generations) != 1 or not all(member.is_settled for member in members):
                return f"group {group_id} is not stable: its members are in generations {generations}"
            if owned != sorted(SHARED):
                return f"the members of group {group_id} own {owned}"
            for place, end in ends.items():
                offset = self.ledger.groups.committed_offset(group_id, place)
                if offset != end:
                    return f"group {group_id} has committed {offset} of {place}, which ends at {end}"
        return ""
