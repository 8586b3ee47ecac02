"""A controller without IO that tests send events to: the image, its store, and the brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

from klamm.cluster.config_changes import alter_config
from klamm.cluster.controller import brokers as broker_events
from klamm.cluster.controller import topics
from klamm.cluster.controller.elections import elect_leaders
from klamm.cluster.controller.isr import IsrProposal, alter_isrs
from klamm.cluster.controller.offline_replicas import replicas_changed
from klamm.cluster.controller.reassignment import reassign_partition
from klamm.cluster.controller.topics import NewTopic
from klamm.cluster.image import ClusterImage, difference
from klamm.cluster.layout import Registration
from klamm.cluster.loading import prepare_store, read_image
from klamm.cluster.persistent_map import PersistentMap
from klamm.config.alterations import Alteration, AlterOperation
from klamm.config.loading import BrokerConfig
from klamm.config.rows import ResourceType
from klamm.model.ids import NEVER_INTACT, IntactEpochs, TopicPartition

from .model_store import ModelStore
from .scenario import broker

CONTROLLER_EPOCH = 3


class Events:
    """`changes` has every change that was made, for tests that look at them."""

    def __init__(self, *broker_ids, config=None, racks=None):
        self.config = BrokerConfig(config or {})
        self.store = ModelStore()
        self.registered = {}
        self.changes = []
        self._epochs = count(100)
        self._topic_ids = count(1)
        self._racks = racks or {}
        asyncio.run(prepare_store(self.store))
        self.image = self.read().image
        self.start(*broker_ids)

    def apply(self, change):
        assert change.image == self.image.with_delta(change.delta)
        self.store.apply(change.operations)
        self.changes.append(change)
        self.image = change.image
        return change

    def read(self):
        return asyncio.run(read_image(self.store, 1, CONTROLLER_EPOCH))

    def check_store(self):
        """What a new controller would read is what this one knows."""
        loaded = self.read()
        assert loaded.unfinished == ()
        image = replace(loaded.image, brokers=self.image.brokers, cluster_id=self.image.cluster_id)
        known = replace(self.image, topics=PersistentMap(without_offline_replicas(self.image)))
        assert not difference(known, image)

    # ---- brokers

    def _brokers_changed(self):
        return self.apply(
            broker_events.brokers_changed(
                self.image, self.config, self.registered, controller_epoch=CONTROLLER_EPOCH
            )
        )

    def start(self, *broker_ids, clean=True):
        """They register, also where they are registered already: that is a fast bounce."""
        for broker_id in broker_ids:
            last = self.image.known_epochs.get(broker_id, -1)
            self._register(broker_id, IntactEpochs(last, last) if clean else NEVER_INTACT)
        return self._brokers_changed()

    def start_intact(self, broker_id, first, last):
        """It registers, with the broker epochs since which it has lost nothing."""
        self._register(broker_id, IntactEpochs(first, last))
        return self._brokers_changed()

    def _register(self, broker_id, intact_epochs):
        new = replace(broker(broker_id, self._racks.get(broker_id)), epoch=next(self._epochs))
        self.registered[broker_id] = Registration(new, intact_epochs)

    def fail(self, *broker_ids):
        for broker_id in broker_ids:
            del self.registered[broker_id]
        return self._brokers_changed()

    def take_office(self):
        """A new controller reads the store and deals with the brokers that it finds."""
        loaded = self.read()
        self.image = loaded.image
        return self._brokers_changed()

    def shut_down(self, broker_id, epoch=None):
        epoch = self.image.brokers[broker_id].epoch if epoch is None else epoch
        made = broker_events.shut_down_broker(
            self.image, self.config, broker_id, epoch, controller_epoch=CONTROLLER_EPOCH
        )
        self.apply(made.change)
        return made.remaining

    def unregister(self, broker_id):
        return self.apply(broker_events.unregister_broker(self.image, broker_id))

    # ---- topics

    def create(self, name, *replicas, partitions=1, factor=1, start=0, **settings):
        """With one partition for each given list of replicas, or with replicas that are placed."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        if replicas:
            new = NewTopic(name, assignment=list(enumerate(replicas)), config=config)
        else:
            new = NewTopic(name, partitions, factor, config=config)
        topic_id = next(self._topic_ids).to_bytes(16)
        return self.apply(
            topics.create_topic(
                self.image,
                self.config,
                new,
                controller_epoch=CONTROLLER_EPOCH,
                topic_id=topic_id,
                start=start,
            )
        )

    def configure(self, name, **settings):
        """Set topic settings at run time."""
        alterations = [
            Alteration(key.replace("_", "."), AlterOperation.SET, value) for key, value in settings.items()
        ]
        return self.apply(
            alter_config(
                self.image,
                self.config,
                ResourceType.TOPIC,
                name,
                alterations,
                controller_epoch=CONTROLLER_EPOCH,
            )
        )

    def delete(self, name):
        return self.apply(topics.delete_topic(self.image, name))

    def confirm(self, broker_id):
        return self.apply(topics.confirm_deletions(self.image, broker_id, sorted(self.image.deleted_topics)))

    def partition(self, name="t", index=0):
        return self.image.topics[name].partitions[index]

    # ---- partitions

    def change_replica(self, broker_id, name="t", index=0, *, is_offline, epoch=None):
        """A broker says that it cannot use its replica, or can use it again."""
        keys = [(self.image.topics[name].topic_id, index)]
        return self.apply(
            replicas_changed(
                self.image,
                self.config,
                broker_id,
                self.image.brokers[broker_id].epoch if epoch is None else epoch,
                offline=keys if is_offline else [],
                online=[] if is_offline else keys,
                controller_epoch=CONTROLLER_EPOCH,
            )
        )

    def proposal(self, isr, name="t", index=0, leader_epoch=None, partition_epoch=None, epochs=None):
        partition = self.partition(name, index)
        known = {each.id: each.epoch for each in self.image.brokers.values()} | (epochs or {})
        return IsrProposal(
            self.image.topics[name].topic_id,
            index,
            partition.leader_epoch if leader_epoch is None else leader_epoch,
            partition.partition_epoch if partition_epoch is None else partition_epoch,
            tuple((each, known.get(each, -1)) for each in isr),
        )

    def alter_isr(self, isr, name="t", index=0, sender=None, **others):
        """The leader proposes; returns the partition afterwards or the error."""
        sender = self.partition(name, index).leader if sender is None else sender
        made = alter_isrs(
            self.image,
            self.config,
            sender,
            self.image.brokers[sender].epoch,
            [self.proposal(isr, name, index, **others)],
            controller_epoch=CONTROLLER_EPOCH,
        )
        self.apply(made.change)
        return made.results[0]

    def elect(self, election_type, *places):
        which = [TopicPartition(*place) for place in places] if places else None
        made = elect_leaders(self.image, self.config, election_type, which, controller_epoch=CONTROLLER_EPOCH)
        self.apply(made.change)
        return {tuple(place): error.code if error else None for place, error in made.results}

    def reassign(self, target, name="t", index=0, **others):
        return self.apply(
            reassign_partition(
                self.image,
                self.config,
                TopicPartition(name, index),
                target,
                controller_epoch=CONTROLLER_EPOCH,
                **others,
            )
        )


def partitions_of(image: ClusterImage):
    for name in sorted(image.topics):
        for index, partition in enumerate(image.topics[name].partitions):
            yield (image.topics[name].topic_id, index), partition


def without_offline_replicas(image):
    """The topics as they are stored."""
    for name, topic in image.topics.items():
        partitions = tuple(each._replace(offline_replicas=()) for each in topic.partitions)
        yield name, replace(topic, partitions=partitions)
