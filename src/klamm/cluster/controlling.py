"""One term of this broker as the controller: it reads the store, follows the brokers, and tells them changes.

A term begins when the store has been read and what became of the brokers meanwhile is stored. From then on
every change goes to this broker's own view by a direct call and to the others through channels. Whoever asked
for a change waits for the brokers too, but not long: a broker that is slow or dead fails no change.

When the term is over nothing more is told. What was on its way to the store is made or not, as the store
decides; the next controller reads it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from klamm.cluster import layout
from klamm.cluster.announcing import Requests, full_requests, requests_of_change
from klamm.cluster.channels import Channels, Send
from klamm.cluster.committing import Committer
from klamm.cluster.controller import isr
from klamm.cluster.controller.brokers import brokers_changed, check_broker_epoch
from klamm.cluster.controller.elections import (
    UNCLEAN_KEY,
    ElectionType,
    elect_leaders,
    imbalanced_partitions,
)
from klamm.cluster.controller.isr import IsrProposal, IsrResult
from klamm.cluster.controller.offline_replicas import ReplicaKey, replicas_changed
from klamm.cluster.controller.reassignment import complete_reassignments
from klamm.cluster.controller.topics import confirm_deletions
from klamm.cluster.image import BrokerDelta, BrokerImage, ClusterImage, ImageDelta, TopicDelta, difference
from klamm.cluster.layout import Registration
from klamm.cluster.loading import ControllerTerm
from klamm.cluster.producer_ids import next_block
from klamm.cluster.view import ClusterView, TopicFailures
from klamm.coordination.store import NoNode, Store, StoreError
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k04_leader_and_isr import LeaderAndIsrResponse

logger = logging.getLogger("klamm.cluster")

TELLING_S = 5.0
"""How long a change waits for the other brokers to follow it before it is answered."""

RETRY_S = 0.2
"""Pause after the store has failed."""

_SUPERSEDED = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""Refusals of a proposal whose leader does not know the current state of its partition."""


async def read_registrations(store: Store) -> dict[int, Registration]:
    """All brokers that are registered now."""
    registered: dict[int, Registration] = {}
    for name in await store.list(layout.BROKER_IDS):
        path = f"{layout.BROKER_IDS}/{name}"
        try:
            registered[int(name)] = layout.decode_registration(path, await store.get(path))
        except NoNode:
            continue  # it has left meanwhile
    return registered


