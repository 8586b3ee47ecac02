"""Replicas of a cluster whose log cannot be written, mostly because their disk is full, and their return.

Such a replica keeps its `Partition`, its role and its records. The controller is told that it is offline: so
another replica leads, and a follower leaves the ISR at once, instead of after replica.lag.time.max.ms. A
follower goes on trying. When the disk has room again, the controller is told that the replica is back.

The last living member of an ISR leads on: nobody else has all that is committed. So does a broker that is
alone. It refuses writes and serves reads.

A disk that is broken will not be written again by itself: its log directory goes offline.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.replication.context import ReplicationContext
from klamm.replication.offline_replicas import OfflineReplicas, Place
from klamm.storage.files import LogDirFailure
from klamm.storage.log import Log

if TYPE_CHECKING:
    from klamm.replication.partition import Partition

logger = logging.getLogger("klamm.replication")

ROOM_BYTES = 64 * 1024 * 1024
ROOM_SHARE = 0.02
"""How much must be free, the lesser of the two, before replicas of a disk that was full are used again: else
they would come back for a few records, and go offline again."""

BROKEN_DISK = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO})
"""Errors of a disk that has failed, or was made read-only because it has."""

FindRoom = Callable[[Iterable[str]], Awaitable[set[str]]]
"""Those of the log directories that have room; does not block."""

FinishMovingBack = Callable[[Log], Awaitable[None]]
"""Does what is left of a truncation (`Log.finish_moving_back`); does not block."""


class FullDisks:
    def __init__(
        self,
        context: ReplicationContext,
        offline: OfflineReplicas,
        find: Callable[[str, int], Partition | None],
        find_room: FindRoom,
        finish_moving_back: FinishMovingBack,
        on_broken_disk: Callable[[str, OSError], None],
    ) -> None:
        """`on_broken_disk` gets the log directory of a disk that has failed, and the error."""
        self._context = context
        self._offline = offline
        self._find = find
        self._find_room = find_room
        self._finish_moving_back = finish_moving_back
        self._on_broken_disk = on_broken_disk
        self._loop = asyncio.get_running_loop()

    def on_failed_write(self, place: TopicPartition, error: OSError) -> None:
        """A write to the log of this replica has failed; called in the thread that writes."""
        self._loop.call_soon_threadsafe(self._note, place, error)

    def _note(self, place: TopicPartition, error: OSError) -> None:
        partition = self._find(*place)
        if partition is None or partition.is_offline or place in self._offline.unwritable:
            return
        if error.errno in BROKEN_DISK:
            self._on_broken_disk(os.path.dirname(partition.log.directory), error)
            return
        if partition.leader is not None:
            living = self._context.living_brokers()
            if not any(each in living for each in partition.isr if each != self._context.node_id):
                return
        logger.warning(
            "%s-%d cannot be written (%s): the replica is offline until its disk has room",
            *place,
            error.strerror,
        )
        self._offline.unwritable[place] = f"its log cannot be written: {error.strerror}"
        self._offline.changed()

    async def look_for_room(self) -> None:
        """Have the replicas used again whose disk has room."""
        directories: dict[Place, str] = {}
        for place in self._offline.unwritable:
            partition = self._find(*place)
            assert partition is not None, "a partition that is dropped is not offline any longer"
            directories[place] = os.path.dirname(partition.log.directory)
        if not directories:
            return
        with_room = await self._find_room(set(directories.values()))
        back = [
            place
            for place, directory in directories.items()
            if directory in with_room and await self._is_whole(place)
        ]
        for place in back:
            self._offline.unwritable.pop(place, None)
        if back:
            logger.info("%s: there is room again for %d replicas", ", ".join(sorted(with_room)), len(back))
            self._offline.changed()

    async def _is_whole(self, place: Place) -> bool:
        """False if the log is truncated in part only, and still cannot be truncated as a whole."""
        partition = self._find(*place)
        if partition is None or not partition.log.is_moved_back_in_part:
            return True
        try:
            await self._finish_moving_back(partition.log)
        except LogDirFailure as error:
            self._on_broken_disk(os.path.dirname(partition.log.directory), error)
            return False
        except KafkaError as error:
            logger.warning("%s-%d cannot be truncated: %s", *place, error)
            return False
        return True


def find_room(directories: Iterable[str]) -> set[str]:
    """Those of the log directories that have room. Blocks."""
    return {directory for directory in directories if _has_room(directory)}


def _has_room(directory: str) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    size_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return free_bytes >= min(ROOM_BYTES, ROOM_SHARE * size_bytes)
