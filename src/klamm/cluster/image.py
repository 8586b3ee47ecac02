"""The cluster's metadata as one immutable value: what every handler reads, at one moment.

An image is changed by an `ImageDelta`, which holds only what changed: that makes a new image which shares
everything else with the old one, so `old.topics[name] is new.topics[name]` says that a topic is the same. An
image never changes: its holder may read it for as long as it likes, and sees the state of that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from klamm.cluster.persistent_map import PersistentMap
from klamm.cluster.topic_names import SimilarNames, renamed, similar_names
from klamm.config.listeners import Listener, advertised_addresses
from klamm.config.loading import BrokerConfig
from klamm.model.ids import TopicId

NO_LEADER = -1

ALL_BROKERS = ""
"""The name under which broker configurations hold the settings of all brokers."""

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})


class Endpoint(NamedTuple):
    host: str
    port: int


class PartitionImage(NamedTuple):
    """One partition. `partition_epoch` rises with every change of the other fields.

    While the partition is reassigned, `replicas` are the target replicas in their order, then those that are
    to go; `adding_replicas` and `removing_replicas` are the ones that come and go by it.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    eligible_replicas: tuple[int, ...] = ()
    """Replicas outside the ISR that have all that is committed."""
    offline_replicas: tuple[int, ...] = ()
    """Replicas on brokers that are alive and cannot use the replica's log. Not stored: every controller asks
    anew."""

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A broker that is alive; `endpoints` by listener name are the addresses clients are told."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    epoch: int = 0
    is_shutting_down: bool = False
    """True if it has asked for a controlled shutdown: it gets no leadership and joins no ISR."""


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `config` holds its own settings only, as text."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def offline_on(self, broker_id: int) -> set[int]:
        """The partitions whose replica on this broker is offline."""
        return {
            index
            for index, partition in enumerate(self.partitions)
            if broker_id in partition.offline_replicas
        }

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


class DeletedTopic(NamedTuple):
    """A topic that was deleted while `brokers` may still have files of it."""

    name: str
    topic_id: TopicId
    partition_count: int
    brokers: tuple[int, ...]


class TopicDelta(NamedTuple):
    """How a topic changed: `before` is None if it is new, `after` if it was deleted.

    If both are there with different topic ids, the topic was deleted and another of its name was made.
    `partitions` are the indexes, in order, of the partitions that are new or changed.
    """

    before: TopicImage | None
    after: TopicImage | None
    partitions: tuple[int, ...]

    @property
    def is_same_topic(self) -> bool:
        """True if the topic was there before and still is."""
        return (
            self.before is not None
            and self.after is not None
            and (self.before.topic_id == self.after.topic_id)
        )

    @property
    def deleted(self) -> TopicImage | None:
        """The topic that is gone, if one is."""
        return None if self.is_same_topic else self.before


class BrokerDelta(NamedTuple):
    """How a broker changed: `before` is None if it came, `after` if it went."""

    before: BrokerImage | None
    after: BrokerImage | None


ConfigDelta: TypeAlias = Mapping[str, Mapping[str, str] | None]
"""Changed settings by name; None where none are left."""


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """What changed between two images."""

    topics: Mapping[str, TopicDelta] = field(default_factory=dict)
    brokers: Mapping[int, BrokerDelta] = field(default_factory=dict)
    broker_configs: ConfigDelta = field(default_factory=dict)
    group_configs: ConfigDelta = field(default_factory=dict)
    controller_id: int | None = None
    """The new controller, if another broker has become it."""
    deleted_topics: Mapping[bytes, DeletedTopic | None] = field(default_factory=dict)
    known_epochs: Mapping[int, int | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.topics
            or self.brokers
            or self.broker_configs
            or self.group_configs
            or self.controller_id is not None
            or self.deleted_topics
            or self.known_epochs
        )


