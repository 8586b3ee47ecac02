"""All partitions that this broker holds, kept in step with the cluster's metadata image.

This class follows what the controller says: it creates and deletes logs, and has partitions take over their
roles and settings. A partition that gets another role is not fetched meanwhile. Handlers look partitions up
here: `led` finds those that this broker leads, `get` all that have a replica here. The event loop owns all
state; what may block runs through `run_in_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from klamm.cluster.image import ClusterImage, ImageDelta, PartitionImage, TopicImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition
from klamm.replication.context import ReplicationContext
from klamm.replication.flusher import Flusher
from klamm.replication.full_disks import FullDisks, find_room
from klamm.replication.log_removal import LogRemoval
from klamm.replication.offline_replicas import OfflineReplicas, Place
from klamm.replication.opening import open_and_rewrite
from klamm.replication.partition import Partition
from klamm.replication.pauses import TOPICS_BETWEEN_PAUSES, changed_topics, pieces_of
from klamm.replication.throttling import NOT_THROTTLED, ThrottledReplicas
from klamm.replication.waiting_produces import WaitingProduces
from klamm.storage.files import LogDirFailure
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import Failures, LogDirs

if TYPE_CHECKING:
    from klamm.replication.fetchers import Fetchers

logger = logging.getLogger("klamm.replication")

P = ParamSpec("P")
T = TypeVar("T")

WORKER_THREADS = 4
"""Threads for blocking work: cold reads, look-ups by time, making and deleting files. Batches are opened in a
thread of their own."""

FLUSH_THREADS = 2
"""Threads for fsyncs, which take long and must not keep the others waiting."""


class TopicSettings(NamedTuple):
    """What a topic's configuration means for its partitions."""

    log: LogConfig
    min_insync_replicas: int
    throttled: ThrottledReplicas = NOT_THROTTLED


