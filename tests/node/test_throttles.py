"""Throttles of replication are set while a broker runs."""

from __future__ import annotations

from pathlib import Path

import klamm
from klamm.testing.broker import Broker
from tests.waiting import wait_until

RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


def test_rates_and_throttled_replicas_change_while_a_broker_runs(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, klamm.Admin(broker.bootstrap) as admin:
        node = broker.node
        assert node is not None
        admin.create_topic("events", 2)
        context = node.partitions._context
        throttles = (context.leader_throttle, context.follower_throttle, node.log_dir_moves.throttle)
        topic, this_broker = klamm.ConfigResource.topic("events"), klamm.ConfigResource.broker(1)

        def rates() -> list[int | None]:
            return [None if each.quota is None else each.quota.bytes_per_s for each in throttles]

        def flags() -> list[tuple[bool, bool]]:
            partitions = [node.partitions.get("events", index) for index in (0, 1)]
            return [(each.is_throttled_leader, each.is_throttled_follower) for each in partitions]

        assert rates() == [None] * 3 and flags() == [(False, False)] * 2
        admin.alter_config(this_broker, set={name: 1_000 + at for at, name in enumerate(RATES)})
        admin.alter_config(
            topic,
            set={
                "leader.replication.throttled.replicas": "1:1,0:7",
                "follower.replication.throttled.replicas": "*",
            },
        )
        wait_until(lambda: rates() == [1_000, 1_001, 1_002], "the rates hold")
        wait_until(lambda: flags() == [(False, True), (True, True)], "the replicas are throttled")
        admin.alter_config(this_broker, delete=RATES)
        wait_until(lambda: rates() == [None] * 3, "the rates are gone")
