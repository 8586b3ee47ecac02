"""The machine loses power under load: what was promised to be on the disk is there, and no garbage is served.

Promised are: with `flush.messages=1` every acknowledged record and every committed offset; topics, producer
ids and whatever else the coordination store has answered. Records of a topic that is not flushed may be lost
from the end of their log, never from its middle, and never replaced by others.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from random import Random

import pytest

from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from klamm.records.batch import CorruptBatch
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.abuse.calls import create_topic, read_all
from tests.faults.checks import (
    check_compacted,
    check_disk,
    check_gapless,
    check_producer,
    committed_offset,
    make_coordinator,
    read_numbers,
)
from tests.faults.ledger import FORGET
from tests.faults.load import Committer, CompactedWriter, IdempotentProducer, Load, Partition, SimpleProducer
from tests.faults.power import PowerSupply, events_of
from tests.waiting import wait_until

SHORT_LOSSES = 3
LONG_LOSSES = int(os.environ.get("KILLS", "30"))
ACKNOWLEDGEMENTS_BETWEEN_LOSSES = (20, 400)
NEVER = 2**63 - 1
SETTINGS = {
    "log.flush.interval.messages": 1,
    "log.cleaner.backoff.ms": 20,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 1_048_576,
}
SMALL = {"internal.segment.bytes": 5_000, "index.interval.bytes": 400}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


class Workload:
    """Everybody who writes, and what was promised to them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topics: list[str] = []
        self.producer_ids: list[int] = []
        with WireConnection(bootstrap) as connection:
            create_topic(connection, "careful", partitions=2, configs=SMALL)
            create_topic(connection, "carefree", configs={**SMALL, "flush.messages": NEVER})
            create_topic(connection, "compacted", configs=COMPACTED)
            make_coordinator(connection, "group")
        self.careful: list[SimpleProducer | IdempotentProducer] = [
            SimpleProducer(bootstrap, "simple", Partition("careful", 0), 300),
            IdempotentProducer(bootstrap, "idempotent", Partition("careful", 1), 300),
        ]
        self.carefree = SimpleProducer(bootstrap, "carefree", Partition("carefree", 0), 300)
        self.compacted = CompactedWriter(bootstrap, "writer", "compacted", 300)
        self.committer = Committer(bootstrap, "committer", "group", Partition("careful", 0))
        self.everybody: list[Load] = [*self.careful, self.carefree, self.compacted, self.committer]

    def acknowledged_count(self) -> int:
        for load in self.everybody:
            load.check()
        return sum(load.acknowledged_count for load in self.everybody)

    def wait_for_more(self, count: int) -> None:
        target = self.acknowledged_count() + count
        wait_until(lambda: self.acknowledged_count() >= target, f"{count} more acknowledgements", 120)

    def change_the_store(self) -> None:
        with WireConnection(self.bootstrap) as connection:
            name = f"topic-{len(self.topics)}"
            create_topic(connection, name)
            self.topics.append(name)
            self.producer_ids.append(
                connection.call(InitProducerIdRequest(transactional_id=None)).producer_id
            )

    def check(self) -> None:
        with WireConnection(self.bootstrap, client_id="checker") as connection:
            for producer in self.careful:
                acknowledged = dict(producer.acknowledged)
                read = read_numbers(connection, producer.partition)[producer.name]
                check_producer(producer.name, read, acknowledged)
                if isinstance(producer, IdempotentProducer):
                    check_gapless(producer.name, read)
            check_compacted(connection, self.compacted, dict(self.compacted.acknowledged))
            promised = self.committer.acknowledged
            committed = committed_offset(connection, "group", self.committer.partition)
            assert promised <= committed <= self.committer.attempted
            self._check_carefree(connection)
            known = {topic.name for topic in connection.call(MetadataRequest(topics=None)).topics}
            assert known >= set(self.topics), "a topic is lost"
            assert len(set(self.producer_ids)) == len(self.producer_ids), "a producer id was given twice"

    def _check_carefree(self, connection: WireConnection) -> None:
        """Lost records are the last ones: what is there follows one after the other, in the order sent."""
        records = read_all(connection, "carefree")
        assert [record.offset for record in records] == list(range(len(records)))
        numbers = [number for number, _ in read_numbers(connection, self.carefree.partition)["carefree"]]
        assert numbers == sorted(set(numbers)), "records come twice or out of order"


def run(directory: Path, losses: int, seed: int, kinds: tuple[str, ...] | None = None) -> None:
    random = Random(seed)
    broker = BrokerProcess(directory / "data", directory / "broker.log", SETTINGS)
    broker.data_dir.mkdir()
    power = PowerSupply(directory, broker.data_dir, seed, *([kinds] if kinds else []))
    with broker.started(*power.wrapper):
        workload = Workload(broker.bootstrap)
        for load in workload.everybody:
            load.start()
        try:
            for number in range(losses):
                workload.change_the_store()
                workload.wait_for_more(random.randint(*ACKNOWLEDGEMENTS_BETWEEN_LOSSES))
                broker.kill()
                power.cut()
                try:
                    broker.start(*power.wrapper)
                    workload.check()
                except AssertionError as error:
                    taken = "\n".join(power.was_taken)
                    raise AssertionError(f"seed {seed}, loss {number}: {error}\n{taken}") from error
            for load in workload.everybody:
                load.finish()
        finally:
            for load in workload.everybody:
                load.stopping.set()
        workload.check()
        broker.stop()
    check_disk(broker.data_dir)


@pytest.mark.parametrize("seed", [1])
def test_what_was_promised_survives_a_loss_of_power(tmp_path: Path, seed: int) -> None:
    run(tmp_path, SHORT_LOSSES, seed)


def test_a_missing_fsync_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By records that are lost, or by garbled batches that cannot be read."""
    monkeypatch.setenv(FORGET, ".log")
    with pytest.raises((AssertionError, CorruptBatch, struct.error)) as found:
        run(tmp_path, 1, 1, ("garble",))
    if isinstance(found.value, AssertionError):
        assert "acknowledged records are lost" in str(found.value)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [int(os.environ.get("SEED", "2"))])
def test_what_was_promised_survives_many_losses_of_power(tmp_path: Path, seed: int) -> None:
    run(tmp_path, LONG_LOSSES, seed)


def test_a_line_that_the_kill_has_cut_is_left_out() -> None:
    whole = '{"event": "process", "pid": 1}\n'
    cut = '{"event": "rename", "source": "/'
    assert events_of(whole + cut) == events_of(whole)
    assert events_of(whole + cut + whole) == events_of(whole) * 2
