"""What all partitions of a broker share: its id and epoch, its clocks, and the calls that they make.

A broker that is alone sets only its id and its clock: it has no followers, and its ISRs never change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from klamm.metrics.topic_counters import CountersByTopic, IsrCounters
from klamm.model.ids import TopicPartition
from klamm.replication.isr import IsrChange
from klamm.replication.long_lived import LongLived
from klamm.replication.progress import LagWatch
from klamm.replication.throttling import Throttle
from klamm.storage.log import Log

if TYPE_CHECKING:
    from klamm.replication.partition import Partition

ALONE_EPOCH = 0
"""The broker epoch of a broker that has not registered: one that is alone, or that is starting."""


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _nobody_to_ask(partition: Partition, change: IsrChange) -> None:
    raise AssertionError(f"{partition.topic_partition} proposes {change}, but the broker is alone")


def _no_racks() -> Mapping[int, str | None]:
    return {}


def _nothing_to_cut(offsets: Mapping[TopicPartition, int]) -> None:
    raise AssertionError(f"{list(offsets)} are to be cut, but the broker is alone")


@dataclass(slots=True)
class ReplicationContext:
    node_id: int
    now_ms: Callable[[], int]
    """Wall-clock time, for the timestamps of records."""
    monotonic_ms: Callable[[], int] = _monotonic_ms
    """For lags and pauses: a step of the wall clock must not shrink ISRs, nor keep replicas out of them."""
    lag_time_max_ms: Callable[[], int] = lambda: 30_000
    broker_epoch: int = ALONE_EPOCH
    lag_watch: LagWatch = field(default_factory=LagWatch)
    propose: Callable[[Partition, IsrChange], None] = _nobody_to_ask
    """Have a change of the ISR sent to the controller."""
    truncate: Callable[[Mapping[TopicPartition, int]], None] = _nothing_to_cut
    """Cut logs at offsets; blocks. Raises a KafkaError or an OSError."""
    start_at: Callable[[Mapping[TopicPartition, int]], None] = _nothing_to_cut
    """Drop logs and begin them at offsets, likewise."""
    flush: Callable[[Log], None] = Log.flush
    """Bring a log to the disk, likewise."""
    leader_throttle: Throttle = field(default_factory=Throttle)
    follower_throttle: Throttle = field(default_factory=Throttle)
    living_brokers: Callable[[], Container[int]] = tuple
    racks: Callable[[], Mapping[int, str | None]] = _no_racks
    """The racks of the living brokers if consumers read from replicas in their own rack; else nothing."""
    long_lived: LongLived = field(default_factory=LongLived)
    counters: CountersByTopic = field(default_factory=CountersByTopic)
    isr_counters: IsrCounters = field(default_factory=IsrCounters)
