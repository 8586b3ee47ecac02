"""Real partitions in a temporary directory."""

from __future__ import annotations

from pathlib import Path

from klamm.cluster.image import PartitionImage
from klamm.model.ids import TopicId, TopicPartition
from klamm.records.batch import parse_header
from klamm.records.builder import build_batch, number_records
from klamm.replication.context import ReplicationContext
from klamm.replication.fetch_sessions import HIGH_WATERMARK_NOT_GIVEN, FetchPosition, PartitionKey
from klamm.replication.partition import Partition
from klamm.storage.log import AppendResult, Log
from klamm.storage.log_config import LogConfig
from klamm.storage.segments.open_files import OpenFiles

NOW_MS = 1_700_000_000_000
TOPIC_ID = TopicId(bytes(range(16)))


def open_log(directory: Path, topic: str = "orders", index: int = 0, config: LogConfig | None = None) -> Log:
    return Log.open(
        directory / f"{topic}-{index}",
        TopicPartition(topic, index),
        config or LogConfig(),
        open_files=OpenFiles(),
        recovery_point=0,
        log_start_offset=0,
        clean=True,
        now_ms=NOW_MS,
        report=lambda line: None,
    )


def open_partition(
    directory: Path,
    topic: str = "orders",
    index: int = 0,
    config: LogConfig | None = None,
    *,
    state: PartitionImage | None = None,
    context: ReplicationContext | None = None,
) -> Partition:
    """A partition of broker 1: its only replica, unless there is a `state`."""
    log = open_log(directory, topic, index, config)
    partition = Partition(topic, index, TOPIC_ID, log, context or alone())
    partition.take_over(state or ALONE)
    return partition


def led_by(leader: int, *replicas: int, epoch: int = 0, isr: tuple[int, ...] | None = None) -> PartitionImage:
    """A partition in the leader epoch `epoch`, which is its partition epoch too."""
    return PartitionImage(replicas, replicas if isr is None else isr, leader, epoch, epoch)


def commit(partition: Partition, offset: int) -> None:
    """All followers have everything before `offset`."""
    for broker_id in partition.replicas:
        if broker_id != partition.leader_id:
            partition.on_follower_fetch(broker_id, BROKER_EPOCH, offset, 0)


BROKER_EPOCH = 7
"""The broker epoch of every follower."""

ALONE = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
"""The state of a partition whose only replica is on broker 1."""


def alone() -> ReplicationContext:
    """What partitions of broker 1 share, if the broker is alone."""
    return ReplicationContext(1, lambda: NOW_MS)


def append(partition: Partition, *values: bytes, **options: int) -> AppendResult:
    batch = build_batch(number_records([(b"key", value) for value in values], NOW_MS), **options)
    return partition.append(memoryview(batch), parse_header(batch), NOW_MS)


def position(
    key: PartitionKey,
    offset: int = 0,
    *,
    max_bytes: int = 1_000_000,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    log_start_offset: int = -1,
    high_watermark: int = HIGH_WATERMARK_NOT_GIVEN,
) -> FetchPosition:
    return FetchPosition(
        key, leader_epoch, offset, last_fetched_epoch, log_start_offset, max_bytes, high_watermark
    )
