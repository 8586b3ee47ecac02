"""The cluster as the rest of the broker sees it: the current image, and the only way to change it.

`controller/` works out what a command changes; the committer makes the changes, in order. Commands for
several topics stand for themselves: each result is a topic or the KafkaError for it. On a broker that is not
the controller every command is answered with NOT_CONTROLLER, but for `create_missing`, which asks the
controller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from klamm.cluster.announcing import image_after_request
from klamm.cluster.changes import Change
from klamm.cluster.channels import Send
from klamm.cluster.committing import Committer
from klamm.cluster.config_changes import alter_config, replace_config
from klamm.cluster.controller import topics
from klamm.cluster.controller.brokers import shut_down_broker, unregister_broker
from klamm.cluster.controller.elections import ElectionType, all_partitions, elect_leaders
from klamm.cluster.controller.isr import IsrProposal, IsrResult
from klamm.cluster.controller.offline_replicas import ReplicaKey
from klamm.cluster.controller.partitions import raise_leader_epochs
from klamm.cluster.controller.reassignment import reassign_partition
from klamm.cluster.controller.topics import MAX_NEW_PARTITIONS, USE_DEFAULT, NewPartitions, NewTopic
from klamm.cluster.controlling import Control
from klamm.cluster.election import Controller
from klamm.cluster.fencing import check_controller_epoch
from klamm.cluster.forwarded_topics import request_to_create, results_of_creation
from klamm.cluster.image import (
    NO_LEADER,
    OFFSETS_TOPIC,
    BrokerDelta,
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageDelta,
    TopicImage,
)
from klamm.cluster.loading import ControllerTerm, claim_controller, prepare_store, read_image
from klamm.cluster.view import ClusterView, Subscriber, TopicFailures
from klamm.config.alterations import Alteration
from klamm.config.loading import BrokerConfig
from klamm.config.rows import ResourceType
from klamm.coordination.store import Store
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition, new_topic_id
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest
from klamm.protocol.messages.k19_create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.schema import Message

CommandT = TypeVar("CommandT")
ChangeOne: TypeAlias = Callable[[ClusterImage, CommandT], tuple[Change, TopicImage]]
"""What one command changes in an image, and the topic that it concerns; or it raises a KafkaError."""

# Commands worked out before other work of the loop goes on: a few milliseconds, with thousands of topics.
COMMANDS_BETWEEN_PAUSES = 20

COUNTED_BETWEEN_PAUSES = 2_000

# Partitions whose leaders are elected before other work of the loop goes on.
ELECTIONS_BETWEEN_PAUSES = 200

_MAX_START = 1 << 20


AskController: TypeAlias = Callable[[CreateTopicsRequest], Awaitable[CreateTopicsResponse]]
"""Has whichever broker is the controller make topics; raises a KafkaError if none answers."""

CheckConfig: TypeAlias = Callable[[BrokerConfig], Awaitable[None]]
"""Raises a KafkaError if this broker cannot run with this configuration."""


class ClusterService:
    def __init__(self, store: Store, config: BrokerConfig) -> None:
        """`config` is what the broker was started with; what was set at run time comes with loading."""
        self._store = store
        self._node_id = config.int_("node.id")
        self.view = ClusterView(config)
        self._control: Control | None = None
        self._send: Send = _nobody_to_tell
        self._ask_controller: AskController = _nobody_to_ask
        self.controller: Controller | None = None
        """The broker that is the controller, as the store says; None if there is none."""
        self.on_new_controller: Callable[[], None] = lambda: None
        """Called when there is another one."""
        self.check_own_config: CheckConfig = _nothing_to_check
        """Asked before this broker changes its own configuration."""
        self.latest_controller_epoch = 0
        """The latest that this broker has heard of."""
        self._running: set[asyncio.Task[list[TopicImage | KafkaError]]] = set()

    @property
    def image(self) -> ClusterImage:
        """The latest image."""
        return self.view.image

    @property
    def config(self) -> BrokerConfig:
        """This broker's effective configuration under that image."""
        return self.view.config

    @property
    def is_controller(self) -> bool:
        return self._control is not None and self._control.is_serving

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have `subscriber(old, new, delta)` called after every change, and awaited before it is answered.

        Changes do not wait for it, so it is called again before it is done. What it returns are the topics
        that this broker cannot fully serve: their commands are answered with these errors.
        """
        self.view.subscribers.append(subscriber)

    # ---- this broker's life in the cluster

    async def load(self, broker: BrokerImage) -> ClusterImage:
        """Read everything from the store, with `broker` (this one) alive and alone: it is the controller from
        here on. Subscribers are not told."""
        await prepare_store(self._store)
        term = await claim_controller(self._store)
        self._control = Control(self._store, term, self._node_id, self.view, self._send)
        await self._control.begin_alone(broker)
        return self.image

    async def join(self, store: Store, send: Send, ask_controller: AskController) -> ClusterImage:
        """Take part in a cluster of several brokers; returns what its store says now.

        The view has the cluster's settings, and neither brokers nor topics before a controller tells of them.
        """
        self._store, self._send, self._ask_controller = store, send, ask_controller
        await prepare_store(store)
        loaded = (await read_image(store, NO_LEADER, 0)).image
        self.view.begin_with(
            ClusterImage(
                loaded.cluster_id,
                NO_LEADER,
                broker_configs=loaded.broker_configs,
                group_configs=loaded.group_configs,
            )
        )
        return loaded

    async def change_own_endpoints(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Have clients told other addresses of this broker, which is alone."""

        def change(image: ClusterImage) -> Change:
            before = image.brokers[self._node_id]
            after = replace(before, endpoints=endpoints)
            return Change.of(image, (), ImageDelta(brokers={before.id: BrokerDelta(before, after)}))

        await self._committer.commit(change)

    def use_store(self, store: Store) -> None:
        """After the session of the store before has ended. This broker is not the controller now."""
        assert not self.is_controller, "the term ends with the session"
        self._store = store

    def on_elected(self, term: ControllerTerm) -> None:
        self.on_resigned()
        self.latest_controller_epoch = max(self.latest_controller_epoch, term.epoch)
        self._control = Control(self._store, term, self._node_id, self.view, self._send)
        self._control.begin()

    def on_resigned(self) -> None:
        if self._control is not None:
            self._control.end()
            self._control = None

    def on_controller(self, controller: Controller | None) -> None:
        self.controller = controller
        if controller is not None:
            self.on_new_controller()

    def obey(self, controller_epoch: int) -> None:
        """A request of a controller has come; STALE_CONTROLLER_EPOCH if that one has been replaced."""
        check_controller_epoch(controller_epoch, self.latest_controller_epoch)
        if controller_epoch > self.latest_controller_epoch:
            self.latest_controller_epoch = controller_epoch
            self.on_resigned()  # if this broker was the controller, it has been replaced

    async def update(self, request: UpdateMetadataRequest) -> None:
        """Follow what the controller says of the cluster; `obey` was called."""
        image, delta = image_after_request(self.view.image, request)
        if delta:
            await asyncio.shield(self.view.publish(image, delta))

    @property
    def _serving(self) -> Control:
        """This broker's term as the controller; NOT_CONTROLLER if it is not the controller."""
        if self._control is None or not self._control.is_serving:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller: ask that one")
        return self._control

    @property
    def _committer(self) -> Committer:
        return self._serving.committer

    # ---- commands

    async def create_missing(self, new_topics: Sequence[NewTopic]) -> Mapping[str, KafkaError]:
        """Have the controller make topics that are needed here; the errors by topic name.

        A topic that is not among the errors is in the image.
        """
        if self.is_controller:
            results = await self.create_topics(new_topics)
            errors = {
                new.name: result
                for new, result in zip(new_topics, results, strict=True)
                if isinstance(result, KafkaError)
            }
        else:
            try:
                response = await self._ask_controller(request_to_create(new_topics))
                errors = results_of_creation(response)
            except KafkaError as error:
                errors = {new.name: error for new in new_topics}
        there = self.image.topics
        errors = {
            name: error
            for name, error in errors.items()
            if name not in there and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS
        }
        missing = {
            new.name: KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{new.name} is being made; try again")
            for new in new_topics
            if new.name not in there and new.name not in errors
        }
        return missing | errors

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
        """Forget the deletions that are noted: the caller has made sure that no log of them is left."""
        await self._confirm(sorted(self.image.deleted_topics))

    async def _confirm(self, topic_ids: Sequence[bytes]) -> None:
        """This broker has no files of these topics."""
        if topic_ids:
            await self._committer.commit(
                lambda image: topics.confirm_deletions(image, self._node_id, topic_ids)
            )

    async def alter_config(
        self, resource_type: int, name: str, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> None:
        """Alter the configuration of one resource, or raise a KafkaError."""
        change = partial(alter_config, alterations=alterations)
        await self._change_config(change, resource_type, name, validate_only=validate_only)

    async def replace_config(
        self,
        resource_type: int,
        name: str,
        wanted: Sequence[tuple[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace the configuration of one resource by `wanted`, or raise a KafkaError."""
        change = partial(replace_config, wanted=wanted)
        await self._change_config(change, resource_type, name, validate_only=validate_only)

    async def _change_config(
        self, change: Callable[..., Change], resource_type: int, name: str, *, validate_only: bool
    ) -> None:
        def work_out(image: ClusterImage) -> Change:
            config = self.view.config_under(image)
            return change(image, config, resource_type, name, controller_epoch=self._controller_epoch)

        committer = self._committer
        is_own = (resource_type, name) == (ResourceType.BROKER, str(self._node_id))
        if validate_only or is_own:
            await committer.ready()
            tried = work_out(committer.newest)
            if is_own:
                await self.check_own_config(self.view.config_under(tried.image))
        if not validate_only:
            await committer.commit(work_out)

    async def ensure_offsets_topic(self) -> TopicImage:
        """The topic of committed offsets, made if it is not there."""
        topic = self.image.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            return topic
        config = self.config
        is_alone = config.inter_broker_listener_name is None
        new = NewTopic(
            OFFSETS_TOPIC,
            config.int_("offsets.topic.num.partitions"),
            # Fewer replicas only if there will never be another broker: the topic keeps what it is made with,
            # and consumers may come when the first broker of a cluster has just been started.
            1 if is_alone else config.int_("offsets.topic.replication.factor"),
            config={
                "cleanup.policy": "compact",
                "segment.bytes": str(config.int_("offsets.topic.segment.bytes")),
                "compression.type": "producer",
            },
        )
        errors = await self.create_missing([new])
        if OFFSETS_TOPIC in errors:
            raise errors[OFFSETS_TOPIC]
        return self.image.topics[OFFSETS_TOPIC]

    async def raise_leader_epochs(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin a new leader epoch in each: for logs that may have lost records in a crash."""
        which = list(partitions)
        if which:
            await self._committer.commit(
                lambda image: raise_leader_epochs(
                    image, self.config, which, controller_epoch=self._controller_epoch
                )
            )

    async def elect_leaders(
        self, election_type: ElectionType, which: Sequence[TopicPartition] | None
    ) -> list[tuple[TopicPartition, KafkaError | None]]:
        """Elect leaders of these partitions, or of all that need it; raises a KafkaError."""
        committer = self._committer
        partitions = which if which is not None else list(all_partitions(self.image))
        results: list[tuple[TopicPartition, KafkaError | None]] = []
        made: list[asyncio.Future[TopicFailures]] = []
        for first in range(0, len(partitions), ELECTIONS_BETWEEN_PAUSES):
            await committer.ready()
            elections = elect_leaders(
                committer.newest,
                self.view.config_under(committer.newest),
                election_type,
                partitions[first : first + ELECTIONS_BETWEEN_PAUSES],
                controller_epoch=committer.controller_epoch,
            )
            results += elections.results
            if elections.change.delta:
                made.append(committer.stage(elections.change))
            await asyncio.sleep(0)
        for each in made:
            await asyncio.shield(each)
        if which is not None:
            return results
        return [
            (place, error)
            for place, error in results
            if error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED
        ]

    async def reassign_partitions(
        self,
        targets: Sequence[tuple[TopicPartition, Sequence[int] | None]],
        *,
        allow_replication_factor_change: bool = True,
    ) -> list[KafkaError | None]:
        """Begin to move each partition to its target replicas (None cancels); an error or None for each."""
        begun: list[KafkaError | asyncio.Future[TopicFailures]] = []
        for position, (topic_partition, target) in enumerate(targets, 1):
            if position % COMMANDS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
            try:
                committer = self._committer
                await committer.ready()
                change = reassign_partition(
                    committer.newest,
                    self.view.config_under(committer.newest),
                    topic_partition,
                    target,
                    controller_epoch=self._controller_epoch,
                    allow_replication_factor_change=allow_replication_factor_change,
                )
                begun.append(committer.stage(change))
            except KafkaError as error:
                begun.append(error.as_result())
        return [await _error_of(each) for each in begun]

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that will not come back; raises a KafkaError."""
        await self._committer.commit(lambda image: unregister_broker(image, broker_id))

    async def shut_down_broker(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Move leadership off a broker; returns the partitions that no other replica can lead."""
        committer = self._committer
        await committer.ready()
        shutdown = shut_down_broker(
            committer.newest,
            self.view.config_under(committer.newest),
            broker_id,
            broker_epoch,
            controller_epoch=self._controller_epoch,
        )
        if shutdown.change.delta:
            await asyncio.shield(committer.stage(shutdown.change))
        return shutdown.remaining

    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[IsrResult]:
        """What becomes of a leader's proposals; raises a KafkaError that holds for all of them."""
        return await self._serving.alter_isrs(broker_id, broker_epoch, proposals)

    async def change_replicas(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        offline: Sequence[ReplicaKey],
        online: Sequence[ReplicaKey],
    ) -> None:
        """A broker says which of its replicas are offline, and which are back; raises a KafkaError."""
        await self._serving.change_replicas(broker_id, broker_epoch, offline=offline, online=online)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids that no broker was given before; raises a KafkaError."""
        return await self._serving.allocate_producer_ids(broker_id, broker_epoch)

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
            committer = self._committer
            await committer.ready()
        except KafkaError as error:
            return [error] * len(commands)
        image = committer.newest
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
        try:
            committer = self._committer
        except KafkaError as error:
            return [error] * len(commands)
        for position, command in enumerate(commands, 1):
            try:
                await committer.ready()
                made, topic = change(committer.newest, command)
                begun.append((topic, committer.stage(made)))
            except KafkaError as error:
                begun.append((error.as_result(), committer.last))
            if position % COMMANDS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        results: list[TopicImage | KafkaError] = []
        for position, (outcome, made_by) in enumerate(begun, 1):
            results.append(await _result(outcome, made_by))
            if position % COMMANDS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        return results


async def _nobody_to_tell(broker_id: int, request: Message) -> Any:
    raise AssertionError(f"broker {broker_id} is told something by a broker that is alone")


async def _nothing_to_check(config: BrokerConfig) -> None:
    pass


async def _nobody_to_ask(request: CreateTopicsRequest) -> CreateTopicsResponse:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker does not know the controller yet: try again")


async def _error_of(begun: KafkaError | asyncio.Future[TopicFailures]) -> KafkaError | None:
    if isinstance(begun, KafkaError):
        return begun
    try:
        await asyncio.shield(begun)
    except KafkaError as error:
        return error.as_result()
    return None


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
