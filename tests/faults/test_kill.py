"""kill -9 at random moments under load, many times. Nothing that was acknowledged may be lost or doubled."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.abuse.calls import create_topic
from tests.faults.checks import (
    check_compacted,
    check_disk,
    check_gapless,
    check_producer,
    committed_offset,
    make_coordinator,
    read_numbers,
)
from tests.faults.load import (
    Committer,
    CompactedWriter,
    ConfluentProducer,
    IdempotentProducer,
    Load,
    Partition,
    SimpleProducer,
)
from tests.waiting import wait_until

few = pytest.mark.parametrize(("seed", "times"), [(1, 3), pytest.param(3, 10, marks=pytest.mark.long)])
"""How often; `make faults` does it many times."""

LONG_KILLS = int(os.environ.get("KILLS", "60"))
ACKNOWLEDGEMENTS_BETWEEN_KILLS = (20, 600)
RECOVERY = "was not closed cleanly"
SEGMENT_BYTES = 60_000
VALUE_BYTES = 700

SETTINGS = {
    # So that what a crash can interrupt happens all the time.
    "log.cleaner.backoff.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "offsets.topic.num.partitions": 2,
}


class Workload:
    """Everybody who writes, and what can be checked of it while they go on."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        with WireConnection(bootstrap) as connection:
            small = {"internal.segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 1000}
            create_topic(connection, "small-segments", partitions=2, configs=small)
            create_topic(connection, "one-segment", partitions=2)
            create_topic(connection, "confluent", partitions=3, configs=small)
            create_topic(
                connection,
                "compacted",
                configs={
                    **small,
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": "0.01",
                    "delete.retention.ms": 0,
                },
            )
            make_coordinator(connection, "some-group")
        shared = Partition("small-segments", 0)
        self.simple = [
            SimpleProducer(bootstrap, "simple-1", shared, VALUE_BYTES),
            SimpleProducer(bootstrap, "simple-2", Partition("one-segment", 0), 50),
        ]
        self.idempotent = [
            IdempotentProducer(bootstrap, "idempotent-1", shared, VALUE_BYTES),
            IdempotentProducer(bootstrap, "idempotent-2", Partition("small-segments", 1), VALUE_BYTES),
            IdempotentProducer(bootstrap, "idempotent-3", Partition("one-segment", 1), 50),
        ]
        self.confluent = ConfluentProducer(bootstrap, "confluent-1", "confluent", 3, 300)
        self.compacted = CompactedWriter(bootstrap, "compacted-1", "compacted", VALUE_BYTES)
        self.committer = Committer(bootstrap, "committer-1", "some-group", Partition("one-segment", 0))
        self.everybody: list[Load] = [
            *self.simple,
            *self.idempotent,
            self.confluent,
            self.compacted,
            self.committer,
        ]

    def start(self) -> None:
        for load in self.everybody:
            load.start()

    def finish(self) -> None:
        for load in self.everybody:
            load.finish()

    def acknowledged_count(self) -> int:
        for load in self.everybody:
            load.check()
        return sum(load.acknowledged_count for load in self.everybody)

    def wait_for_more(self, count: int) -> None:
        target = self.acknowledged_count() + count
        wait_until(lambda: self.acknowledged_count() >= target, f"{count} more acknowledgements", 60)

    def check(self) -> None:
        """What had been acknowledged when this began is all there."""
        with WireConnection(self.bootstrap, client_id="checker") as connection:
            for producer in [*self.simple, *self.idempotent]:
                acknowledged = dict(producer.acknowledged)
                read = read_numbers(connection, producer.partition)[producer.name]
                check_producer(producer.name, read, acknowledged)
                if isinstance(producer, IdempotentProducer):
                    check_gapless(producer.name, read)
            for index in range(self.confluent.partitions):
                acknowledged = dict(self.confluent.acknowledged[index])
                read = read_numbers(connection, Partition("confluent", index))[self.confluent.name]
                check_producer(f"confluent-{index}", read, acknowledged)
                check_gapless(f"confluent-{index}", read)
            check_compacted(connection, self.compacted, dict(self.compacted.acknowledged))
            acknowledged_offset = self.committer.acknowledged
            committed = committed_offset(connection, self.committer.group, self.committer.partition)
            assert acknowledged_offset <= committed <= self.committer.attempted


def run(directory: Path, endings: list[str], seed: int) -> None:
    """Bring the broker to so many ends, "kill" or "stop", and start it again each time."""
    random = Random(seed)
    kills = 0
    broker = BrokerProcess(directory / "data", directory / "broker.log", SETTINGS)
    with broker:
        workload = Workload(broker.bootstrap)
        workload.start()
        try:
            for number, ending in enumerate(endings):
                workload.wait_for_more(random.randint(*ACKNOWLEDGEMENTS_BETWEEN_KILLS))
                getattr(broker, ending)()
                kills += ending == "kill"
                broker.start()
                assert broker.log().count(RECOVERY) == kills
                if len(endings) <= 10 or number % 10 == 0:
                    workload.check()
        finally:
            if broker.is_running:
                workload.finish()
        workload.check()
        broker.stop()
        check_disk(broker.data_dir)
        to_be_deleted = list(broker.data_dir.glob("*/*.deleted"))
        broker.start()
        assert not any(path.exists() for path in to_be_deleted)
        assert broker.log().count(RECOVERY) == kills, "a clean start needs no recovery"
        workload.check()
        broker.check_log()


@few
def test_a_few_kills(tmp_path: Path, seed: int, times: int) -> None:
    run(tmp_path, ["kill"] * times, seed)


@pytest.mark.long
@few
def test_a_few_stops_in_good_order(tmp_path: Path, seed: int, times: int) -> None:
    """Producers have requests in flight whose answers they may never see."""
    run(tmp_path, ["stop"] * times, seed)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [int(os.environ.get("SEED", "2"))])
def test_many_kills(tmp_path: Path, seed: int) -> None:
    run(tmp_path, Random(seed).choices(["kill", "stop"], [4, 1], k=LONG_KILLS), seed)
