"""Idempotent producers: what is a repetition, what is a gap, and what is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.logs import NOW_MS, Harness

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import MAX_SEQUENCE
from klamm.storage.log import AppendResult
from klamm.storage.producers.state import CorruptSnapshot, ProducerStates

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def send(harness: Harness, sequence: int, count: int = 1, epoch: int = 0, producer: int = 9) -> AppendResult:
    return harness.append(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def refused(harness: Harness, code: ErrorCode, sequence: int, **settings: int) -> None:
    end = harness.log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        send(harness, sequence, **settings)
    assert caught.value.code == code
    assert harness.log.log_end_offset == end


def test_sequences_follow_each_other(harness: Harness) -> None:
    assert send(harness, 0, 3).base_offset == 0
    assert send(harness, 3, 2).base_offset == 3
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 6)
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 4)
    assert send(harness, 5).base_offset == 5
    assert send(harness, 0, producer=10).base_offset == 6, "producers do not concern each other"


def test_each_of_the_last_five_batches_is_recognised(harness: Harness) -> None:
    for number in range(6):
        send(harness, 2 * number, 2)
    for number in range(1, 6):
        assert send(harness, 2 * number, 2) == (2 * number, 2 * number + 1, -1, 0, True)
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, count=2)
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 4, count=1)
    assert harness.log.log_end_offset == 12


def test_a_repetition_has_its_first_append_time(tmp_path: Path) -> None:
    harness = Harness(tmp_path, message_timestamp_type="LogAppendTime")
    identity = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    assert harness.append(now_ms=NOW_MS, **identity).log_append_time_ms == NOW_MS
    again = harness.append(now_ms=NOW_MS + 500, **identity)
    assert again.is_duplicate and again.log_append_time_ms == NOW_MS


def test_sequences_wrap(harness: Harness) -> None:
    send(harness, MAX_SEQUENCE - 1, 2)
    assert send(harness, 0).base_offset == 2
    assert send(harness, MAX_SEQUENCE - 1, 2).is_duplicate
    send(harness, 0, producer=3)
    send(harness, MAX_SEQUENCE - 1, 4, producer=4)
    assert send(harness, 2, producer=4).base_offset == 8, "the wrap may lie inside a batch"


def test_a_producer_without_state_may_start_anywhere(harness: Harness) -> None:
    assert send(harness, 77).base_offset == 0
    assert send(harness, 78).base_offset == 1


def test_epochs(harness: Harness) -> None:
    send(harness, 0, 5, epoch=3)
    refused(harness, ErrorCode.INVALID_PRODUCER_EPOCH, 5, epoch=2)
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 5, epoch=4)
    assert send(harness, 0, epoch=4).base_offset == 5
    refused(harness, ErrorCode.INVALID_PRODUCER_EPOCH, 5, epoch=3)
    assert send(harness, 0, epoch=4).is_duplicate


def test_expiry(harness: Harness) -> None:
    send(harness, 0)
    assert harness.log.expire_producers(NOW_MS + DAY_MS - 1, DAY_MS) == 0
    assert harness.log.expire_producers(NOW_MS + DAY_MS, DAY_MS) == 1
    assert send(harness, 40).base_offset == 1


@pytest.mark.parametrize("restart", ["close_and_open", "crash_and_open"])
def test_state_survives(harness: Harness, restart: str) -> None:
    for number in range(3):
        send(harness, number)
    getattr(harness, restart)()
    assert send(harness, 2) == (2, 2, -1, 0, True)
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 4)
    assert send(harness, 3).base_offset == 3


def test_state_survives_the_deletion_of_its_records(tmp_path: Path) -> None:
    harness = Harness(tmp_path, retention_ms=1)
    send(harness, 0, 5)
    harness.log.delete_expired(NOW_MS + 1000)
    harness.close_and_open()
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 7)
    assert send(harness, 5).base_offset == 5


def told(producers: ProducerStates) -> list[tuple[int, ...]]:
    """What a snapshot tells of each producer: of its batches only the last."""
    return [
        (producer_id, entry.producer_epoch, entry.last_sequence, entry.timestamp, entry.first_open_offset)
        for producer_id, entry in producers.entries.items()
    ]


def test_snapshots(tmp_path: Path, harness: Harness) -> None:
    for producer in range(1, 20):
        send(harness, producer, 3, epoch=producer, producer=producer)
    path = str(tmp_path / "x.snapshot")
    harness.log.producers.write_snapshot(path)
    assert told(ProducerStates.read_snapshot(path)) == told(harness.log.producers)
    data = Path(path).read_bytes()
    for damaged in (b"", data[:-1], data + b"x", data[:20] + b"\xff" + data[21:], b"\x00\x02" + data[2:]):
        Path(path).write_bytes(damaged)
        with pytest.raises(CorruptSnapshot):
            ProducerStates.read_snapshot(path)
