"""What a broker does now and then, over all of its partitions."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from typing import Any

import pytest

from klamm.storage.log import Log
from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection
from tests.replication.test_partitions import create, produce
from tests.waiting import wait_until


def test_a_damaged_log_does_not_keep_the_others_from_retention() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t", 3)
        for partition in range(3):
            produce(wire, "t", partition)  # records of long ago
        assert broker.node is not None
        logs = [broker.node.partitions.get("t", partition).log for partition in range(3)]
        shutil.rmtree(logs[0].directory)
        broker.run(broker.node._housekeeping.delete_expired())
        assert [log.log_start_offset for log in logs[1:]] == [1, 1]


def test_retention_takes_no_thread_for_empty_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t", 50)
        produce(wire, "t", 7)  # a record of long ago
        assert broker.node is not None
        partitions = broker.node.partitions
        run_in_thread, asked = partitions.run_in_thread, []

        def count(work: Any, *arguments: Any) -> Any:
            asked.extend(each for each in arguments if isinstance(each, Log))
            return run_in_thread(work, *arguments)

        monkeypatch.setattr(partitions, "run_in_thread", count)
        broker.run(broker.node._housekeeping.delete_expired())
        assert asked == [partitions.get("t", 7).log]
        assert partitions.get("t", 7).log.log_start_offset == 1


def test_retention_and_compaction_stop_at_the_high_watermark() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t", 1)
        for _ in range(3):
            produce(wire, "t", 0)  # records of long ago
        assert broker.node is not None
        partition = broker.node.partitions.get("t", 0)
        partition.high_watermark = 2
        broker.run(broker.node._housekeeping.delete_expired())
        assert partition.log.log_start_offset == 0
        assert broker.node._high_watermark_of(partition.log) == 2
        partition.high_watermark = 3
        broker.run(broker.node._housekeeping.delete_expired())
        assert partition.log.log_start_offset == 3


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EBADF])
def test_what_fails_is_told_and_tried_again(
    trouble: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk in a line; whatever is a fault of the broker's own with all that can help to find it."""
    tries = []

    def fail(*_: object) -> None:
        tries.append(1)
        raise OSError(trouble, os.strerror(trouble))

    caplog.set_level(logging.WARNING, "klamm.node")
    with Broker(config={"log.flush.offset.checkpoint.interval.ms": 10}) as broker:
        assert broker.node is not None
        with monkeypatch.context() as patch:
            patch.setattr(broker.node.log_dirs, "write_checkpoints", fail)
            wait_until(lambda: len(tries) > 1, "it is tried again")
    told = [record for record in caplog.records if os.strerror(trouble) in record.getMessage()]
    assert told and "housekeeping (write checkpoints) failed" in told[0].getMessage()
    is_ours = trouble == errno.EBADF
    assert all(record.levelno == (logging.ERROR if is_ours else logging.WARNING) for record in told)
    assert all(bool(record.exc_info) is is_ours for record in told)
