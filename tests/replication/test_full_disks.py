"""When the replicas of a full disk are used again: there is room, and their logs are whole."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.full_disks import FullDisks
from klamm.replication.offline_replicas import OfflineReplicas
from klamm.storage.files import LogDirFailure

PLACE = TopicPartition("orders", 0)
DIRECTORY = "/disk"


class Scene:
    """A follower on a full disk, whose log was cut in part."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        """What the next attempts to finish the truncation raise."""
        self.broken: list[str] = []
        self.changes = 0
        self.log = SimpleNamespace(directory=f"{DIRECTORY}/{PLACE}", is_moved_back_in_part=bool(errors))
        partition = SimpleNamespace(is_offline=False, leader=None, log=self.log)
        self.offline = OfflineReplicas()
        self.offline.on_changed = self.note_change
        self.disks = FullDisks(
            cast(Any, SimpleNamespace()),
            self.offline,
            lambda topic, index: cast(Any, partition),
            self.find_room,
            self.finish,
            lambda directory, error: self.broken.append(directory),
        )
        self.offline.unwritable[PLACE] = "full"

    def note_change(self) -> None:
        self.changes += 1

    async def find_room(self, directories: Iterable[str]) -> set[str]:
        return set(directories)

    async def finish(self, log: Any) -> None:
        assert log is self.log
        if self.errors:
            raise self.errors.pop(0)
        self.log.is_moved_back_in_part = False


async def test_a_log_that_is_whole_is_used_again() -> None:
    scene = Scene()
    await scene.disks.look_for_room()
    assert not scene.offline.unwritable and scene.changes == 1


async def test_a_log_that_was_cut_in_part_is_cut_as_a_whole_first(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "still full"))
    await scene.disks.look_for_room()
    assert list(scene.offline.unwritable) == [PLACE] and not scene.changes
    assert "orders-0 cannot be truncated: " in caplog.text
    await scene.disks.look_for_room()
    assert not scene.offline.unwritable and scene.changes == 1 and not scene.broken


async def test_a_disk_that_fails_then_goes_offline() -> None:
    scene = Scene(LogDirFailure(errno.EIO, "fsync failed"))
    await scene.disks.look_for_room()
    assert scene.broken == [DIRECTORY] and list(scene.offline.unwritable) == [PLACE]
