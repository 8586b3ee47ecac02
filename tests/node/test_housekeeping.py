"""What a broker does now and then, over all of its partitions."""

from __future__ import annotations

import shutil

from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection
from tests.replication.test_replicas import create, produce


def test_a_damaged_log_does_not_keep_the_others_from_retention() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t", 3)
        for partition in range(3):
            produce(wire, "t", partition)  # records of long ago
        assert broker.node is not None
        logs = [broker.node.replicas.get("t", partition).log for partition in range(3)]
        shutil.rmtree(logs[0].directory)
        broker.run(broker.node._housekeeping.delete_expired())
        assert [log.log_start_offset for log in logs[1:]] == [1, 1]
