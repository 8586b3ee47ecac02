"""The brokers of a cluster: what they lead and hold, and how full their disks are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.client.admin.types import BrokerDescription, LogDirectory, TopicDescription
from klamm.client.errors import BatchFailed

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin


@dataclass(frozen=True, slots=True)
class Disk:
    """A log directory: the space of its disk and what replicas use. None where the broker does not say.

    `error` says why the directory cannot be used.
    """

    path: str
    total_bytes: int | None
    usable_bytes: int | None
    replica_bytes: int
    replicas: int
    error: str = ""

    @property
    def used_share(self) -> float | None:
        """How full the disk is, from 0 to 1."""
        if not self.total_bytes or self.usable_bytes is None:
            return None
        return 1 - self.usable_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """A broker. One that has replicas and is not in the cluster now is not `alive`, and has no address.

    `size_bytes` and `disks` are None and empty if the broker does not say, which `error` explains.
    """

    broker_id: int
    host: str
    port: int | None
    rack: str | None
    alive: bool
    is_controller: bool
    leaders: int
    replicas: int
    out_of_sync: int
    size_bytes: int | None
    disks: tuple[Disk, ...]
    error: str = ""


async def brokers(admin: Admin, *, timeout: float | None = None) -> list[BrokerSummary]:
    """All brokers, by id. `timeout` limits the wait for one that does not say what its disks have."""
    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics(None)
    directories, errors = await log_directories(admin, timeout=timeout)
    there = {each.broker_id: each for each in cluster.brokers}
    counts = _Counts(topics.values())
    return [
        _summary(
            broker,
            there.get(broker),
            broker == cluster.controller_id,
            counts,
            directories.get(broker),
            errors.get(broker, ""),
        )
        for broker in sorted({*there, *counts.replicas})
    ]


async def log_directories(
    admin: Admin, *, timeout: float | None = None
) -> tuple[Mapping[int, list[LogDirectory]], dict[int, str]]:
    """The log directories by broker, and why there are none of the other brokers."""
    try:
        return await admin.describe_log_dirs(timeout=timeout), {}
    except BatchFailed as failed:
        return failed.results, {broker: str(error) for broker, error in failed.errors.items()}


class _Counts:
    """What each broker has of the partitions."""

    def __init__(self, topics: Iterable[TopicDescription]) -> None:
        self.leaders: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        self.out_of_sync: Counter[int] = Counter()
        for topic in topics:
            for each in topic.partitions:
                if each.leader is not None:
                    self.leaders[each.leader] += 1
                self.replicas.update(each.replicas)
                self.out_of_sync.update(set(each.replicas) - set(each.in_sync_replicas))


def _summary(
    broker: int,
    described: BrokerDescription | None,
    is_controller: bool,
    counts: _Counts,
    directories: list[LogDirectory] | None,
    error: str,
) -> BrokerSummary:
    disks = disks_of(directories or ())
    return BrokerSummary(
        broker,
        "" if described is None else described.host,
        None if described is None else described.port,
        None if described is None else described.rack,
        described is not None and not described.fenced,
        is_controller,
        counts.leaders[broker],
        counts.replicas[broker],
        counts.out_of_sync[broker],
        None if directories is None else sum(each.replica_bytes for each in disks),
        disks,
        error,
    )


def disks_of(directories: Iterable[LogDirectory]) -> tuple[Disk, ...]:
    """Log directories with the space of their disks."""
    return tuple(_disk(each) for each in directories)


def _disk(directory: LogDirectory) -> Disk:
    return Disk(
        directory.path,
        directory.total_bytes if directory.total_bytes >= 0 else None,
        directory.usable_bytes if directory.usable_bytes >= 0 else None,
        sum(each.size_bytes for each in directory.replicas.values()),
        len(directory.replicas),
        "" if directory.error is None else str(directory.error),
    )
