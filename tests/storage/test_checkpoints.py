"""Checkpoint files, and the leader epochs that one of them holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faulty_disk import replace_below

from klamm.model.ids import TopicId, TopicPartition
from klamm.storage.checkpoints import (
    CorruptCheckpoint,
    read_epochs,
    read_offsets,
    read_partition_metadata,
    write_offsets,
    write_partition_metadata,
)
from klamm.storage.leader_epochs import LeaderEpochs


def test_offsets_as_kafka_writes_them(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("b-c.d", 10): 7, TopicPartition("a", 0): 2**62}
    write_offsets(path, offsets)
    assert Path(path).read_text() == f"0\n2\na 0 {2**62}\nb-c.d 10 7\n"
    assert read_offsets(path) == offsets
    assert os.listdir(tmp_path) == ["recovery-point-offset-checkpoint"]
    assert read_offsets(str(tmp_path / "missing")) == {}


@pytest.mark.parametrize(
    "text", ["", "0", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na x 1\n", "0\nx\n"]
)
def test_damaged_offsets_are_noticed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint):
        read_offsets(str(path))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "checkpoint")
    write_offsets(path, {TopicPartition("a", 0): 1})

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    replace_below(tmp_path, monkeypatch, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_offsets(path, {TopicPartition("a", 0): 2})
    monkeypatch.undo()
    assert read_offsets(path) == {TopicPartition("a", 0): 1}


def test_partition_metadata(tmp_path: Path) -> None:
    path = str(tmp_path / "partition.metadata")
    assert read_partition_metadata(path) is None
    topic_id = TopicId(bytes(range(16)))
    write_partition_metadata(path, topic_id)
    assert Path(path).read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert read_partition_metadata(path) == topic_id
    Path(path).write_text("version: 0\ntopic_id: short\n")
    assert read_partition_metadata(path) is None


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    epochs = LeaderEpochs(str(tmp_path))
    for epoch, start in ((1, 0), (3, 10), (4, 20)):
        epochs.assign(epoch, start)
    return epochs


def test_epochs_are_saved(epochs: LeaderEpochs) -> None:
    epochs.save()
    assert Path(epochs.path).read_text() == "0\n3\n1 0\n3 10\n4 20\n"
    assert LeaderEpochs.load(epochs.directory).entries == epochs.entries
    epochs.assign(5, 30)
    assert read_epochs(epochs.path) == [(1, 0), (3, 10), (4, 20)], "not before it is saved"


def test_an_epoch_without_records_need_not_be_saved(epochs: LeaderEpochs) -> None:
    assert not epochs.is_saved(20)
    epochs.save()
    epochs.assign(5, 30)
    assert epochs.is_saved(30)
    assert not epochs.is_saved(31), "the first record of epoch 5"
    epochs.truncate_from_end(20)
    assert not epochs.is_saved(20), "the file has an epoch too many"


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (4, (4, 33)), (5, (-1, -1)), (-1, (-1, -1))],
)
def test_where_an_epoch_ended(epochs: LeaderEpochs, epoch: int, expected: tuple[int, int]) -> None:
    assert epochs.end_offset(epoch, 33) == expected


def test_epochs_never_go_back(epochs: LeaderEpochs) -> None:
    epochs.assign(4, 25)
    epochs.assign(2, 30)
    assert epochs.entries == ((1, 0), (3, 10), (4, 20))
    epochs.assign(7, 20)
    assert epochs.entries == ((1, 0), (3, 10), (7, 20)), "an epoch that wrote nothing leaves no trace"


def test_cutting_epochs(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_at(offset) for offset in (0, 9, 10, 25)] == [1, 1, 3, 4]
    epochs.truncate_from_start(15)
    assert epochs.entries == ((3, 15), (4, 20))
    epochs.truncate_from_end(20)
    assert epochs.entries == ((3, 15),)
    epochs.truncate_from_end(15)
    assert epochs.entries == ()
    assert epochs.end_offset(3, 10) == (-1, -1)
