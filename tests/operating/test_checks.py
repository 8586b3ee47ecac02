"""The checks of the doctor from facts that are given: what tests cannot make happen to a real cluster.

What they can is in tests/cli/test_doctor.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.client.admin.types import PartitionDescription, TopicDescription
from klamm.client.results import TopicPartition
from klamm.operating.brokers import Disk
from klamm.operating.checkup.checks import Finding, Limits, findings
from klamm.operating.checkup.facts import BrokerFacts, Contact, Facts, GroupFacts, GroupLook, PipelineFacts

HERE = Contact("kafka.example:9092", "", "c")
ORDERS = TopicPartition("orders", 0)


def topic(name: str, *partitions: tuple[int | None, tuple[int, ...], tuple[int, ...]]) -> TopicDescription:
    """Partitions as leader, replicas and replicas in sync."""
    described = [
        PartitionDescription(number, leader, 0, replicas, in_sync)
        for number, (leader, replicas, in_sync) in enumerate(partitions)
    ]
    return TopicDescription(name, name, False, tuple(described))


def broker(number: int, port: int = 0, problem: str = "", cluster: str = "c") -> BrokerFacts:
    return BrokerFacts(number, Contact(f"kafka.example:{port or 9090 + number}", problem, cluster))


HEALTHY = Facts(
    (HERE,),
    "c",
    1,
    (broker(1), broker(2)),
    {"orders": topic("orders", (1, (1, 2), (1, 2)))},
    disks={1: (Disk("/data", 1000, 500, 100, 3),)},
    now_ms=1_000_000,
    pause_s=10,
)


def found(facts: Facts) -> list[tuple[str, str, str]]:
    return [(each.check, each.severity, each.where) for each in findings(facts, Limits())]


def only(facts: Facts) -> Finding:
    (finding,) = findings(facts, Limits())
    return finding


def test_a_healthy_cluster_has_no_findings() -> None:
    assert found(HEALTHY) == []


def test_a_cluster_without_controller() -> None:
    assert found(replace(HEALTHY, controller_id=None)) == [("controller", "error", "cluster")]
    assert found(replace(HEALTHY, controller_id=3)) == [("controller", "error", "broker 3")]


def test_addresses() -> None:
    dead = Contact("old.example:9092", "it was refused")
    assert found(replace(HEALTHY, bootstrap=(HERE, dead))) == [("bootstrap", "warning", "old.example:9092")]
    assert found(Facts((dead,))) == [("bootstrap", "error", "old.example:9092")]
    foreign = only(replace(HEALTHY, brokers=(broker(1), broker(2, cluster="other"))))
    assert "where another cluster answers: other" in foreign.what
    same = only(replace(HEALTHY, brokers=(broker(1, 9092), broker(2, 9092))))
    assert same.what.startswith("brokers 1 and 2 all advertise kafka.example:9092")
    local = BrokerFacts(2, Contact("localhost:9092", "it was refused"))
    finding = only(replace(HEALTHY, brokers=(broker(1), local)))
    assert "which each client takes for its own machine" in finding.what


@pytest.mark.parametrize(
    ("disk", "severity"),
    [
        (Disk("/data", 1000, 150, 0, 0), "warning"),
        (Disk("/data", 1000, 50, 0, 0), "error"),
        (Disk("/data", None, None, 0, 0, "input/output error"), "error"),
    ],
)
def test_disks(disk: Disk, severity: str) -> None:
    assert found(replace(HEALTHY, disks={2: (disk,)})) == [("disk", severity, "broker 2, /data")]


def test_a_disk_that_does_not_say_how_large_it_is() -> None:
    assert found(replace(HEALTHY, disks={2: (Disk("/data", None, None, 5, 1),)})) == []


def test_replicas() -> None:
    lagging = {"orders": topic("orders", (1, (1, 2), (1,)))}
    behind = only(replace(HEALTHY, topics=lagging, least_in_sync={"orders": 1}))
    assert behind.what == "broker 2 is behind in 1 partition: orders-0"
    assert found(replace(HEALTHY, topics=lagging, least_in_sync={"orders": 2})) == [
        ("replica", "error", "orders-0"),
        ("replica", "warning", "broker 2"),
    ]
    gone = only(replace(HEALTHY, topics=lagging, brokers=(broker(1),)))
    assert gone.what == "broker 2 is gone, and out of sync in 1 partition: orders-0"


def look(offset: int | None, *, members: int = 1, state: str = "Stable", owns: bool = True) -> GroupLook:
    committed = {} if offset is None else {ORDERS: offset}
    return GroupLook(state, members, committed, frozenset({ORDERS} if owns else ()))


@pytest.mark.parametrize(
    ("before", "after", "ends", "expected"),
    [
        (look(5), look(5), (10, 12), [("group", "error", "group g")]),
        (look(5), look(6), (10, 12), []),
        (look(5), look(5), (10, 10), []),
        (look(10), look(10), (10, 12), []),
        (look(5, members=0), look(5, members=0), (10, 12), [("group", "warning", "group g")]),
        (look(None), look(None), (10, 12), [("group", "warning", "group g")]),
        (look(None, owns=False), look(None, owns=False), (10, 12), []),
        (
            look(5, state="PreparingRebalance"),
            look(5, state="CompletingRebalance"),
            (10, 10),
            [("group", "error", "group g")],
        ),
        (look(5, state="PreparingRebalance"), look(5), (10, 10), []),
        (look(5), None, (10, 12), []),
    ],
)
def test_groups(
    before: GroupLook, after: GroupLook | None, ends: tuple[int, int], expected: list[tuple[str, str, str]]
) -> None:
    facts = GroupFacts(before, after, {ORDERS: ends[0]}, {ORDERS: ends[1]})
    assert found(replace(HEALTHY, groups={"g": facts})) == expected


def test_coordinators() -> None:
    offsets = {"__consumer_offsets": topic("__consumer_offsets", (1, (1,), (1,)), (None, (3,), (3,)))}
    whole = findings(replace(HEALTHY, topics=offsets), Limits())
    assert [each.check for each in whole] == ["offline partition", "coordinator"]
    assert "1 of 2 partitions of __consumer_offsets have no leader" in whole[1].what
    silent = replace(HEALTHY, unanswered=dict.fromkeys(("a", "b", "c", "d"), "it timed out"))
    assert only(silent).what == "the coordinator of a, b, c and 1 more does not answer: it timed out"


def test_pipelines_and_clocks() -> None:
    pipelines = tuple(
        PipelineFacts(state, state, "no table") for state in ("running", "failed", "killed", "retrying")
    )
    assert found(replace(HEALTHY, pipelines=pipelines)) == [
        ("pipeline", "error", "pipeline failed"),
        ("pipeline", "error", "pipeline killed"),
        ("pipeline", "warning", "pipeline retrying"),
    ]
    ahead = replace(HEALTHY, newest_ms={ORDERS: 1_000_000 + 7_200_000})
    assert "up to 2 hours ahead" in only(ahead).what
    assert found(replace(HEALTHY, newest_ms={ORDERS: 1_000_000 + 5_000})) == []