class Partitions:
    def __init__(
        self,
        context: ReplicationContext,
        log_dirs: LogDirs,
        settings_of: Callable[[TopicImage], TopicSettings],
        fetchers: Fetchers | None = None,
    ) -> None:
        """`fetchers` fetch what is followed here; a broker that is alone has none."""
        self._context = context
        context.flush = self._flush_fetched
        context.truncate = lambda offsets: self._move_back(log_dirs.truncate, offsets)
        context.start_at = lambda offsets: self._move_back(log_dirs.start_at, offsets)
        self._node_id = context.node_id
        self._fetchers = fetchers
        self._log_dirs = log_dirs
        self._settings_of = settings_of
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[Place, Partition] = {}
        self._topic_names: dict[bytes, str] = {}
        self._topics: Mapping[str, TopicImage] = {}
        """The topics of the image that was followed last."""
        self.offline = OfflineReplicas()
        self._takes_roles = False
        """False while only an image tells of roles that is older than this broker's registration."""
        self._resigned = 0  # how often all roles were given up: what was told before counts no longer
        self._turn = asyncio.Lock()
        self._executor = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="klamm-worker")
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="klamm-opener")
        self._flush_executor = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="klamm-flush")
        self.log_removal = LogRemoval(log_dirs, self.run_in_thread)
        self.full_disks = FullDisks(
            context,
            self.offline,
            self.find,
            lambda directories: self.run_in_thread(find_room, directories),
            lambda log: self.run_in_thread(log_dirs.finish_moving_back, log),
            self.take_directory_offline,
        )
        self.flusher = Flusher(self._flush_executor, self._on_flush_failure)
        self.waiting_produces = WaitingProduces(self._loop.time, self._loop.call_later)

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def find(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is None:
            raise self._why_missing(topic, index)
        return partition

    def _why_missing(self, topic: str, index: int) -> KafkaError:
        reason = self.offline.reason((topic, index))
        if reason is None and (topic, index) in self._partitions:
            reason = "its log directory failed"
        if reason is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is offline: {reason}")
        known = self._topics.get(topic)
        if known is not None and 0 <= index < len(known.partitions):
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} has no replica on this broker"
            )
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")

    def led(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads; raises NOT_LEADER_OR_FOLLOWER if another one does."""
        partition = self.get(topic, index)
        if partition.leader is None:
            partition.check_led_or_offline()
        return partition

    def led_by_id(self, topic_id: bytes, index: int) -> Partition:
        return self.led(self.topic_of(topic_id), index)

    def is_offline(self, topic: str, index: int) -> bool:
        """True if the partition belongs to this broker and cannot be served."""
        partition = self._partitions.get((topic, index))
        return (topic, index) in self.offline or (partition is not None and partition.is_offline)

    def offline_replicas(self, image: ClusterImage, topic: str, index: int) -> list[int]:
        """Replicas on brokers that are not alive, or cannot use the replica's log."""
        partition = image.topics[topic].partitions[index]
        replicas = partition.replicas
        offline = [
            each for each in replicas if each not in image.brokers or each in partition.offline_replicas
        ]
        if self._node_id in replicas and self._node_id not in offline and self.is_offline(topic, index):
            offline.append(self._node_id)
        return offline

    def topic_of(self, topic_id: bytes) -> str:
        """The name of a topic; raises UNKNOWN_TOPIC_ID."""
        name = self._topic_names.get(topic_id)
        if name is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this topic id; it may have been deleted"
            )
        return name

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))

    async def open_batch(
        self, batch: bytearray, config: LogConfig, now_ms: int, max_record_errors: int
    ) -> bytearray:
        """`open_and_rewrite` in a thread of its own, one batch at a time.

        A small batch may open to hundreds of megabytes: that must not be multiplied by the number of threads,
        nor keep cold reads and fsyncs waiting.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._opener, open_and_rewrite, batch, config, now_ms, max_record_errors
        )

    # ---- following the image

    async def adopt(
        self,
        image: ClusterImage,
        loaded: dict[TopicPartition, Log],
        deleted: frozenset[str] = frozenset(),
        *,
        takes_roles: bool = True,
    ) -> None:
        """Take over the logs found on disk at start, then make what the image has and the disk lacks.

        `deleted` are the topics whose deletion was under way when the broker stopped. A broker with peers
        takes no roles from an image that is older than its registration: to lead on in a leader epoch from
        before a crash would be to lose what its followers have and its own log has lost.
        """
        self._takes_roles = takes_roles
        self._topics = image.topics
        self.log_removal.remove_soon(self._log_dirs.put_away_before())
        for topic_partition, log in loaded.items():
            name, index = topic_partition
            topic = image.topics.get(name)
            if topic is not None and log.topic_id is None:
                # Nothing was ever written to it, or power was lost before it was written down whose it is.
                if log.has_files:
                    await self.run_in_thread(log.assign_topic_id, topic.topic_id)
                else:
                    log.assign_topic_id(topic.topic_id)
            if topic is None or log.topic_id != topic.topic_id or index >= len(topic.partitions):
                await self._put_away(log, topic, may_delete=name in deleted)
            else:
                self._add(topic, index, log)
        await self._adopt_damaged(image, deleted)
        if len(self._log_dirs.online) < len(self._log_dirs.directories):
            for topic in image.topics.values():
                for index in self._missing(topic.name, dict(enumerate(topic.partitions))):
                    self.offline.lost[topic.name, index] = "its log is in a directory that is offline"
        for topic in image.topics.values():
            self._topic_names[topic.topic_id] = topic.name
            states = dict(enumerate(topic.partitions))
            failure = await self._follow(topic, states)
            if failure is not None:
                logger.error("%s", failure)

    async def _adopt_damaged(self, image: ClusterImage, deleted: frozenset[str]) -> None:
        """Partitions whose log could not be opened are offline; the rest of the broker serves."""
        for topic_partition, damaged in self._log_dirs.damaged.items():
            name, index = topic_partition
            topic = image.topics.get(name)
            if topic is None and name in deleted:
                await self.log_removal.delete([topic_partition])
                continue
            logger.error(
                "%s is offline until the next start: %s. Restore the file from a backup; or, to go on "
                "without the partition's records, move its directory out of the data directory. "
                "Then restart the broker",
                topic_partition,
                damaged.reason,
            )
            is_ours = topic is not None and damaged.topic_id in (None, topic.topic_id)
            if is_ours and topic is not None and index < len(topic.partitions):
                self.offline.lost[name, index] = damaged.reason

    async def _put_away(self, log: Log, topic: TopicImage | None, *, may_delete: bool) -> None:
        """A log on disk that belongs to no partition. Its records are deleted only if somebody deleted the
        topic: the partition may be missing because the metadata is older than the logs, as after a restored
        backup."""
        if may_delete or log.size_bytes == 0:
            logger.info("%s is on disk, but its topic was deleted: deleting it", log.topic_partition)
            await self.log_removal.delete([log.topic_partition])
            return
        if topic is None:
            why = "no topic has this name"
        elif log.topic_id != topic.topic_id:
            why = "it is of another topic of the same name"
        else:
            why = f"its topic has only {len(topic.partitions)} partitions"
        kept_as = await self.run_in_thread(self._log_dirs.set_aside, log)
        logger.error(
            "the log of %s is on disk, but %s: it is not served and is kept as %s. If the metadata was "
            "restored from a backup, the topic's partitions were not in it; remove the directory when its "
            "records are not needed",
            log.topic_partition,
            why,
            kept_as,
        )

    async def apply(self, new: ClusterImage, delta: ImageDelta) -> dict[str, KafkaError]:
        """Follow a change of the image; when this returns the new partitions can be used.

        Each topic stands for itself: returns, by name, those whose logs could not all be made or deleted.
        """
        self._takes_roles = True
        async with self._turn:
            self._topics = new.topics
            failures = await self._delete_gone(delta)
            async for topic in changed_topics(new, delta):
                change = delta.topics.get(topic.name)
                states = {} if change is None else {at: topic.partitions[at] for at in change.partitions}
                failure = await self._follow(topic, states)
                if failure is not None:
                    failures[topic.name] = failure
                await self._leave(topic.name, states)
        return failures

    async def apply_settings(self, new: ClusterImage, delta: ImageDelta) -> None:
        """Another broker is the controller, and has told of new topics and settings. Roles come apart."""
        async with self._turn:
            self._topics = new.topics
            for number, change in enumerate(delta.topics.values(), 1):
                if number % TOPICS_BETWEEN_PAUSES == 0:
                    await asyncio.sleep(0)
                if (deleted := change.deleted) is not None:
                    self._topic_names.pop(deleted.topic_id, None)
                    # Before its name stands for another topic, whose followers would be given its records.
                    for each in self._replicas_of(deleted.name, deleted.topic_id, len(deleted.partitions)):
                        each.resign()
            async for topic in changed_topics(new, delta):
                self._topic_names[topic.topic_id] = topic.name
                self._take_settings(topic, self._settings_of(topic))

    async def take_roles(
        self, topics: Mapping[str, tuple[TopicId, Mapping[int, PartitionImage]]]
    ) -> dict[TopicPartition, KafkaError]:
        """What the controller says of replicas here, of topics that `apply_settings` has told of; returns
        those that failed."""
        self._takes_roles = True
        failures: dict[TopicPartition, KafkaError] = {}
        async with self._turn:
            for number, (name, (topic_id, states)) in enumerate(topics.items(), 1):
                if number % TOPICS_BETWEEN_PAUSES == 0:
                    await asyncio.sleep(0)
                topic = self._topics.get(name)
                if topic is None or topic.topic_id != topic_id:
                    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"the topic {name} is not known here")
                    failures.update((TopicPartition(name, index), error) for index in states)
                    continue
                await self._follow(topic, states)
                async for piece in pieces_of(states):
                    for index in piece:
                        if (name, index) not in self._partitions or self.is_offline(name, index):
                            failures[TopicPartition(name, index)] = self._why_missing(name, index)
        return failures

    async def stop_replicas(self, places: Mapping[TopicPartition, bool]) -> dict[TopicPartition, KafkaError]:
        """Lead and follow these partitions no longer; delete the replicas of those that are True.

        The others stay for the next role.
        """
        async with self._turn:
            kept = [
                self._partitions[place]
                for place, is_deleted in places.items()
                if not is_deleted and place in self._partitions
            ]
            await self._unfollow(kept)
            for partition in kept:
                partition.resign()
            gone = [place for place, is_deleted in places.items() if is_deleted]
            failed = await self._remove_replicas(gone, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return {
            place: KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {place} is not deleted: {error}")
            for place, error in failed.items()
        }

    def resign_all(self) -> None:
        """The cluster takes this broker for dead: lead and follow nothing until the controller says so."""
        self._takes_roles = False
        self._resigned += 1
        for partition in self._partitions.values():
            partition.resign()

    async def _leave(self, name: str, states: Mapping[int, PartitionImage]) -> None:
        """Delete the logs of partitions that were moved to other brokers."""
        gone = [
            TopicPartition(name, index)
            for index, state in states.items()
            if self._node_id not in state.replicas and (name, index) in self._partitions
        ]
        for place, error in (await self._remove_replicas(gone, ErrorCode.NOT_LEADER_OR_FOLLOWER)).items():
            logger.error("the log of %s, which was moved away, is not deleted: %s", place, error)

    def check_lag(self) -> None:
        """Ask for ISRs without the followers that lag; called by a timer."""
        for leader, change in self._context.lag_watch.check(self._context.monotonic_ms()):
            partition = self._partitions.get(leader.topic_partition)
            if partition is not None and partition.leader is leader:
                partition.propose(change)

    async def _remove_replicas(
        self, places: list[TopicPartition], code: ErrorCode
    ) -> dict[TopicPartition, OSError]:
        """Have no replica of these partitions any longer; what waits for them is refused with `code`.

        Returns those whose logs could not be deleted.
        """
        await self._unfollow([self._partitions[place] for place in places if place in self._partitions])
        for place in places:  # all of them first: nothing more is acknowledged for these topics
            self._drop(place, code)
        return await self.log_removal.delete(places)

    async def _unfollow(self, partitions: Iterable[Partition]) -> None:
        if self._fetchers is not None:
            await self._fetchers.unfollow(partitions)

    def _drop(self, place: Place, code: ErrorCode) -> None:
        self.offline.drop(place)
        partition = self._partitions.pop(place, None)
        if partition is not None:
            partition.take_offline(code)

    async def make_unmade(self) -> None:
        """Try again to make the logs of partitions that were created while there was no room for them."""
        for name in dict.fromkeys(name for name, _ in self.offline.unmade):
            async with self._turn:
                topic = self._topics.get(name)
                if topic is None:
                    continue
                states = {
                    at: each for at, each in enumerate(topic.partitions) if (name, at) in self.offline.unmade
                }
                failure = await self._follow(topic, states, retry=True)
                if failure is None:
                    logger.info("the logs of topic %s could be made: all its partitions are online", name)
                else:
                    logger.warning("%s", failure)

    async def _delete_gone(self, delta: ImageDelta) -> dict[str, KafkaError]:
        gone: dict[TopicPartition, None] = {}
        for name, change in delta.topics.items():
            topic = change.deleted
            if topic is not None:
                self._topic_names.pop(topic.topic_id, None)
                gone |= dict.fromkeys(TopicPartition(name, index) for index in range(len(topic.partitions)))
        # A controller before may have told of the deletion, and not had the replicas deleted.
        gone |= {
            each.topic_partition: None
            for deleted in filter(None, delta.deleted_topics.values())
            for each in self._replicas_of(deleted.name, deleted.topic_id, deleted.partition_count)
        }
        failed = await self._remove_replicas(list(gone), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return {
            name: KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the topic {name} is deleted, but files of it are left: {error}; "
                "they are removed after the next start",
            )
            for (name, _), error in failed.items()
        }

    def _replicas_of(self, name: str, topic_id: TopicId, count: int) -> list[Partition]:
        found = (self.find(name, index) for index in range(count))
        return [each for each in found if each is not None and each.topic_id == topic_id]

    async def _follow(
        self, topic: TopicImage, states: Mapping[int, PartitionImage], *, retry: bool = False
    ) -> KafkaError | None:
        """Take over the topic's settings, make the logs that `states` need here, and take their roles.

        A replica of an earlier topic of the same name is deleted: the controller has forgotten it. Logs that
        could not be made before are tried again only with `retry`: a change of settings reaches every log
        that is there, however full the disk is.
        """
        settings = self._settings_of(topic)
        reason = ""
        async for piece in pieces_of(states):
            reason = await self._make_logs(topic, piece, settings, retry=retry) or reason
        self._take_settings(topic, settings)
        if self._takes_roles:
            resigned = self._resigned
            async for piece in pieces_of(states):
                if self._resigned == resigned:
                    await self._take_roles(topic.name, piece)
        if not reason:
            return None
        offline = sum((topic.name, index) in self.offline.unmade for index in range(len(topic.partitions)))
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the topic {topic.name} exists, but {offline} of its {len(topic.partitions)} partitions are "
            f"offline: {reason}; free space or repair the disk, the broker tries again every few seconds",
        )

    async def _make_logs(
        self, topic: TopicImage, states: Mapping[int, PartitionImage], settings: TopicSettings, *, retry: bool
    ) -> str:
        """Why the last log that could not be made could not; empty if all could."""
        earlier = [
            TopicPartition(topic.name, index)
            for index in states
            if (each := self.find(topic.name, index)) is not None and each.topic_id != topic.topic_id
        ]
        if earlier:
            await self._remove_replicas(earlier, ErrorCode.UNKNOWN_TOPIC_ID)
        unmade = self.offline.unmade
        missing = [
            index for index in self._missing(topic.name, states) if retry or (topic.name, index) not in unmade
        ]
        if not missing:
            return ""
        reason, were_unmade = "", len(unmade)
        names = [TopicPartition(topic.name, index) for index in missing]
        made = await self.run_in_thread(self._log_dirs.create_logs, names, topic.topic_id, settings.log)
        for index, log in zip(missing, made, strict=True):
            if isinstance(log, Log):
                unmade.pop((topic.name, index), None)
                self._add(topic, index, log)
            else:
                reason = unmade[topic.name, index] = str(log)
        if len(unmade) != were_unmade:
            self.offline.changed()
        return reason

    def _take_settings(self, topic: TopicImage, settings: TopicSettings) -> None:
        for index in range(len(topic.partitions)):
            partition = self._partitions.get((topic.name, index))
            if partition is not None:
                partition.log.config = settings.log
                partition.set_min_insync_replicas(settings.min_insync_replicas)
                partition.is_throttled_leader = settings.throttled.leads_throttled(index, self._node_id)
                partition.is_throttled_follower = settings.throttled.follows_throttled(index, self._node_id)

    async def _take_roles(self, name: str, states: Mapping[int, PartitionImage]) -> None:
        """Partitions that get another role are fetched from nobody until they have it."""
        changed = [
            (partition, state)
            for index, state in states.items()
            if (partition := self._partitions.get((name, index))) is not None
        ]
        if self._fetchers is not None:
            # Again, if one has resigned meanwhile.
            while stopping := [
                partition
                for partition, state in changed
                if partition.needs_other_role(state) and partition in self._fetchers
            ]:
                await self._fetchers.unfollow(stopping)
        followed: dict[int, list[Partition]] = {}
        for partition, state in changed:
            has_other_role = partition.needs_other_role(state)
            partition.take_over(state)
            if has_other_role and partition.follower is not None:
                followed.setdefault(state.leader, []).append(partition)
        if self._fetchers is not None:
            for leader_id, partitions in followed.items():
                self._fetchers.follow(leader_id, partitions)

    def _missing(self, name: str, states: Mapping[int, PartitionImage]) -> list[int]:
        """Partitions of a topic that belong here, have no log, and may be given a new one."""
        return [
            index
            for index, state in states.items()
            if self._node_id in state.replicas
            and (place := (name, index)) not in self._partitions
            and place not in self.offline.lost
        ]

    def _add(self, topic: TopicImage, index: int, log: Log) -> None:
        log.on_roll = self._flush_rolled_soon
        if self._fetchers is not None:
            log.on_failed_write = self.full_disks.on_failed_write
        self._partitions[log.topic_partition] = Partition(
            topic.name,
            index,
            topic.topic_id,
            log,
            self._context,
            self._log_dirs.high_watermark_of(log.topic_partition),
        )
        self._topic_names[topic.topic_id] = topic.name
        self._context.long_lived.note_partition()

    def _flush_rolled_soon(self, log: Log) -> None:
        """Called where a segment is rolled: in an append on the loop, or by retention in a thread."""
        self._loop.call_soon_threadsafe(self.flusher.flush_rolled, log)

    def _move_back(
        self, move: Callable[[Mapping[TopicPartition, int]], Failures], offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Cut logs, in a thread. Raises the first failure."""
        try:
            for error in move(offsets).values():
                raise error
        except LogDirFailure as failure:
            for place in offsets:
                self._loop.call_soon_threadsafe(self._on_flush_failure, self._partitions[place].log, failure)
            raise

    def _flush_fetched(self, log: Log) -> None:
        """Bring what a follower has fetched to the disk, in a thread."""
        try:
            log.flush()
        except LogDirFailure as failure:
            self._loop.call_soon_threadsafe(self._on_flush_failure, log, failure)
            raise

    # ---- failures and the end

    def _on_flush_failure(self, log: Log, error: OSError) -> None:
        self.take_directory_offline(os.path.dirname(log.directory), error)

    def take_directory_offline(self, log_dir: str, error: Exception) -> None:
        """A disk that failed an fsync cannot be trusted: its partitions stop, the broker goes on.

        The next start recovers its logs, as no clean stop is noted there.
        """
        logger.error("log directory %s failed: %s", log_dir, error)
        self._log_dirs.take_offline(Path(log_dir), error)
        for partition in self._partitions.values():
            if os.path.dirname(partition.log.directory) == log_dir and not partition.is_offline:
                partition.take_offline()
        self.offline.changed()

    def shut_down(self) -> None:
        self.log_removal.stop()
        self._opener.shutdown(wait=True)
        self._flush_executor.shutdown(wait=True)
        self._executor.shutdown(wait=True)
