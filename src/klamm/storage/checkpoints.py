"""Small text files that remember offsets over a restart.

The formats are Kafka's: a version, the number of lines, the lines. A crash leaves the old file or the new.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress

from klamm.model.ids import TopicId, TopicPartition, topic_id_from_text, topic_id_text
from klamm.storage.files import read_small_file, write_atomically

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
_VERSION = "0"


class CorruptCheckpoint(ValueError):
    """The content of a checkpoint file is not in the format of checkpoints."""


def write_offsets(path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
    lines = [f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in sorted(offsets.items())]
    write_atomically(path, f"{_VERSION}\n{len(lines)}\n{''.join(lines)}".encode(), sync=sync)


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Empty if the file is not there; CorruptCheckpoint if it is not whole."""
    offsets = {}
    for line in _read_lines(path):
        try:
            topic, partition, offset = line.split(" ")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            raise CorruptCheckpoint(f"{path}: {line!r} is not 'topic partition offset'") from None
    return offsets


def drop_offsets(path: str, gone: Set[TopicPartition]) -> None:
    """Forget the offsets of `gone`. A file that cannot be read or written stays as it is: a full disk keeps
    nobody from deleting."""
    with suppress(CorruptCheckpoint, OSError):
        offsets = read_offsets(path)
        if not gone.isdisjoint(offsets):
            write_offsets(path, {tp: offsets[tp] for tp in offsets.keys() - gone}, sync=False)


def write_epochs(path: str, epochs: list[tuple[int, int]]) -> None:
    lines = [f"{epoch} {start_offset}\n" for epoch, start_offset in epochs]
    write_atomically(path, f"{_VERSION}\n{len(lines)}\n{''.join(lines)}".encode())


def read_epochs(path: str) -> list[tuple[int, int]]:
    epochs = []
    for line in _read_lines(path):
        try:
            epoch, start_offset = line.split(" ")
            epochs.append((int(epoch), int(start_offset)))
        except ValueError:
            raise CorruptCheckpoint(f"{path}: {line!r} is not 'epoch offset'") from None
    return epochs


def write_partition_metadata(path: str, topic_id: TopicId) -> None:
    """Written without an fsync, so that topics are quick to make: the first flush of the log syncs it."""
    write_atomically(path, f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n".encode(), sync=False)


def read_partition_metadata(path: str) -> TopicId | None:
    """The topic id of a partition's directory; None if the file is not there or not whole."""
    data = read_small_file(path)
    for line in (data or b"").decode(errors="replace").splitlines():
        name, _, value = line.partition(": ")
        if name == "topic_id":
            try:
                return topic_id_from_text(value.strip())
            except ValueError:
                return None
    return None


def _read_lines(path: str) -> list[str]:
    data = read_small_file(path)
    if data is None:
        return []
    lines = data.decode(errors="replace").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or not lines[1].isdigit() or int(lines[1]) != len(lines) - 2:
        raise CorruptCheckpoint(f"{path} is not a whole checkpoint of version {_VERSION}")
    return lines[2:]
