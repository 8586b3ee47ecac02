"""Idempotent producers: what is a repetition, what is a gap, and what is remembered."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.storage.logs import NOW_MS, Harness, all_batches, read

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import MAX_SEQUENCE, parse_header
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


def test_a_refusal_is_logged_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """With all that is needed to see whether the producer or the log has lost a batch."""
    send(harness, 0, 3)
    send(harness, 3, 2)
    for _ in range(3):
        refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 7)
    refused(harness, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 5, epoch=1)
    window = "the sequences 0..2, 3..4"
    assert caplog.messages == [
        "events-0 refuses a batch: producer 9 sent sequence 7 in its epoch 0, expected 5; "
        f"its last batches have {window}",
        "events-0 refuses a batch: producer 9 starts its epoch 1 with sequence 5, not 0; "
        f"its last batches, of epoch 0, have {window}",
    ]


class Cluster:
    """A log that its leader writes and a follower copies, which is cut and restarted at will."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.leader = Harness(directory / "leader", retention_ms=-1)
        self.follower = Harness(directory / "follower", segment_bytes=700, retention_ms=-1)
        self.next_sequence: dict[tuple[int, int], int] = {}
        self.epoch_of = {1: 0, 2: 0, 3: 0}
        self.leader_epoch = 0

    def write(self) -> None:
        for _ in range(self.random.randrange(1, 12)):
            producer, count = self.random.choice(list(self.epoch_of)), self.random.randrange(1, 4)
            if self.random.random() < 0.05:
                self.epoch_of[producer] += 1
            identity = producer, self.epoch_of[producer]
            sequence = self.next_sequence.get(identity, 0)
            self.next_sequence[identity] = sequence + count
            self.leader.append(
                count,
                epoch=self.leader_epoch,
                producer_id=producer,
                producer_epoch=identity[1],
                base_sequence=sequence,
            )

    def copy(self) -> None:
        offset = self.follower.log.log_end_offset
        if offset < self.leader.log.log_end_offset:
            data = read(self.leader.log, offset, self.random.choice([300, 3000, 1 << 20]))
            self.follower.log.append_replicated(data, NOW_MS)

    def flush(self) -> None:
        self.follower.log.flush()

    def cut(self) -> None:
        """The end of the log goes, as if another leader did not have it; the same batches come again."""
        end = self.follower.log.log_end_offset
        self.follower.log.truncate_to(self.random.randint(max(0, end - 20), end), NOW_MS)

    def restart(self) -> None:
        self.follower.close_and_open()

    def crash(self) -> None:
        self.follower.crash_and_open()

    def check(self) -> None:
        expected = ProducerStates()
        for batch in all_batches(self.follower.log):
            header = parse_header(batch)
            expected.record(header, header.last_offset, NOW_MS)
        assert windows(self.follower.log.producers) == windows(expected)


def windows(producers: ProducerStates) -> dict[int, tuple[int, list[tuple[int, int, int]]]]:
    return {
        producer_id: (entry.producer_epoch, [batch[:3] for batch in entry.batches])
        for producer_id, entry in producers.entries.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_follower_knows_the_producers_of_what_it_holds(tmp_path: Path, seed: int) -> None:
    """Whatever happened to it before: it may be elected at any time, and then each of the last five batches
    of a producer is recognised, and the batch after them is expected."""
    cluster = Cluster(tmp_path, seed)
    steps = [cluster.write, cluster.copy, cluster.copy, cluster.flush, cluster.cut]
    for _ in range(40):
        cluster.random.choice([*steps, cluster.restart, cluster.crash])()
        cluster.check()
