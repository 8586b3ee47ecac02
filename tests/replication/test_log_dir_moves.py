"""Moves between log directories that are asked for before there is a replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs
from tests.replication.partitions import NOW_MS, TOPIC_ID

PLACE = TopicPartition("orders", 0)


class Elsewhere:
    """The partitions of a broker that has a replica of none."""

    def get(self, topic: str, index: int) -> Any:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} has no replica on this broker")


async def test_a_replica_that_comes_later_is_made_where_it_was_wanted(tmp_path: Path) -> None:
    dirs = LogDirs([tmp_path / "a", tmp_path / "b"], now_ms=lambda: NOW_MS, report=lambda line: None)
    dirs.lock()
    moves = LogDirMoves(Elsewhere(), dirs, lambda: NOW_MS)  # type: ignore[arg-type]
    with pytest.raises(KafkaError) as refused:
        await moves.move(PLACE, str(tmp_path / "b"))
    assert refused.value.code == ErrorCode.REPLICA_NOT_AVAILABLE
    log = dirs.create_log(PLACE, TOPIC_ID, LogConfig())
    assert log.directory.parent == tmp_path / "b", "although both have as many"
    dirs.close()
