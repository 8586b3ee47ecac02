"""The brokers, with their disks."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.console.watching.picture import BrokerState, Picture


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """A log directory of a broker. `problem` says why it cannot be used."""

    path: str
    problem: str
    replicas: int
    size_bytes: int
    total_bytes: int | None
    usable_bytes: int | None
    is_cordoned: bool


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker. `silent_s`: it has not answered the console for so long."""

    id: int
    address: str
    rack: str | None
    is_controller: bool
    is_gone: bool
    silent_s: int | None
    leaders: int
    replicas: int
    size_bytes: int | None
    total_bytes: int | None
    usable_bytes: int | None
    directories: list[DirectoryRow] | None


def brokers(picture: Picture, now_ms: int) -> list[BrokerRow]:
    return [broker_row(one, now_ms) for one in picture.brokers.values()]


def broker_row(broker: BrokerState, now_ms: int) -> BrokerRow:
    since_ms = broker.silent_since_ms
    return BrokerRow(
        broker.id,
        broker.address,
        broker.rack,
        broker.is_controller,
        broker.is_gone,
        None if since_ms is None else max(0, now_ms - since_ms) // 1000,
        broker.leaders,
        broker.replicas,
        broker.size_bytes,
        broker.total_bytes,
        broker.usable_bytes,
        None
        if broker.directories is None
        else [
            DirectoryRow(
                one.path,
                str(one.error or ""),
                len(one.replicas),
                sum(replica.size_bytes for replica in one.replicas.values()),
                one.total_bytes if one.total_bytes >= 0 else None,
                one.usable_bytes if one.usable_bytes >= 0 else None,
                one.cordoned,
            )
            for one in broker.directories
        ],
    )