@dataclass(frozen=True, slots=True)
class ClusterImage:
    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: PersistentMap[str, TopicImage] = field(default_factory=PersistentMap)
    topic_names_by_id: PersistentMap[bytes, str] = field(default_factory=PersistentMap)
    similar_topic_names: SimilarNames = field(default_factory=PersistentMap)
    broker_configs: PersistentMap[str, Mapping[str, str]] = field(default_factory=PersistentMap)
    """Run-time settings by broker id as text; `ALL_BROKERS` has those of all."""
    group_configs: PersistentMap[str, Mapping[str, str]] = field(default_factory=PersistentMap)
    deleted_topics: PersistentMap[bytes, DeletedTopic] = field(default_factory=PersistentMap)
    """By topic id; known to the controller alone."""
    known_epochs: PersistentMap[int, int] = field(default_factory=PersistentMap)
    """The last broker epoch of each broker that the controller has dealt with, alive or not; known to the
    controller alone."""

    def brokers_at(self, listener_name: str) -> Iterator[tuple[BrokerImage, Endpoint]]:
        """The brokers that have a listener of this name, each with its address there."""
        for broker in self.brokers.values():
            endpoint = broker.endpoints.get(listener_name)
            if endpoint is not None:
                yield broker, endpoint

    def with_delta(self, delta: ImageDelta) -> ClusterImage:
        """The image after `delta`, which was made for this one."""
        image = self._with_topics(delta.topics) if delta.topics else self
        return replace(
            image,
            controller_id=self.controller_id if delta.controller_id is None else delta.controller_id,
            brokers=_changed_brokers(self.brokers, delta.brokers) if delta.brokers else self.brokers,
            broker_configs=self.broker_configs.changed(delta.broker_configs),
            group_configs=self.group_configs.changed(delta.group_configs),
            deleted_topics=self.deleted_topics.changed(delta.deleted_topics),
            known_epochs=self.known_epochs.changed(delta.known_epochs),
        )

    def _with_topics(self, deltas: Mapping[str, TopicDelta]) -> ClusterImage:
        topics: dict[str, TopicImage | None] = {}
        names_by_id: dict[bytes, str | None] = {}
        gone: list[str] = []
        new: list[str] = []
        for name, (before, after, _) in deltas.items():
            topics[name] = after
            if before is not None and after is not None and before.topic_id == after.topic_id:
                continue
            if before is not None:
                names_by_id[before.topic_id] = None
                gone.append(name)
            if after is not None:
                names_by_id[after.topic_id] = name
                new.append(name)
        return replace(
            self,
            topics=self.topics.changed(topics),
            topic_names_by_id=self.topic_names_by_id.changed(names_by_id),
            similar_topic_names=renamed(self.similar_topic_names, gone, new),
        )


def _changed_brokers(
    brokers: Mapping[int, BrokerImage], deltas: Mapping[int, BrokerDelta]
) -> Mapping[int, BrokerImage]:
    left = {broker_id: broker for broker_id, broker in brokers.items() if broker_id not in deltas}
    changed = {broker_id: delta.after for broker_id, delta in deltas.items() if delta.after is not None}
    return dict(sorted((left | changed).items()))


def image_of_topics(cluster_id: str, controller_id: int, topics: Mapping[str, TopicImage]) -> ClusterImage:
    """An image with these topics, and with no brokers and settings yet."""
    return ClusterImage(
        cluster_id,
        controller_id,
        topics=PersistentMap(topics),
        topic_names_by_id=PersistentMap((topic.topic_id, name) for name, topic in topics.items()),
        similar_topic_names=similar_names(topics),
    )


def with_offline_replicas_of(before: ClusterImage, image: ClusterImage) -> ClusterImage:
    """`image`, which was read from the store, with what `before` knows of replicas that are offline."""
    topics: dict[str, TopicImage] = {}
    for name, known in before.topics.items():
        topic = image.topics.get(name)
        if topic is None or topic.topic_id != known.topic_id:
            continue
        offline = {
            at: each.offline_replicas for at, each in enumerate(known.partitions) if each.offline_replicas
        }
        if offline:
            partitions = (
                each._replace(offline_replicas=offline.get(at, ()))
                for at, each in enumerate(topic.partitions)
            )
            topics[name] = replace(topic, partitions=tuple(partitions))
    return replace(image, topics=image.topics.changed(topics))


def unfinished_deletions_of(image: ClusterImage, broker_id: int) -> frozenset[str]:
    """Topics that were deleted and whose files the broker may still have."""
    return frozenset(topic.name for topic in image.deleted_topics.values() if broker_id in topic.brokers)


