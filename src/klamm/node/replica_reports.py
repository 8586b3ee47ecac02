"""Tells the controller which replicas of this broker are offline, and which are back.

The controller also learns this from the answers to LeaderAndIsr. A log directory that fails between two of
those, and the replicas of the controller's own broker, are told by this class. It compares what is with what
the cluster's image says, and asks until the two agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.client.errors import ClientError
from klamm.cluster.controller.offline_replicas import ReplicaKey
from klamm.cluster.image import ClusterImage
from klamm.model.errors import KafkaError
from klamm.node.controller_link import ControllerLink
from klamm.replication.partitions import Partitions
from klamm.storage.log_dirs import LogDirs

logger = logging.getLogger("klamm.node")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Pauses before it is looked again whether the image has followed; they double up to this."""


class ReplicaReports:
    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        log_dirs: LogDirs,
        link: ControllerLink,
        image: Callable[[], ClusterImage],
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._log_dirs = log_dirs
        self._link = link
        self._image = image
        self._broker_epoch = broker_epoch
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def look(self) -> None:
        """Replicas may have gone offline or come back."""
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="klamm-replica-reports")

    def look_if_offline(self) -> None:
        """The controller, which is this broker, has told the roles of partitions here."""
        offline = self._partitions.offline
        has_failed = len(self._log_dirs.online) < len(self._log_dirs.directories)
        if offline.without_log or offline.unwritable or has_failed:
            self.look()

    def _changes(self) -> tuple[list[ReplicaKey], list[ReplicaKey]]:
        """Replicas here that are offline, and that are not, while the image says otherwise."""
        topics, node_id = self._image().topics, self._node_id
        places = [partition.topic_partition for partition in self._partitions]
        offline: list[ReplicaKey] = []
        online: list[ReplicaKey] = []
        for name, index in (*places, *self._partitions.offline.without_log):
            topic = topics.get(name)
            if topic is not None and index < len(topic.partitions):
                told = topic.partitions[index]
                is_offline = self._partitions.is_offline(name, index)
                if node_id in told.replicas and is_offline != (node_id in told.offline_replicas):
                    (offline if is_offline else online).append((topic.topic_id, index))
        return offline, online

    async def shut_down(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            offline, online = self._changes()
            if not offline and not online:
                return
            epoch = self._broker_epoch()
            if epoch is not None:
                try:
                    await self._link.change_replicas(epoch, offline=offline, online=online)
                except (ClientError, KafkaError) as error:
                    logger.warning("cannot report replicas to the controller; retrying: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
