"""DescribeLogDirs where a disk is in trouble."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest
from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection


def test_a_disk_that_does_not_answer_is_one_directory_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, failing = str(tmp_path / "a"), str(tmp_path / "b")
    statvfs = os.statvfs

    def statvfs_of_failing_disk(path: Path) -> os.statvfs_result:
        if str(path) == failing:
            raise OSError(errno.EIO, "Input/output error")
        return statvfs(path)

    broker = Broker({"log.dirs": f"{healthy},{failing}"})
    with broker, WireConnection(broker.bootstrap) as wire:
        monkeypatch.setattr(os, "statvfs", statvfs_of_failing_disk)
        first, second = wire.call(DescribeLogDirsRequest()).results
        assert (first.log_dir, first.error_code) == (healthy, ErrorCode.NONE)
        assert first.total_bytes > 0
        assert (second.log_dir, second.error_code) == (failing, ErrorCode.KAFKA_STORAGE_ERROR)
        assert second.topics == []
