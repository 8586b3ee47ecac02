"""The checks of replicas, of what brokers tell and of commits find what is wrong; and what a report says."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import confluent_kafka
import pytest

from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchHeader, parse_header, patch_offset_and_epoch
from klamm.records.builder import build_batch, number_records
from klamm.storage.checkpoints import HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, write_epochs, write_offsets
from tests.faults.cluster.clients import Wait
from tests.faults.cluster.group import Group
from tests.faults.cluster.kinds import damage_tails
from tests.faults.cluster.observer import Observer
from tests.faults.cluster.replicas import batches_of, replica_anomalies, sequence_anomalies, who_wrote
from tests.faults.cluster.report import Fault, Report
from tests.faults.cluster.scene import PARTITIONS, TOPIC

SEGMENT = "00000000000000000000.log"


def batch(offset: int, epoch: int = 0, value: bytes = b"value", sequence: int = 0) -> bytes:
    records = number_records([(b"key", value)], 1)
    data = build_batch(records, producer_id=5, producer_epoch=0, base_sequence=sequence)
    patch_offset_and_epoch(memoryview(data), offset, epoch)
    return bytes(data)


@pytest.fixture
def brokers(tmp_path: Path) -> dict[int, Path]:
    """Two brokers with the same ten batches, in two epochs; the high watermark is 8."""
    data = {1: tmp_path / "1", 2: tmp_path / "2"}
    for directory in data.values():
        partition = directory / "t-0"
        partition.mkdir(parents=True)
        batches = [batch(offset, epoch=offset // 5, sequence=offset) for offset in range(10)]
        (partition / SEGMENT).write_bytes(b"".join(batches))
        write_epochs(str(partition / LEADER_EPOCH_FILE), [(0, 0), (1, 5)])
        write_offsets(str(directory / HIGH_WATERMARK_FILE), {TopicPartition("t", 0): 8})
    return data


def put(directory: Path, number: int, data: bytes) -> None:
    """Another batch in the place of one."""
    batches = [each.data for each in batches_of(directory / "t-0")]
    batches[number] = data
    (directory / "t-0" / SEGMENT).write_bytes(b"".join(batches))


def anomalies(brokers: dict[int, Path]) -> str:
    return "\n".join(replica_anomalies(brokers, "t", 1))


class TestReplicas:
    def test_equal_ones(self, brokers: dict[int, Path]) -> None:
        assert anomalies(brokers) == ""

    def test_above_the_high_watermark_they_may_differ(self, brokers: dict[int, Path]) -> None:
        put(brokers[2], 8, batch(8, 1, b"another", sequence=8))
        put(brokers[2], 9, b"")
        assert anomalies(brokers) == ""

    def test_another_value(self, brokers: dict[int, Path]) -> None:
        put(brokers[2], 7, batch(7, 1, b"another", sequence=7))
        assert "replicas differ: t-0 on brokers 1 and 2 from offset 7 on" in anomalies(brokers)

    @pytest.mark.parametrize("broker_id", [1, 2])
    def test_a_log_that_is_too_short(self, brokers: dict[int, Path], broker_id: int) -> None:
        segment = brokers[broker_id] / "t-0" / SEGMENT
        segment.write_bytes(b"".join(each.data for each in batches_of(segment.parent)[:7]))
        assert "replicas differ" in anomalies(brokers)

    def test_epochs_that_go_back(self, brokers: dict[int, Path]) -> None:
        for directory in brokers.values():
            put(directory, 7, batch(7, 0, sequence=7))
        assert "epoch went back: t-0 on broker 1 has epoch 0 at offset 7 after epoch 1" in anomalies(brokers)

    def test_an_epoch_with_two_starts(self, brokers: dict[int, Path]) -> None:
        write_epochs(str(brokers[2] / "t-0" / LEADER_EPOCH_FILE), [(0, 0), (1, 6)])
        assert "began epoch 1 at 5 for broker 1 and at 6 for broker 2" in anomalies(brokers)
        write_epochs(str(brokers[2] / "t-0" / LEADER_EPOCH_FILE), [(0, 0), (1, 5), (3, 10)])
        assert anomalies(brokers) == "", "an epoch that wrote nothing"

    def test_a_batch_that_is_there_twice(self) -> None:
        headers = [header(0, 0), header(1, 1), header(2, 1)]
        assert "sequence 1 of producer 5" in "".join(sequence_anomalies("t-0", headers))
        assert "expected 1" in "".join(sequence_anomalies("t-0", [header(0, 0), header(1, 2)]))

    def test_who_wrote(self, brokers: dict[int, Path]) -> None:
        assert who_wrote(brokers[1], "t", 0, [3, 9]) == [(5, 0, 3), (5, 0, 9)]


def header(offset: int, sequence: int) -> BatchHeader:
    return parse_header(batch(offset, sequence=sequence))


class TestObserver:
    @pytest.fixture
    def observer(self) -> Observer:
        return Observer({}, "t", 1)

    def found(self, observer: Observer) -> str:
        observer.start()
        return "\n".join(observer.finish())

    def test_nothing_wrong(self, observer: Observer) -> None:
        observer.on_leader(1, 0, 2, 5)
        observer.on_leader(3, 0, 1, 4)
        observer.on_leader(3, 0, -1, 5)
        observer.on_leader(3, 0, 2, 5)
        observer.on_high_watermark(1, 0, 7)
        observer.on_high_watermark(2, 0, 7)
        assert self.found(observer) == ""

    def test_two_leaders_in_an_epoch(self, observer: Observer) -> None:
        observer.on_leader(1, 0, 2, 5)
        observer.on_leader(3, 0, 3, 5)
        assert "led in epoch 5 by 2, says broker 1, and by 3, says broker 3" in self.found(observer)

    def test_what_goes_back(self, observer: Observer) -> None:
        observer.on_leader(1, 0, 2, 5)
        observer.on_leader(1, 0, 2, 4)
        observer.on_high_watermark(1, 0, 7)
        observer.on_high_watermark(2, 0, 6)
        found = self.found(observer)
        assert "epoch went back: broker 1" in found
        assert "high watermark went back: broker 2 told 6" in found


def test_a_lost_commit_is_found() -> None:
    group = Group("127.0.0.1:1", "group", "t", members=0)
    group.on_committed([confluent_kafka.TopicPartition("t", 0, 10)])
    acknowledged = group.acknowledged()
    group.check_found([confluent_kafka.TopicPartition("t", 0, 10)], acknowledged)
    group.check_found([confluent_kafka.TopicPartition("t", 1, -1001)], acknowledged)
    assert group.anomalies == []
    group.check_found([confluent_kafka.TopicPartition("t", 0, 9)], acknowledged)
    group.check_found([confluent_kafka.TopicPartition("t", 0, -1001)], acknowledged)
    assert [each[:11] for each in group.anomalies] == ["lost commit"] * 2


def test_damage_leaves_what_is_below_the_recovery_point(tmp_path: Path) -> None:
    for seed in range(20):
        whole = b"".join(batch(offset) for offset in range(10))
        for index in range(PARTITIONS):
            partition = tmp_path / f"{TOPIC}-{index}"
            partition.mkdir()
            (partition / SEGMENT).write_bytes(whole)
        points = {TopicPartition(TOPIC, index): index * 2 for index in range(PARTITIONS)}
        write_offsets(str(tmp_path / "recovery-point-offset-checkpoint"), points)
        done = damage_tails(tmp_path, Random(seed))
        assert len(done) == PARTITIONS - 1, "the last partition is on the disk as a whole"
        for index in range(PARTITIONS):
            data = (tmp_path / f"{TOPIC}-{index}" / SEGMENT).read_bytes()
            kept = len(whole) * index * 2 // 10
            assert data[:kept] == whole[:kept]
            assert data != whole or index == PARTITIONS - 1
            shutil.rmtree(tmp_path / f"{TOPIC}-{index}")


def test_a_report() -> None:
    faults = [Fault("kill -9", "leader", 10, 14), Fault("kill -9", "follower", 20, 21.5)]
    waits = [Wait(9.0, 9.0), Wait(11, 0.7), Wait(20.5, 0.3)]
    text = Report(7, "SQLite", 2.5, faults, waits, {"records acknowledged": 12345}, []).as_markdown()
    assert "seed 7, 2.5 minutes" in text
    assert "| records acknowledged | 12,345 |" in text
    assert "| kill -9 | follower 1, leader 1 | 2 | 0.7 | 4.0 |" in text
    assert text.endswith("Anomalies: none.\n")
    assert "- lost write" in Report(7, "SQLite", 1, [], [], {}, ["lost write: x"]).as_markdown()