def topic_delta(before: TopicImage | None, after: TopicImage | None) -> TopicDelta:
    """What changed of a topic, found by going over its partitions."""
    if after is None:
        return TopicDelta(before, None, ())
    if before is None or before.topic_id != after.topic_id:
        return TopicDelta(before, after, tuple(range(len(after.partitions))))
    known = len(before.partitions)
    changed = (
        index
        for index, partition in enumerate(after.partitions)
        if index >= known or partition != before.partitions[index]
    )
    return TopicDelta(before, after, tuple(changed))


def difference(old: ClusterImage, new: ClusterImage) -> ImageDelta:
    """What changed from one image to any other one."""
    changed_brokers = {
        broker_id: BrokerDelta(old.brokers.get(broker_id), new.brokers.get(broker_id))
        for broker_id in sorted(old.brokers.keys() | new.brokers.keys())
        if old.brokers.get(broker_id) != new.brokers.get(broker_id)
    }
    return ImageDelta(
        topics={
            name: topic_delta(before, after)
            for name, before, after in sorted(new.topics.changes_since(old.topics), key=itemgetter(0))
        },
        brokers=changed_brokers,
        broker_configs=_config_difference(old.broker_configs, new.broker_configs),
        group_configs=_config_difference(old.group_configs, new.group_configs),
        controller_id=new.controller_id if new.controller_id != old.controller_id else None,
        deleted_topics={
            topic_id: after
            for topic_id, _, after in sorted(
                new.deleted_topics.changes_since(old.deleted_topics), key=itemgetter(0)
            )
        },
        known_epochs={
            broker_id: after
            for broker_id, _, after in sorted(
                new.known_epochs.changes_since(old.known_epochs), key=itemgetter(0)
            )
        },
    )


def _config_difference(
    old: PersistentMap[str, Mapping[str, str]], new: PersistentMap[str, Mapping[str, str]]
) -> ConfigDelta:
    return {name: after for name, _, after in sorted(new.changes_since(old), key=itemgetter(0))}


def joined(deltas: Iterable[ImageDelta]) -> ImageDelta:
    """One delta for several that follow one another."""
    topics: dict[str, TopicDelta] = {}
    brokers: dict[int, BrokerDelta] = {}
    broker_configs: dict[str, Mapping[str, str] | None] = {}
    group_configs: dict[str, Mapping[str, str] | None] = {}
    controller_id: int | None = None
    deleted_topics: dict[bytes, DeletedTopic | None] = {}
    known_epochs: dict[int, int | None] = {}
    for delta in deltas:
        for name, later in delta.topics.items():
            topics[name] = _joined_topic(topics[name], later) if name in topics else later
        for broker_id, change in delta.brokers.items():
            first = brokers.get(broker_id, change)
            brokers[broker_id] = BrokerDelta(first.before, change.after)
        broker_configs.update(delta.broker_configs)
        group_configs.update(delta.group_configs)
        controller_id = controller_id if delta.controller_id is None else delta.controller_id
        deleted_topics.update(delta.deleted_topics)
        known_epochs.update(delta.known_epochs)
    topics = {name: each for name, each in topics.items() if each.before or each.after}
    return ImageDelta(
        topics, brokers, broker_configs, group_configs, controller_id, deleted_topics, known_epochs
    )


def _joined_topic(first: TopicDelta, second: TopicDelta) -> TopicDelta:
    if first.after is None or second.after is None or not second.is_same_topic:
        return topic_delta(first.before, second.after)
    partitions = tuple(sorted({*first.partitions, *second.partitions}))
    return TopicDelta(first.before, second.after, partitions)


def broker_image(
    config: BrokerConfig, listeners: tuple[Listener, ...], bound_ports: Mapping[str, int]
) -> BrokerImage:
    """This broker as the cluster shall see it; `bound_ports` by listener name resolve port 0."""
    told = advertised_addresses(listeners, config.advertised_listeners, bound_ports)
    return BrokerImage(
        id=config.int_("node.id"),
        endpoints={name: Endpoint(address.host, address.port) for name, address in told.items()},
        rack=config.optional_str("broker.rack"),
    )