class Control:
    def __init__(
        self, store: Store, term: ControllerTerm, node_id: int, view: ClusterView, send: Send
    ) -> None:
        self._store = store
        self._term = term
        self._node_id = node_id
        self._view = view
        self.committer = Committer(store, term, node_id, self._publish)
        self._channels = Channels(
            send,
            full=self._full_requests_of,
            on_deleted=self._on_deleted,
            on_roles=self._on_roles,
            on_replaced=self.end,
        )
        self.is_serving = False
        """True from the moment that the image of this term is published until the term is over."""
        self._is_over = False
        self._dirty = asyncio.Event()
        self._allocating = asyncio.Lock()
        # A dict and not a set: the order in which tasks end must not depend on addresses in memory.
        self._tasks: dict[asyncio.Task[object], None] = {}

    @property
    def epoch(self) -> int:
        return self._term.epoch

    async def begin_alone(self, broker: BrokerImage) -> None:
        """Begin the term in a store that no other broker uses, with `broker`, this one, alive."""
        image = await self.committer.load()
        image = image.with_delta(ImageDelta(brokers={broker.id: BrokerDelta(None, broker)}))
        self.committer.begin_with(image)
        self._view.begin_with(image)
        self.is_serving = True

    def begin(self) -> None:
        """Begin the term as soon as the store can be read, and go on until `end`."""
        self._start(self._follow_brokers())
        self._start(self._rebalance_leaders())

    def end(self) -> None:
        """The term is over: another broker may be the controller already."""
        self._is_over = True
        self.is_serving = False
        self._channels.close()
        for task in tuple(self._tasks):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    # ---- following the brokers

    async def _follow_brokers(self) -> None:
        watch = self._store.watch(layout.BROKER_IDS, self._dirty.set)
        try:
            while True:
                self._dirty.clear()
                try:
                    await self._take_registrations()
                except (StoreError, KafkaError) as error:
                    logger.warning("the controller cannot read the registered brokers; it retries: %s", error)
                    await asyncio.sleep(RETRY_S)
                    continue
                except Exception:
                    # A bug of ours must not leave a controller that follows nobody.
                    logger.exception("the controller failed to follow the brokers; it tries again")
                    await asyncio.sleep(RETRY_S)
                    continue
                await self._dirty.wait()
        finally:
            watch.cancel()

    async def _take_registrations(self) -> None:
        if not self.is_serving:
            self.committer = Committer(self._store, self._term, self._node_id, self._publish)
            await self.committer.load()
        registered = await read_registrations(self._store)
        committer = self.committer
        await committer.ready()
        image = committer.newest
        config = self._view.config_under(image)
        change = brokers_changed(image, config, registered, controller_epoch=self.epoch)
        if change.delta:
            committer.stage(change)
            await committer.newest_is_stored()
        # A reassignment may have waited for a target replica that can lead.
        completed = complete_reassignments(committer.newest, config, controller_epoch=self.epoch)
        if completed.delta:
            committer.stage(completed)
            await committer.newest_is_stored()

    async def _rebalance_leaders(self) -> None:
        """Now and then give leadership back to preferred replicas."""
        while True:
            await self._until_next_look()
            if not self.is_serving or not self._view.config.bool_("auto.leader.rebalance.enable"):
                continue
            try:
                which = imbalanced_partitions(self.committer.newest)
                if which:
                    await self._give_leadership_back(which)
            except Exception:
                # A bug of ours must not be the last time that somebody looks.
                logger.exception("the controller failed to give leadership back; it tries again")

    async def _until_next_look(self) -> None:
        await asyncio.sleep(self._view.config.int_("leader.imbalance.check.interval.seconds"))

    async def _give_leadership_back(self, which: Sequence[TopicPartition]) -> None:
        logger.info("%d partitions go back to their preferred leaders", len(which))
        try:
            await self.committer.commit(
                lambda image: (
                    elect_leaders(
                        image,
                        self._view.config,
                        ElectionType.PREFERRED,
                        which,
                        controller_epoch=self.epoch,
                    ).change
                )
            )
        except KafkaError as error:
            logger.warning("leadership was not given back: %s", error)

    # ---- telling everybody

    def _publish(self, image: ClusterImage, delta: ImageDelta) -> asyncio.Task[TopicFailures]:
        if self._is_over:
            return asyncio.create_task(_no_failures())
        is_first = not self.is_serving
        if is_first:
            # This term begins with everything: also this broker may have been told less than was stored.
            delta = _everything(self._view.image, image)
            self.is_serving = True
            logger.info("this broker is the controller now, in controller epoch %d", self.epoch)
        told: list[asyncio.Future[None]] = []
        if len(image.brokers) > 1 or self._node_id not in image.brokers:
            requests = (
                full_requests(image, self.epoch, but_for=self._node_id)
                if is_first
                else requests_of_change(image, delta, self.epoch, but_for=self._node_id)
            )
            told = self._channels.tell(image, requests)
        else:
            self._channels.tell(image, {})
        own = self._view.publish(image, delta)
        if _may_allow_unclean_elections(delta):
            self._dirty.set()  # partitions without a leader are looked at again
        if is_first:
            self._start(self._confirm_own_deletions(own))
        return asyncio.create_task(_all_told(own, told)) if told else own

    async def _confirm_own_deletions(self, own: asyncio.Task[TopicFailures]) -> None:
        """Topics that were deleted before this term: this broker has just followed that."""
        failures = await own
        gone = [
            topic_id
            for topic_id, topic in self.committer.newest.deleted_topics.items()
            if topic.name not in failures
        ]
        await self._confirm(self._node_id, gone)

    def _on_deleted(self, broker_id: int, topic_ids: list[bytes]) -> None:
        self._start(self._confirm(broker_id, topic_ids))

    async def _confirm(self, broker_id: int, topic_ids: Sequence[bytes]) -> None:
        try:
            await self.committer.commit(lambda image: confirm_deletions(image, broker_id, topic_ids))
        except KafkaError as error:
            # A deletion that stays noted is told again by the next controller.
            logger.info("deletions by broker %d are not noted: %s", broker_id, error)

    def _full_requests_of(self, broker_id: int) -> Requests | None:
        return full_requests(self.committer.stored, self.epoch).get(broker_id)

    # ---- replicas that are offline

    def _on_roles(self, broker: BrokerImage, response: LeaderAndIsrResponse) -> None:
        """A broker has taken its roles. Replicas that it cannot use are offline from here on."""
        image = self.committer.newest
        failed: list[ReplicaKey] = []
        taken: list[ReplicaKey] = []
        for topic in response.topics:
            known = image.topics.get(image.topic_names_by_id.get(topic.topic_id, ""))
            offline = set() if known is None else known.offline_on(broker.id)
            for each in topic.partition_errors:
                key = (topic.topic_id, each.partition_index)
                if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    failed.append(key)
                elif each.error_code != ErrorCode.NONE:
                    # It has not been told of the topic, or was told of a later one: the next change tells it.
                    logger.warning(
                        "broker %d cannot take its role in partition %d of topic id %s: %s",
                        broker.id,
                        each.partition_index,
                        topic.topic_id.hex(),
                        ErrorCode(each.error_code).name,
                    )
                elif each.partition_index in offline:
                    taken.append(key)
        if failed or taken:
            self._start(self._note_roles(broker, failed, taken))

    async def _note_roles(
        self, broker: BrokerImage, failed: Sequence[ReplicaKey], taken: Sequence[ReplicaKey]
    ) -> None:
        while True:
            try:
                await self.change_replicas(broker.id, broker.epoch, offline=failed, online=taken)
                return
            except KafkaError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    return  # the broker has registered anew, or another controller asks it
                logger.warning("cannot store offline replicas of broker %d; retrying: %s", broker.id, error)
                await asyncio.sleep(RETRY_S)

    async def change_replicas(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        offline: Sequence[ReplicaKey],
        online: Sequence[ReplicaKey],
    ) -> None:
        """A broker says which of its replicas it cannot use, and which it can use again; KafkaError."""
        committer = self.committer
        await committer.ready()
        change = replicas_changed(
            committer.newest,
            self._view.config_under(committer.newest),
            broker_id,
            broker_epoch,
            offline=offline,
            online=online,
            controller_epoch=self.epoch,
        )
        if change.delta:
            committer.stage(change)
        await committer.newest_is_stored()
        if offline:
            logger.warning("%d replicas on broker %d are offline", len(offline), broker_id)

    # ---- producer ids

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids for a broker; raises a KafkaError."""
        check_broker_epoch(self.committer.newest, broker_id, broker_epoch)
        async with self._allocating:
            return await next_block(self._store, self._term, broker_id)

    # ---- ISRs

    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[IsrResult]:
        """The answers to a leader's proposals; they do not wait for other brokers to follow."""
        committer = self.committer
        await committer.ready()
        altered = isr.alter_isrs(
            committer.newest,
            self._view.config_under(committer.newest),
            broker_id,
            broker_epoch,
            proposals,
            controller_epoch=self.epoch,
        )
        if altered.change.delta:
            committer.stage(altered.change)
        await committer.newest_is_stored()  # also what a refusal was found on
        self._remind(broker_id, proposals, altered.results)
        return altered.results

    def _remind(self, broker_id: int, proposals: Sequence[IsrProposal], results: Sequence[IsrResult]) -> None:
        """Tell a leader again what it does not seem to know: it may have lost what it was told."""
        image = self.committer.stored
        indexes: dict[str, set[int]] = {}
        for proposal, result in zip(proposals, results, strict=True):
            topic = image.topics.get(image.topic_names_by_id.get(proposal.topic_id, ""))
            if topic is None or not isinstance(result, KafkaError) or result.code not in _SUPERSEDED:
                continue
            if 0 <= proposal.partition < len(topic.partitions):
                indexes.setdefault(topic.name, set()).add(proposal.partition)
        if not indexes or self._is_over or broker_id not in image.brokers:
            return
        delta = ImageDelta(
            {
                name: TopicDelta(image.topics[name], image.topics[name], tuple(sorted(which)))
                for name, which in indexes.items()
            }
        )
        if broker_id == self._node_id:
            self._view.publish(image, delta)
        else:
            requests = requests_of_change(image, delta, self.epoch, but_for=self._node_id)
            self._channels.tell(image, {broker_id: requests[broker_id]})


def _may_allow_unclean_elections(delta: ImageDelta) -> bool:
    return bool(delta.broker_configs) or any(
        topic.before is not None
        and topic.after is not None
        and topic.before.config.get(UNCLEAN_KEY) != topic.after.config.get(UNCLEAN_KEY)
        for topic in delta.topics.values()
    )


def _everything(old: ClusterImage, image: ClusterImage) -> ImageDelta:
    """What changed from `old`, and besides all topics of `image` with all their partitions, and all deletions
    that are noted: `old` may lack a topic whose replicas are still here."""
    changed = difference(old, image)
    topics = {
        name: TopicDelta(old.topics.get(name), topic, tuple(range(len(topic.partitions))))
        for name, topic in image.topics.items()
    }
    deleted = {**changed.deleted_topics, **image.deleted_topics}
    return replace(changed, topics={**changed.topics, **topics}, deleted_topics=deleted)


async def _no_failures() -> TopicFailures:
    return {}


async def _all_told(own: asyncio.Task[TopicFailures], told: list[asyncio.Future[None]]) -> TopicFailures:
    failures = await own
    await asyncio.wait(told, timeout=TELLING_S)
    return failures
