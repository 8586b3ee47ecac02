"""Batches behind one that was refused for now: refused alike, until the first comes again or is given up."""

from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import MAX_SEQUENCE, BatchHeader, parse_header
from klamm.records.builder import build_batch, number_records
from klamm.replication.refused_batches import MAX_BATCHES, MAX_PRODUCERS, REFUSED_MS, RefusedBatches

NOT_LED = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not led here")


def header(sequence: int, *, producer: int = 5, epoch: int = 0) -> BatchHeader:
    records = number_records([(b"key", b"value")], 1)
    return parse_header(
        build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    )


@pytest.fixture
def refused() -> RefusedBatches:
    """Sequence 19 was refused at time 0."""
    batches = RefusedBatches()
    batches.note(header(19), NOT_LED, 0)
    return batches


def test_what_follows_is_refused_alike_until_the_first_comes_again(refused: RefusedBatches) -> None:
    for sequence in (20, 21, 25):
        with pytest.raises(KafkaError, match="sequence 19 was refused") as caught:
            refused.check(header(sequence), 1)
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        refused.note(header(sequence), caught.value, 1)
    for sequence in (19, 20, 21, 25):
        refused.check(header(sequence), 2)
    assert not refused


def test_batches_that_come_again_in_another_order(refused: RefusedBatches) -> None:
    refused.note(header(20), NOT_LED, 1)
    refused.check(header(19), 2)
    with pytest.raises(KafkaError, match="sequence 20 was refused"):
        refused.check(header(21), 2)
    refused.check(header(20), 2)
    refused.check(header(21), 2)
    assert not refused


def test_few_batches_of_a_producer_are_remembered() -> None:
    refused = RefusedBatches()
    for sequence in range(MAX_BATCHES + 1):
        refused.note(header(sequence), NOT_LED, 0)
    refused.check(header(1), 1)
    with pytest.raises(KafkaError, match="sequence 2 was refused"):
        refused.check(header(3), 1)


def test_others_are_not_concerned(refused: RefusedBatches) -> None:
    refused.check(header(20, producer=6), 1)
    refused.check(header(18), 1)
    with pytest.raises(KafkaError):
        refused.check(header(20), 1)  # 19 is still missing


def test_a_new_epoch_of_the_producer_begins_anew(refused: RefusedBatches) -> None:
    refused.check(header(20, epoch=1), 1)
    assert not refused


def test_a_producer_that_gives_a_batch_up_is_told_of_its_gap(refused: RefusedBatches) -> None:
    """However often those behind it came meanwhile."""
    refused.note(header(20), NOT_LED, REFUSED_MS - 1)
    refused.check(header(20), REFUSED_MS)


def test_sequences_wrap() -> None:
    refused = RefusedBatches()
    refused.note(header(MAX_SEQUENCE), NOT_LED, 0)
    with pytest.raises(KafkaError):
        refused.check(header(0), 1)


def test_few_are_remembered(refused: RefusedBatches) -> None:
    for producer in range(100, 100 + MAX_PRODUCERS):
        refused.note(header(0, producer=producer), NOT_LED, 0)
    assert len(refused) == MAX_PRODUCERS
    refused.check(header(20), 1)
