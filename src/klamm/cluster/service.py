"""The cluster as the rest of the broker sees it: the current image, and the only way to change it.

`controller/` works out what a command changes; the committer makes the changes, in order. Commands for
several topics stand for themselves: each result is a topic or the KafkaError for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

from klamm.cluster import layout
from klamm.cluster.changes import Change
from klamm.cluster.committing import Committer, Subscriber, TopicFailures
from klamm.cluster.config_changes import alter_config, current_config, replacement
from klamm.cluster.controller import topics
from klamm.cluster.controller.partitions import raise_leader_epochs
from klamm.cluster.controller.topics import (
    MAX_NEW_PARTITIONS,
    USE_DEFAULT,
    NewPartitions,
    NewTopic,
)
from klamm.cluster.image import OFFSETS_TOPIC, BrokerImage, ClusterImage, TopicImage
from klamm.config.alterations import Alteration
from klamm.config.loading import BrokerConfig
from klamm.coordination.store import (
    BadVersion,
    Create,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Store,
    StoreError,
)
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition, new_topic_id

CommandT = TypeVar("CommandT")
ChangeOne: TypeAlias = Callable[[ClusterImage, CommandT], tuple[Change, TopicImage]]
"""What one command changes in an image, and the topic that it concerns; or it raises a KafkaError."""

# Commands worked out before other work of the loop goes on: a few milliseconds, with thousands of topics.
COMMANDS_BETWEEN_PAUSES = 20

COUNTED_BETWEEN_PAUSES = 2_000

PRODUCER_ID_BLOCK_SIZE = 1_000

_MAX_START = 1 << 20


class ClusterService:
    def __init__(self, store: Store, config: BrokerConfig) -> None:
        """`config` is what the broker was started with; what was set at run time comes with loading."""
        self._store = store
        self._committer = Committer(store, config)
        self._running: set[asyncio.Task[list[TopicImage | KafkaError]]] = set()

    @property
    def image(self) -> ClusterImage:
        """The latest image."""
        return self._committer.image

    @property
    def config(self) -> BrokerConfig:
        """This broker's effective configuration under that image."""
        return self._committer.config

    @property
    def unfinished_deletions(self) -> frozenset[str]:
        """Topics that were deleted and whose files this broker may still have: a crash came between."""
        node_id = self.config.int_("node.id")
        return frozenset(
            topic.name for topic in self.image.deleted_topics.values() if node_id in topic.brokers
        )

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have `subscriber(old, new, delta)` called after every change, and awaited before it is answered.

        Changes do not wait for it, so it is called again before it is done. What it returns are the topics
        that this broker cannot fully serve: their commands are answered with these errors.
        """
        self._committer.subscribers.append(subscriber)

    async def load(self, broker: BrokerImage) -> ClusterImage:
        """Read everything from the store, with `broker` (this one) alive. Subscribers are not told."""
        await self._committer.load(broker)
        return self.image

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicImage | KafkaError]:
        """A topic or an error for each, in order."""

        def change(image: ClusterImage, topic: NewTopic) -> tuple[Change, TopicImage]:
            start = random.randrange(_MAX_START)
            made = topics.create_topic(
                image,
                self.config,
                topic,
                controller_epoch=self._controller_epoch,
                topic_id=new_topic_id(),
                start=start,
            )
            return made, made.image.topics[topic.name]

        error = await _too_many(new_topics, self._new_partition_count)
        if error is not None:
            return [error] * len(new_topics)
        return await (self._validate_each if validate_only else self._change_each)(new_topics, change)

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicImage | KafkaError]:
        """The grown topic or an error for each, in order."""

        def change(image: ClusterImage, each: NewPartitions) -> tuple[Change, TopicImage]:
            made = topics.create_partitions(
                image, each, controller_epoch=self._controller_epoch, start=random.randrange(_MAX_START)
            )
            return made, made.image.topics[each.topic]

        known = self.image.topics

        def added(each: NewPartitions) -> int:
            topic = known.get(each.topic)
            return each.partition_count - len(topic.partitions) if topic is not None else 0

        error = await _too_many(wanted, added)
        if error is not None:
            return [error] * len(wanted)
        return await (self._validate_each if validate_only else self._change_each)(wanted, change)

    async def delete_topics(self, names: Sequence[str]) -> list[TopicImage | KafkaError]:
        """The topic that was, or an error, for each. When this returns no log has their names any more."""

        def change(image: ClusterImage, name: str) -> tuple[Change, TopicImage]:
            made = topics.delete_topic(image, name)
            return made, image.topics[name]

        async def delete() -> list[TopicImage | KafkaError]:
            results = await self._change_each(names, change)
            # The topics are gone either way; a deletion that stays noted is finished after the next start.
            with suppress(KafkaError):
                await self._confirm([each.topic_id for each in results if isinstance(each, TopicImage)])
            return results

        task = asyncio.create_task(delete())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def finish_deletions(self) -> None:
        """Forget `unfinished_deletions`: the caller has made sure that no log of them is left."""
        await self._confirm(sorted(self.image.deleted_topics))

    async def _confirm(self, topic_ids: Sequence[bytes]) -> None:
        """This broker has no files of these topics."""
        if topic_ids:
            node_id = self.config.int_("node.id")
            await self._committer.commit(lambda image: topics.confirm_deletions(image, node_id, topic_ids))

    async def alter_config(
        self, resource_type: int, name: str, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> None:
        """Alter the configuration of one resource, or raise a KafkaError."""

        await self._change_config(
            lambda image: alter_config(image, self.config, resource_type, name, alterations),
            validate_only=validate_only,
        )

    async def replace_config(
        self,
        resource_type: int,
        name: str,
        wanted: Sequence[tuple[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace the configuration of one resource by `wanted`, or raise a KafkaError."""

        def replace(image: ClusterImage) -> Change:
            alterations = replacement(current_config(image, resource_type, name), wanted)
            return alter_config(image, self.config, resource_type, name, alterations)

        await self._change_config(replace, validate_only=validate_only)

    async def _change_config(
        self, work_out: Callable[[ClusterImage], Change], *, validate_only: bool
    ) -> None:
        if not validate_only:
            await self._committer.commit(work_out)
            return
        await self._committer.ready()
        work_out(self._committer.newest)

    async def ensure_offsets_topic(self) -> TopicImage:
        """The topic of committed offsets, made if it is not there."""
        topic = self.image.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            return topic
        config = self.config
        new = NewTopic(
            OFFSETS_TOPIC,
            config.int_("offsets.topic.num.partitions"),
            min(config.int_("offsets.topic.replication.factor"), len(self.image.brokers)),
            config={
                "cleanup.policy": "compact",
                "segment.bytes": str(config.int_("offsets.topic.segment.bytes")),
                "compression.type": "producer",
            },
        )
        (result,) = await self.create_topics([new])
        if isinstance(result, TopicImage):
            return result
        if result.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return self.image.topics[OFFSETS_TOPIC]
        raise result

    async def raise_leader_epochs(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin a new leader epoch in each: for logs that may have lost records in a crash."""
        which = list(partitions)
        if which:
            await self._committer.commit(
                lambda image: raise_leader_epochs(image, which, controller_epoch=self._controller_epoch)
            )

    async def next_producer_id_block(self) -> range:
        """A block of producer ids that no broker was given before; KafkaError if the store fails."""
        try:
            return await self._take_producer_id_block()
        except StoreError as error:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"no producer id can be given now, because the metadata store failed: {error}",
            ) from error

    async def _take_producer_id_block(self) -> range:
        path = layout.PRODUCER_ID_BLOCK
        while True:
            operation: Operation
            try:
                node = await self._store.get(path)
                start = int(layout.decode(path, node)["block_end"]) + 1
                operation = Set(path, self._block(start), node.version)
            except NoNode:
                start = 0
                operation = Create(path, self._block(start))
            try:
                await self._store.txn([operation])
            except (BadVersion, NodeExists):
                continue  # another broker took this block
            return range(start, start + PRODUCER_ID_BLOCK_SIZE)

    def _block(self, start: int) -> bytes:
        end = start + PRODUCER_ID_BLOCK_SIZE - 1
        broker = self.config.int_("node.id")
        return layout.encode(
            {"version": 1, "broker": broker, "block_start": str(start), "block_end": str(end)}
        )

    @property
    def _controller_epoch(self) -> int:
        return self._committer.controller_epoch

    def _new_partition_count(self, topic: NewTopic) -> int:
        if topic.assignment:
            return len(topic.assignment)
        if topic.partition_count == USE_DEFAULT:
            return self.config.int_("num.partitions")
        return topic.partition_count

    async def _validate_each(
        self, commands: Sequence[CommandT], change: ChangeOne[CommandT]
    ) -> list[TopicImage | KafkaError]:
        """What each command would change if those before it were carried out."""
        try:
            await self._committer.ready()
        except KafkaError as error:
            return [error] * len(commands)
        image = self._committer.newest
        results: list[TopicImage | KafkaError] = []
        for position, command in enumerate(commands, 1):
            try:
                made, topic = change(image, command)
                image = made.image
                results.append(topic)
            except KafkaError as error:
                results.append(error.as_result())
            if position % COMMANDS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        return results

    async def _change_each(
        self, commands: Sequence[CommandT], change: ChangeOne[CommandT]
    ) -> list[TopicImage | KafkaError]:
        """Have each command carried out; what others change meanwhile comes in between."""
        begun: list[tuple[TopicImage | KafkaError, asyncio.Future[TopicFailures] | None]] = []
        for position, command in enumerate(commands, 1):
            try:
                await self._committer.ready()
                made, topic = change(self._committer.newest, command)
                begun.append((topic, self._committer.stage(made)))
            except KafkaError as error:
                begun.append((error.as_result(), self._committer.last))
            if position % COMMANDS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        return [await _result(outcome, made) for outcome, made in begun]


async def _result(
    outcome: TopicImage | KafkaError, made: asyncio.Future[TopicFailures] | None
) -> TopicImage | KafkaError:
    """`outcome`, once the image that it was found on is stored."""
    if made is None:
        return outcome
    try:
        failures = await asyncio.shield(made)
    except KafkaError as error:
        return error
    return failures.get(outcome.name, outcome) if isinstance(outcome, TopicImage) else outcome


async def _too_many(
    commands: Sequence[CommandT], partition_count: Callable[[CommandT], int]
) -> KafkaError | None:
    total = 0
    for position, command in enumerate(commands, 1):
        total += max(0, partition_count(command))
        if position % COUNTED_BETWEEN_PAUSES == 0:
            await asyncio.sleep(0)
    if total <= MAX_NEW_PARTITIONS:
        return None
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"{total} new partitions in one request are refused: {MAX_NEW_PARTITIONS} is the most",
    )
