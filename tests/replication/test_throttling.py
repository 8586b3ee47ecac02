"""Throttled replication: the rate as a core, and how leaders, followers and fetchers keep it."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.protocol.messages.k01_fetch import PartitionData
from klamm.replication.context import ReplicationContext
from klamm.replication.fetch_sessions import FetchPosition, FetchSession
from klamm.replication.fetching import Reading, settle
from klamm.replication.partition import Partition
from klamm.replication.throttling import LONGEST_PAUSE_MS, Quota, Throttle, ThrottledReplicas
from tests.replication.partitions import NOW_MS, append, led_by, open_partition

MB = 1_000_000


def test_a_rate_is_kept_over_time() -> None:
    quota = Quota(4 * MB, samples=11, sample_ms=1_000)
    now_ms, moved = 0, 0
    while moved < 80 * MB:
        quota.record(MB, now_ms)
        moved += MB
        while pause_ms := quota.pause_ms(now_ms):
            now_ms += pause_ms
    assert 19_000 <= now_ms <= 20_500


def test_what_was_not_used_for_long_is_not_made_up_for() -> None:
    quota = Quota(MB, samples=11, sample_ms=1_000)
    quota.record(1, 0)
    quota.record(3 * MB, 100_000)
    assert quota.pause_ms(100_000) == LONGEST_PAUSE_MS
    assert quota.pause_ms(102_500) == 500
    assert quota.pause_ms(103_000) == 0


def test_a_rate_of_nothing_and_a_rate_that_changes() -> None:
    throttle = Throttle()
    assert throttle.quota is None
    throttle.set_rate(0, 11, 1_000)
    assert throttle.quota is not None and throttle.quota.pause_ms(0) == LONGEST_PAUSE_MS
    throttle.quota.record(10 * MB, 0)
    throttle.set_rate(MB, 11, 1_000)
    assert throttle.quota.pause_ms(0) == LONGEST_PAUSE_MS
    throttle.set_rate(100 * MB, 11, 1_000)
    assert throttle.quota.pause_ms(0) == 0
    throttle.set_rate(None, 11, 1_000)
    assert throttle.quota is None


@pytest.mark.parametrize(
    ("replicas", "partition", "broker", "is_throttled"),
    [
        ((), 0, 1, False),
        (("*",), 7, 1, True),
        (("0:1", "0:2", "3:1"), 0, 2, True),
        (("0:1", "0:2", "3:1"), 3, 2, False),
    ],
)
def test_which_replicas_are_throttled(
    replicas: tuple[str, ...], partition: int, broker: int, is_throttled: bool
) -> None:
    assert ThrottledReplicas(replicas).leads_throttled(partition, broker) is is_throttled
    assert ThrottledReplicas((), replicas).follows_throttled(partition, broker) is is_throttled


@pytest.fixture
def context() -> ReplicationContext:
    """The wall clock stands still: rates are measured by the other one."""
    return ReplicationContext(1, lambda: 0, monotonic_ms=lambda: NOW_MS)


def fetch(partition: Partition, replica_id: int) -> int:
    """How many bytes a follower that has nothing is sent."""
    key = (partition.topic, partition.index)
    session = FetchSession([FetchPosition(key, -1, 0, -1, 0, MB)], replica_id=replica_id)
    ready = session.to_read()
    for fetched in ready:
        fetched.find(lambda _: partition)
    reading = Reading(replica_id=replica_id, max_bytes=MB, max_files=10)
    reading.read_blocking(ready)
    settle(session, reading.answers)
    return reading.byte_count


def test_a_leader_holds_back_followers_that_are_not_in_sync(
    tmp_path: Path, context: ReplicationContext
) -> None:
    partition = open_partition(tmp_path, state=led_by(1, 1, 2, 3, isr=(1, 2)), context=context)
    append(partition, b"x" * 1_000)
    context.leader_throttle.set_rate(500, 11, 1_000)
    assert fetch(partition, 3) > 1_000
    assert fetch(partition, 3) > 1_000, "the topic does not name the replica"
    partition.is_throttled_leader = True
    assert fetch(partition, 3) > 1_000, "nothing was sent yet that counts"
    assert fetch(partition, 3) == 0
    assert fetch(partition, 2) > 1_000, "it is in sync"
    context.leader_throttle.set_rate(None, 11, 1_000)
    assert fetch(partition, 3) > 1_000


def test_a_follower_pauses_until_it_is_in_sync(tmp_path: Path, context: ReplicationContext) -> None:
    partition = open_partition(tmp_path, state=led_by(2, 1, 2), context=context)
    behind = PartitionData(partition_index=0, high_watermark=10, records=b"x" * 1_000)
    in_sync = PartitionData(partition_index=0, high_watermark=0, records=b"x" * 1_000)
    assert partition.pause_s(behind) == 0.0, "there is no throttle"
    context.follower_throttle.set_rate(1_500, 11, 1_000)
    assert partition.pause_s(behind) == 0.0
    assert partition.pause_s(behind) == 1.0
    assert partition.pause_s(in_sync) == 0.0
